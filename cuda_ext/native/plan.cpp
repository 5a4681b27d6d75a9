// Python's door to the plans of levels/plan.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cmath>
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

template <class T>
using Given = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using Written = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

struct Free {
  void operator()(char* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

void expect(const char* name, std::size_t found, long wanted) {
  if (static_cast<long>(found) != wanted)
    throw nb::value_error((std::string("the array ") + name + " has " + std::to_string(found) + " values, must have " +
                           std::to_string(wanted)).c_str());
}

/// `parameters` (futures, parameters); `tail` 0: all futures. `numbers`: sigma, temperature, momentum, discount, cost_limit (not a number: there is none).
void plan(const std::string& system, const std::vector<int>& sizes, int horizon, const std::vector<int>& populations,
          int elites, int kept, bool average, const std::vector<float>& numbers, Given<float> matrices, Given<float> low,
          Given<float> high, Given<float> parameters, Given<float> colouring, Given<std::int64_t> draws,
          Given<float> states, Written mean, Written best, Written keep, int threads, int tail,
          bool truncated, bool noisy) {
  if (sizes.size() != 6 || numbers.size() != 5) throw nb::value_error("there must be six sizes and five numbers");
  const long rows = static_cast<long>(states.shape(0));
  PlanJob job{};
  job.sizes = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
  if (horizon < 1 || populations.empty()) throw nb::value_error("horizon and iterations must be 1 or more");
  int fewest = populations[0];
  for (const int count : populations) fewest = count < fewest ? count : fewest;
  if (fewest < 1 || elites < 1 || elites > fewest || kept < 0 || kept > elites)
    throw nb::value_error("populations, elites and kept do not fit each other");
  const long size = static_cast<long>(horizon) * sizes[1];
  expect("low", low.size(), sizes[1]);
  expect("high", high.size(), sizes[1]);
  const long futures = static_cast<long>(parameters.shape(0));
  expect("parameters", parameters.size(), futures * sizes[3]);
  if (futures < 1 || tail < 0 || tail > futures) throw nb::value_error("tail must be from 0 to the number of futures");
  expect("states", states.size(), rows * sizes[0]);
  expect("draws", draws.size(), 2 * rows);
  expect("mean", mean.size(), rows * size);
  expect("best", best.size(), rows * size);
  expect("keep", keep.size(), rows * size * kept);
  if (colouring.size() > 0) expect("colouring", colouring.size(), static_cast<long>(horizon) * horizon);
  job.matrices = matrices.data();
  job.low = low.data();
  job.high = high.data();
  job.parameters = parameters.data();
  job.futures = static_cast<int>(futures);
  job.tail = tail > 0 ? tail : job.futures;
  job.noisy = noisy && sizes[5] > 0;
  job.truncated = truncated;
  job.rows = static_cast<int>(rows);
  job.horizon = horizon;
  job.iterations = static_cast<int>(populations.size());
  job.populations = populations.data();
  job.elites = elites;
  job.kept = kept;
  job.average = average;
  job.sigma = numbers[0];
  job.temperature = numbers[1];
  job.momentum = numbers[2];
  job.discount = numbers[3];
  job.limited = !std::isnan(numbers[4]);
  job.cost_limit = job.limited ? numbers[4] : 0.0f;
  job.colouring = colouring.size() > 0 ? colouring.data() : nullptr;
  job.draws = reinterpret_cast<const long long*>(draws.data());
  job.states = states.data();
  job.mean = mean.data();
  job.best = best.data();
  job.keep = keep.data();
  const Found found = find_system(system);
  const nb::gil_scoped_release release;
  const long bytes = found.functions().plan_bytes(job);
  threads = threads < job.rows ? threads : job.rows;
  threads = threads > 1 ? threads : 1;
  std::vector<std::unique_ptr<char[], Free>> scratch;
  for (int k = 0; k < threads; ++k)
    scratch.emplace_back(static_cast<char*>(::operator new[](static_cast<std::size_t>(bytes), std::align_val_t(64))));
  std::atomic<int> next{0};
  together(threads, [&](int thread) {
    char* const memory = scratch[static_cast<std::size_t>(thread)].get();
    for (int row = next.fetch_add(1); row < job.rows; row = next.fetch_add(1))
      found.functions().plan_row(found.index, job, row, memory);
  });
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def("plan", &plan, "system"_a, "sizes"_a, "horizon"_a, "populations"_a, "elites"_a, "kept"_a, "average"_a,
        "numbers"_a, "matrices"_a.noconvert(), "low"_a.noconvert(), "high"_a.noconvert(), "parameters"_a.noconvert(),
        "colouring"_a.noconvert(), "draws"_a.noconvert(), "states"_a.noconvert(), "mean"_a.noconvert(),
        "best"_a.noconvert(), "keep"_a.noconvert(), "threads"_a = 1, "tail"_a = 0, "truncated"_a = false, "noisy"_a = false,
        "Plan for every row of the states; mean, best and keep are written in place.");
}

}  // namespace surefoot
