// Python's door to the rows of levels/rows.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "level.h"
#include "rows.h"
#include "systems.inc"

SUREFOOT_DECLARE(void rows(int system, Call call, const Rows<float>& rows);
                 void rows(int system, Call call, const Rows<double>& rows))

namespace nb = nanobind;
using namespace nb::literals;

namespace surefoot {

int system_index(const std::string& name) {
  int index = 0;
#define SUREFOOT_FIND(system) \
  if (name == #system) return index; \
  ++index;
  SUREFOOT_SYSTEMS(SUREFOOT_FIND)
#undef SUREFOOT_FIND
  throw nb::value_error(("no native system is called " + name).c_str());
}

namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::dict systems() {
  nb::dict all;
#define SUREFOOT_LIST(system)                                                                     \
  {                                                                                               \
    const Sizes n = sizes_of<system>();                                                           \
    all[#system] = nb::make_tuple(n.states, n.actions, n.observations, n.parameters, n.uniforms, n.normals); \
  }
  SUREFOOT_SYSTEMS(SUREFOOT_LIST)
#undef SUREFOOT_LIST
  return all;
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
  const int system = system_index(name);
  const nb::tuple declared = nb::cast<nb::tuple>(systems()[name.c_str()]);
  const int given[6] = {n.states, n.actions, n.observations, n.parameters, n.uniforms, n.normals};
  for (int k = 0; k < 6 && nb::cast<int>(declared[0]) > 0; ++k)
    if (nb::cast<int>(declared[k]) != given[k]) throw nb::value_error(("widths do not fit " + name).c_str());
  const Call call = what == "reset" ? Call::reset : what == "observe" ? Call::observe : Call::step;
  const Rows<T> rows{static_cast<int>(count), n,          matrices.data(),     parameters.data(), uniforms.data(),
                     actions.data(),          normals.data(), states.data(), observations.data(), rewards.data(),
                     margins.data(),          terminated.data()};
  SUREFOOT_CALL(rows, system, call, rows);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("systems", &systems, "Name -> (states, actions, observations, parameters, uniforms, normals); 0: at run time.");
  m.def("rows", &call_rows<float>, "name"_a, "call"_a, "matrices"_a.noconvert(), "parameters"_a.noconvert(),
        "uniforms"_a.noconvert(), "actions"_a.noconvert(), "normals"_a.noconvert(), "states"_a.noconvert(),
        "observations"_a.noconvert(), "rewards"_a.noconvert(), "margins"_a.noconvert(), "terminated"_a.noconvert(),
        "Reset, observe or step a system row by row, in float32 or float64; states and outputs are written in place.");
  m.def("rows", &call_rows<double>, "name"_a, "call"_a, "matrices"_a.noconvert(), "parameters"_a.noconvert(),
        "uniforms"_a.noconvert(), "actions"_a.noconvert(), "normals"_a.noconvert(), "states"_a.noconvert(),
        "observations"_a.noconvert(), "rewards"_a.noconvert(), "margins"_a.noconvert(), "terminated"_a.noconvert());
}

}  // namespace surefoot
