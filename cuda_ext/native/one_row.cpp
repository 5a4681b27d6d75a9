// Binds levels/one_row.cpp, and makes policies of its networks: python passes addresses of float32 memory, and has
// checked widths.
#include "one_row.h"

#include "counter.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;

namespace surefoot {
namespace {

using Addresses = std::vector<std::uintptr_t>;

float* to(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

/// A network whose parameters lie elsewhere and may change there, with memory for one row: for one thread at a time.
class OneRow {
 public:
  OneRow(const std::vector<long>& inputs, const std::vector<long>& outputs, const Addresses& weights,
         const Addresses& biases, int activation, bool residual) {
    if (activation < 0 || activation >= row_activations)
      throw std::invalid_argument("hidden layers are ReLU (0), tanh (1), SiLU (2), GELU by tanh (3) or mish (4)");
    const std::size_t count = inputs.size();
    if (count == 0 || outputs.size() != count || weights.size() != count || biases.size() != count)
      throw std::invalid_argument("each layer needs inputs, outputs, weights and biases");
    if (residual && (count < 2 || count % 2 != 0))
      throw std::invalid_argument("a residual network has a first layer, blocks of two and a last layer");
    network_.activation = static_cast<RowActivation>(activation);
    network_.residual = residual;
    network_.width = 1;
    for (std::size_t k = 0; k < count; ++k) {
      if (k > 0 && inputs[k] != outputs[k - 1]) throw std::invalid_argument("a layer reads what the last one gives");
      network_.layers.push_back({inputs[k], outputs[k], to(weights[k]), to(biases[k])});
      if (outputs[k] > network_.width) network_.width = outputs[k];
    }
    for (std::size_t k = 2; residual && k + 1 < count; k += 2)
      if (outputs[k] != outputs[0]) throw std::invalid_argument("a block gives as many numbers as it reads");
    scratch_.resize(static_cast<std::size_t>(network_.scratch_floats()));
  }

  void forward(std::uintptr_t input, std::uintptr_t output) {
    const nb::gil_scoped_release release;
    SUREFOOT_CALL(row_forward, network_, to(input), to(output), scratch_.data());
  }

  const RowNetwork& network() const { return network_; }

 private:
  RowNetwork network_;
  std::vector<float> scratch_;
};

/// What became of a call.
enum class Outcome { acted = 0, far_observation = 1, far_action = 2 };

/// One observation to one action in the environment's units, by a network that turns noise into actions: scaling, draws,
/// the network or the steps of a flow, and the queue of a chunk. What it reads and remembers lies in memory of others,
/// who may change it between calls; for one thread at a time.
class RowPolicy {
 public:
  RowPolicy(const OneRow& network, const OneRow* condition, long observations, long actions, int steps, bool clip_each,
            bool summed, long seen_place, long place, long feature_place, long feature_count, std::uint32_t purpose,
            float execute, const Addresses& read, std::uintptr_t draws, std::uintptr_t queue, std::uintptr_t queued,
            std::uintptr_t observation, std::uintptr_t action)
      : network_(network.network()),
        flow_{steps, 1.0f / static_cast<float>(steps > 0 ? steps : 1), clip_each, network_.layers.back().outputs, place,
              feature_place, feature_count},
        summed_(summed),
        conditioned_(condition != nullptr),
        seen_place_(seen_place),
        actions_(actions),
        purpose_(purpose),
        execute_(execute),
        draws_(reinterpret_cast<std::int64_t*>(draws)),
        queue_(to(queue)),
        queued_(to(queued)),
        observation_(to(observation)),
        action_(to(action)) {
    if (conditioned_) condition_ = condition->network();
    const long width = network_.layers.front().inputs, count = flow_.count;
    const long seen = conditioned_ ? condition_.layers.back().outputs : observations;
    const auto lies_within = [width](long from, long many) { return from >= 0 && many >= 0 && from + many <= width; };
    if (!lies_within(place, count) || !lies_within(feature_place, feature_count) ||
        !(summed || lies_within(seen_place, seen)))
      throw std::invalid_argument("numbers lie outside of the network's input");
    if (steps < 0 || (summed && seen != feature_count) ||
        (conditioned_ && condition_.layers.front().inputs != observations))
      throw std::invalid_argument("a flow has 0 steps or more, and a condition is made of the observation");
    if (actions < 1 || count % actions != 0 || (count != actions && queue == 0) || (queue == 0) != (queued == 0))
      throw std::invalid_argument("the network makes an action, or a chunk of them, which needs a queue");
    if (read.size() != 5) throw std::invalid_argument("mean, scale, low, high and features are read");
    mean_ = to(read[0]), scale_ = to(read[1]), low_ = to(read[2]), high_ = to(read[3]), features_ = to(read[4]);
    seen_.resize(static_cast<std::size_t>(observations));
    input_.resize(static_cast<std::size_t>(width));
    out_.resize(static_cast<std::size_t>(count));
    condition_out_.resize(static_cast<std::size_t>(seen));
    table_.resize(static_cast<std::size_t>(steps * feature_count));
    const long scratch = network_.scratch_floats() + count;
    const long other = conditioned_ ? condition_.scratch_floats() : 0;
    scratch_.resize(static_cast<std::size_t>(scratch > other ? scratch : other));
  }

  /// Memory changes only where it acted.
  int act() {
    const nb::gil_scoped_release release;
    return static_cast<int>(made());
  }

 private:
  Outcome made() {
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      seen_[i] = (observation_[i] - mean_[i]) / scale_[i];
      if (!std::isfinite(seen_[i])) return Outcome::far_observation;
    }
    const bool plays = queue_ != nullptr && *queued_ != 0.0f;
    if (!plays) plan();
    const float* const first = plays ? queue_ : out_.data();
    for (long i = 0; i < actions_; ++i) {
      const float middle = (high_[i] + low_[i]) / 2.0f, half = (high_[i] - low_[i]) / 2.0f;
      const float product = half * first[i], found = product + middle;
      action_[i] = found < low_[i] ? low_[i] : found > high_[i] ? high_[i] : found;  // rounding may lead beyond a bound
      if (!std::isfinite(action_[i])) return Outcome::far_action;
    }
    ++draws_[1];
    if (queue_ == nullptr) return Outcome::acted;
    const std::size_t rest = out_.size() - static_cast<std::size_t>(actions_);
    std::memmove(queue_, first + actions_, rest * sizeof(float));
    std::memset(queue_ + rest, 0, static_cast<std::size_t>(actions_) * sizeof(float));
    *queued_ = (plays ? *queued_ : execute_) - 1.0f;
    return Outcome::acted;
  }

  /// `out_`: an action, or a chunk of them, in [-1, 1].
  void plan() {
    const float* condition = seen_.data();
    if (conditioned_) {
      SUREFOOT_CALL(row_forward, condition_, seen_.data(), condition_out_.data(), scratch_.data());
      condition = condition_out_.data();
    }
    const float* features = features_;
    if (summed_) {
      for (std::size_t i = 0; i < table_.size(); ++i)
        table_[i] = features_[i] + condition[i % static_cast<std::size_t>(flow_.feature_count)];
      features = table_.data();
    } else {
      std::memcpy(input_.data() + seen_place_, condition, condition_out_.size() * sizeof(float));
    }
    const auto count = static_cast<std::uint64_t>(draws_[1]);
    const Place place = {static_cast<std::uint64_t>(draws_[0]), 0, static_cast<std::uint32_t>(count),
                         static_cast<std::uint32_t>(count >> 32), purpose_};
    float* const noise = flow_.steps > 0 ? out_.data() : input_.data() + flow_.place;
    SUREFOOT_CALL(counted, Counted::normal, place, flow_.count, Range{0, 1}, noise);
    if (flow_.steps > 0)
      SUREFOOT_CALL(row_flow, network_, flow_, features, input_.data(), out_.data(), scratch_.data());
    else
      SUREFOOT_CALL(row_forward, network_, input_.data(), out_.data(), scratch_.data());
    for (float& x : out_) x = x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;  // NaN stays
  }

  RowNetwork network_, condition_{};
  RowFlow flow_;
  bool summed_, conditioned_;
  long seen_place_, actions_;
  std::uint32_t purpose_;
  float execute_;
  std::int64_t* draws_;
  float *queue_, *queued_;
  const float* observation_;
  float* action_;
  const float *mean_, *scale_, *low_, *high_, *features_;
  std::vector<float> seen_, input_, out_, condition_out_, table_, scratch_;
};

}  // namespace

void bind_one_row(nb::module_& m) {
  nb::class_<OneRow>(m, "OneRow", "A network of one row, whose parameters lie elsewhere; for one thread at a time.")
      .def(nb::init<const std::vector<long>&, const std::vector<long>&, const Addresses&, const Addresses&, int,
                    bool>(),
           nb::arg("inputs"), nb::arg("outputs"), nb::arg("weights"), nb::arg("biases"), nb::arg("activation"),
           nb::arg("residual"))
      .def("forward", &OneRow::forward, nb::arg("input"), nb::arg("output"), "Outputs of one row of inputs.");
  nb::class_<RowPolicy>(m, "RowPolicy", "One observation to one action, with noise drawn; for one thread at a time.")
      .def(nb::init<const OneRow&, const OneRow*, long, long, int, bool, bool, long, long, long, long, std::uint32_t,
                    float, const Addresses&, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                    std::uintptr_t>(),
           nb::arg("network"), nb::arg("condition").none(), nb::arg("observations"), nb::arg("actions"),
           nb::arg("steps"), nb::arg("clip_each"), nb::arg("summed"), nb::arg("seen_place"), nb::arg("place"),
           nb::arg("feature_place"), nb::arg("feature_count"), nb::arg("purpose"), nb::arg("execute"), nb::arg("read"),
           nb::arg("draws"), nb::arg("queue"), nb::arg("queued"), nb::arg("observation"), nb::arg("action"))
      .def("act", &RowPolicy::act,
           "Fill `action`; 0, or 1 where the observation and 2 where the action is not finite: then nothing is drawn.");
}

}  // namespace surefoot
