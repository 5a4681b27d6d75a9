// Python's door to the rollouts: a `Batch` keeps the arrays it was given, checks their sizes once, and shares the
// blocks among threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "library.h"
#include "workers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace surefoot {

Found find_system(const std::string& name);  // systems.cpp

namespace {

class Batch {
 public:
  /// `sizes`: states, actions, observations, parameters, uniforms, normals. `arrays`: name -> contiguous CPU array of
  /// the exact type; those absent from it are not wanted.
  Batch(const std::string& system, const std::vector<int>& sizes, int envs, int horizon, int limit, bool many,
        bool noisy, int source, const std::vector<int>& header, const nb::dict& arrays)
      : system_(find_system(system)), arrays_(arrays), header_(header) {
    if (sizes.size() != 6) throw nb::value_error("sizes must be six numbers");
    if (envs < 1 || horizon < 1 || limit < 1) throw nb::value_error("envs, horizon and limit must be 1 or more");
    Sizes& n = job_.sizes;
    n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    job_.envs = envs;
    job_.horizon = horizon;
    job_.limit = limit;
    job_.many = many;
    job_.noisy = noisy && n.normals > 0;
    job_.source = static_cast<Source>(source);
    const long rows = envs, steps = static_cast<long>(horizon) * envs;
    job_.matrices = take<const float>("matrices", -1);
    job_.low = take<const float>("low", n.actions, true);
    job_.high = take<const float>("high", n.actions, true);
    job_.seeds = reinterpret_cast<const long long*>(take<const std::int64_t>("seeds", rows, true));
    const long given = count_of("parameters");
    job_.shared = given == n.parameters && envs != 1;
    job_.parameters = take<const float>("parameters", job_.shared ? n.parameters : rows * n.parameters, true);
    job_.given = take<const float>("given", steps * n.actions, job_.source == Source::given);
    job_.states = take<float>("states", rows * n.states, true);
    job_.episodes = take<int>("episodes", rows, true);
    job_.elapsed = take<int>("elapsed", rows, true);
    job_.returns = take<float>("returns", rows, true);
    job_.costs = take<float>("costs", rows, true);
    job_.margins = take<float>("margins", rows, true);
    job_.lengths = take<int>("lengths", rows, true);
    job_.terminated = take<int>("terminated", rows, true);
    job_.truncated = take<int>("truncated", rows, true);
    job_.diverged = take<int>("diverged", rows, true);
    job_.finished = take<int>("finished", rows, true);
    job_.finished_lengths = take<int>("finished_lengths", rows, true);
    job_.finished_returns = take<float>("finished_returns", rows, true);
    job_.finished_costs = take<float>("finished_costs", rows, true);
    job_.last_observations = take<float>("last_observations", rows * n.observations);
    job_.record_observations = take<float>("record_observations", steps * n.observations);
    job_.record_actions = take<float>("record_actions", steps * n.actions);
    job_.record_rewards = take<float>("record_rewards", steps);
    job_.record_next_observations = take<float>("record_next_observations", steps * n.observations);
    job_.record_costs = take<float>("record_costs", steps);
    job_.record_margins = take<float>("record_margins", steps);
    job_.record_terminated = take<unsigned char>("record_terminated", steps);
    job_.record_truncated = take<unsigned char>("record_truncated", steps);
    job_.record_diverged = take<unsigned char>("record_diverged", steps);
    if (job_.source == Source::policy) use_policy();
  }

  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void run(int threads, bool fresh) {
    const nb::gil_scoped_release release;
    each_block(threads, [this, fresh](int first, char* memory) {
      system_.functions().run_block(system_.index, job_, first, fresh, memory);
    });
  }

  void reset(const nb::object& mask, int threads) {
    const unsigned char* chosen = nullptr;
    if (!mask.is_none()) {
      const auto array = nb::cast<nb::ndarray<const unsigned char, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(mask);
      if (static_cast<int>(array.shape(0)) != job_.envs) throw nb::value_error("mask must have one value per environment");
      chosen = array.data();
    }
    const nb::gil_scoped_release release;
    each_block(threads, [this, chosen](int first, char* memory) {
      system_.functions().reset_block(system_.index, job_, first, chosen, memory);
    });
  }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  using Memory = std::unique_ptr<char[], Free>;

  Memory memory() const {
    const long bytes = system_.functions().block_bytes(job_);
    return Memory(static_cast<char*>(::operator new[](static_cast<std::size_t>(bytes), std::align_val_t(64))));
  }

  /// Blocks are taken from a common counter, so a slow thread takes fewer; which thread does a block changes nothing.
  template <class Work>
  void each_block(int threads, const Work& work) {
    const int lanes = system_.functions().block_lanes();
    const int blocks = (job_.envs + lanes - 1) / lanes;
    threads = threads < blocks ? threads : blocks;
    while (static_cast<int>(scratch_.size()) < (threads > 1 ? threads : 1)) scratch_.push_back(memory());
    std::atomic<int> next{0};
    together(threads, [&](int thread) {
      char* const scratch = scratch_[static_cast<std::size_t>(thread)].get();
      for (int block = next.fetch_add(1); block < blocks; block = next.fetch_add(1)) work(block * lanes, scratch);
    });
  }

  long count_of(const char* name) const {
    if (!arrays_.contains(name)) return 0;
    const auto array = nb::cast<nb::ndarray<>>(arrays_[name]);
    return static_cast<long>(array.size());
  }

  /// The data of an array of exactly `count` values (-1: any number of them); null where it is not given.
  template <class T>
  T* take(const char* name, long count, bool needed = false) {
    if (!arrays_.contains(name)) {
      if (needed) throw nb::value_error((std::string("the array ") + name + " is missing").c_str());
      return nullptr;
    }
    nb::ndarray<T, nb::c_contig, nb::device::cpu> array;
    if (!nb::try_cast(arrays_[name], array, false))
      throw nb::value_error((std::string("the array ") + name + " has another type, or is not contiguous").c_str());
    if (count >= 0 && static_cast<long>(array.size()) != count)
      throw nb::value_error((std::string("the array ") + name + " has " + std::to_string(array.size()) +
                             " values, must have " + std::to_string(count)).c_str());
    return array.data();
  }

  void use_policy() {
    const int layers = header_.empty() ? 0 : header_[0];
    if (layers < 1 || layers > max_layers || static_cast<int>(header_.size()) != policy_header + layers + 1)
      throw nb::value_error("a policy must have 1 to 16 layers");
    job_.policy = unpack(header_.data(), take<const float>("policy", -1, true));
    const Policy& p = job_.policy;
    if (p.observations != job_.sizes.observations || p.actions != job_.sizes.actions)
      throw nb::value_error("the policy's widths do not fit the system");
    const Layer& last = p.layer[layers - 1];
    const long used = (last.weights - p.mean) + static_cast<long>(last.inputs + 1) * last.outputs;
    if (used != count_of("policy")) throw nb::value_error("the packed policy has another size than its header says");
  }

  Found system_;
  nb::dict arrays_;  // keeps them alive
  std::vector<int> header_;
  Job job_{};
  std::vector<Memory> scratch_;
};

}  // namespace

/// Different seeds of environments 0, 1, ... of a rollout, from a number `first` that its base seed is hashed to.
void fill_seeds(std::uint32_t first, const nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& seeds) {
  std::int64_t* const to = seeds.data();
  const long count = static_cast<long>(seeds.shape(0));
  for (long k = 0; k < count; ++k) to[k] = mix(first + static_cast<uint32>(k));
}

void bind_rollout(nb::module_& m) {
  m.def("fill_seeds", &fill_seeds, "first"_a, "seeds"_a);
  nb::class_<Batch>(m, "Batch", "Environments, the arrays they work on, and how far to roll them out.")
      .def(nb::init<const std::string&, const std::vector<int>&, int, int, int, bool, bool, int,
                    const std::vector<int>&, const nb::dict&>(),
           "system"_a, "sizes"_a, "envs"_a, "horizon"_a, "limit"_a, "many"_a, "noisy"_a, "source"_a, "header"_a,
           "arrays"_a)
      .def("run", &Batch::run, "threads"_a, "fresh"_a = false,
           "Roll out once, from the states onwards or, `fresh`, from states that episodes begin in.")
      .def("reset", &Batch::reset, "mask"_a.none(), "threads"_a, "Begin the episodes that `mask` (uint8) chooses.");
}

}  // namespace surefoot
