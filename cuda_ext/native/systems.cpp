// Which systems there are: those of the module, and those of libraries that python loads.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <string>

#include "library.h"
#include "systems.inc"

namespace nb = nanobind;
using namespace nb::literals;

namespace surefoot {
namespace {

struct Loaded {
  std::string path;
  Library library;
};

/// Loaded libraries, by path; they stay for the life of the process, as what they made may be used as long.
std::deque<Loaded>& loaded() {
  static std::deque<Loaded> all;
  return all;
}

nb::tuple widths(const Sizes& n) {
  return nb::make_tuple(n.states, n.actions, n.observations, n.parameters, n.uniforms, n.normals);
}

nb::dict systems() {
  nb::dict all;
#define SUREFOOT_LIST(system) all[#system] = widths(sizes_of<system>());
  SUREFOOT_SYSTEMS(SUREFOOT_LIST)
#undef SUREFOOT_LIST
  return all;
}

const Library& open_library(const std::string& path) {
  for (const Loaded& one : loaded())
    if (one.path == path) return one.library;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw nb::value_error(dlerror());
  const auto describe = reinterpret_cast<LibraryFunction>(dlsym(handle, SUREFOOT_LIBRARY_FUNCTION));
  if (describe == nullptr) throw nb::value_error((path + " is no library of a system").c_str());
  const Library& library = *describe();
  if (library.layout.job != layout.job || library.layout.plan != layout.plan || library.layout.rows != layout.rows)
    throw nb::value_error((path + " was compiled from other headers than the native module").c_str());
  if (library.levels->at[static_cast<int>(level())].run_block == nullptr)
    throw nb::value_error((path + " was compiled for another processor").c_str());
  loaded().push_back({path, library});
  return loaded().back().library;
}

}  // namespace

/// The system of the module that is called `name`, or that of a library that was loaded from there.
Found find_system(const std::string& name) {
  int index = 0;
#define SUREFOOT_FIND(system)                                  \
  if (name == #system) return {&built_levels(), index}; \
  ++index;
  SUREFOOT_SYSTEMS(SUREFOOT_FIND)
#undef SUREFOOT_FIND
  for (const Loaded& one : loaded())
    if (one.path == name) return {one.library.levels, 0};
  throw nb::value_error(("no native system is called " + name).c_str());
}

/// Widths of a system by the same name; zeros where they are chosen at run time.
Sizes declared_sizes(const std::string& name) {
#define SUREFOOT_WIDTHS(system) \
  if (name == #system) return sizes_of<system>();
  SUREFOOT_SYSTEMS(SUREFOOT_WIDTHS)
#undef SUREFOOT_WIDTHS
  for (const Loaded& one : loaded())
    if (one.path == name) return one.library.sizes;
  throw nb::value_error(("no native system is called " + name).c_str());
}

void bind_systems(nb::module_& m) {
  m.def("systems", &systems, "Name -> (states, actions, observations, parameters, uniforms, normals); 0: at run time.");
  m.def(
      "load_library",
      [](const std::string& path) {
        const Library& library = open_library(path);
        nb::dict found;
        found["name"] = library.name;
        found["sizes"] = widths(library.sizes);
        found["margin"] = library.margin;
        found["state_of"] = library.state_of;
        return found;
      },
      "path"_a, "Load the library of a system; it is called by its path from then on.");
}

}  // namespace surefoot
