// The python module surefoot.cuda_ext._native: each part binds its own functions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <string>

#include "level.h"

SUREFOOT_DECLARE(float multiply_add_chains(long rounds))

namespace nb = nanobind;

namespace surefoot {
void bind_systems(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_rollout(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_tape(nb::module_& m);
void bind_gather(nb::module_& m);
void bind_one_row(nb::module_& m);
void bind_counter(nb::module_& m);
void bind_moments(nb::module_& m);
void bind_stream(nb::module_& m);
void bind_plan(nb::module_& m);
}

namespace {

std::string level_name() {
  switch (surefoot::level()) {
    case surefoot::Level::v2: return "v2";
    case surefoot::Level::v3: return "v3";
    case surefoot::Level::v4: return "v4";
    default: return "generic";
  }
}

void choose_level(const std::string& name) {
  using surefoot::Level;
  const Level wanted = name == "v2" ? Level::v2 : name == "v3" ? Level::v3 : name == "v4" ? Level::v4 : Level::generic;
  if (level_name() == name) return;
  if (!surefoot::set_level(wanted)) throw nb::value_error(("this processor has no level " + name).c_str());
}

/// GFLOP/s of one core in multiply-adds on registers: the best of `repeats` runs of about 5 ms.
double peak(int repeats) {
  constexpr long rounds = 100000;
  double best = 0;
  volatile float sink = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sink = sink + SUREFOOT_CALL(multiply_add_chains, rounds);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = 2.0 * 256 * rounds / seconds.count() / 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

/// INTERFACE of cuda_ext/__init__.py: raised there and here with each change of what the bindings take, give or are named.
constexpr int interface_number = 2;

}  // namespace

NB_MODULE(_surefoot_native, m) {
  m.doc() = "Native code of surefoot: batched rollouts and fused networks.";
  m.attr("interface") = interface_number;
  m.def("level", &level_name, "Instruction set in use: v2, v3 or v4 of x86-64, or generic.");
  m.def("set_level", &choose_level, nb::arg("name"), "Use the build for a lower instruction set.");
  m.def("peak", &peak, nb::arg("repeats") = 9, "Best measured float32 GFLOP/s of one core, multiply-adds on registers.");
  surefoot::bind_systems(m);
  surefoot::bind_rows(m);
  surefoot::bind_rollout(m);
  surefoot::bind_dense(m);
  surefoot::bind_tape(m);
  surefoot::bind_gather(m);
  surefoot::bind_one_row(m);
  surefoot::bind_counter(m);
  surefoot::bind_moments(m);
  surefoot::bind_stream(m);
  surefoot::bind_plan(m);
}
