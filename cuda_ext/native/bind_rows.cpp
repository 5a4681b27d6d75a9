// Python's door to the rows of levels/rows.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "library.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace surefoot {

Found find_system(const std::string& name);      // systems.cpp
Sizes declared_sizes(const std::string& name);  // systems.cpp

namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Call call_of(const std::string& what) {
  if (what == "reset") return Call::reset;
  if (what == "observe") return Call::observe;
  if (what == "step") return Call::step;
  if (what == "margin") return Call::margin;
  if (what == "state_of") return Call::state_of;
  throw nb::value_error(("there is no call " + what).c_str());
}

/// One call for all rows; every array is (N, width), the last three (N, 1).
template <class T>
void call_rows(const std::string& name, const std::string& what, Array<T> matrices, Array<T> parameters,
               Array<T> uniforms, Array<T> actions, Array<T> normals, Array<T> states, Array<T> observations,
               Array<T> rewards, Array<T> margins, Array<T> terminated) {
  const size_t count = states.shape(0);
  for (const Array<T>* a : {&parameters, &uniforms, &actions, &normals, &observations, &rewards, &margins, &terminated})
    if (a->shape(0) != count) throw nb::value_error("every array must have as many rows as the states");
  const auto width = [](const Array<T>& a) { return static_cast<int>(a.shape(1)); };
  const Sizes n{width(states), width(actions), width(observations), width(parameters), width(uniforms), width(normals)};
  const Found system = find_system(name);
  const Sizes d = declared_sizes(name);
  const bool fits = d.states == n.states && d.actions == n.actions && d.observations == n.observations &&
                    d.parameters == n.parameters && d.uniforms == n.uniforms && d.normals == n.normals;
  if (d.states > 0 && !fits) throw nb::value_error(("widths do not fit " + name).c_str());
  const Call call = call_of(what);
  const Rows<T> rows{static_cast<int>(count), n,          matrices.data(),     parameters.data(), uniforms.data(),
                     actions.data(),          normals.data(), states.data(), observations.data(), rewards.data(),
                     margins.data(),          terminated.data()};
  if constexpr (sizeof(T) == sizeof(float)) {
    system.functions().rows_of_floats(system.index, call, rows);
  } else {
    system.functions().rows_of_doubles(system.index, call, rows);
  }
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("rows", &call_rows<float>, "name"_a, "call"_a, "matrices"_a.noconvert(), "parameters"_a.noconvert(),
        "uniforms"_a.noconvert(), "actions"_a.noconvert(), "normals"_a.noconvert(), "states"_a.noconvert(),
        "observations"_a.noconvert(), "rewards"_a.noconvert(), "margins"_a.noconvert(), "terminated"_a.noconvert(),
        "Reset, observe or step a system row by row, in float32 or float64, or ask for margins and states of observations "
        "where it has those; states and outputs are written in place.");
  m.def("rows", &call_rows<double>, "name"_a, "call"_a, "matrices"_a.noconvert(), "parameters"_a.noconvert(),
        "uniforms"_a.noconvert(), "actions"_a.noconvert(), "normals"_a.noconvert(), "states"_a.noconvert(),
        "observations"_a.noconvert(), "rewards"_a.noconvert(), "margins"_a.noconvert(), "terminated"_a.noconvert());
}

}  // namespace surefoot
