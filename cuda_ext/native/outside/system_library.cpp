// A library with one system of a user's, which cuda_ext/library.py compiles beside levels/{rollout,plan,rows}.cpp.
#include "library.h"
#include "systems.inc"

namespace surefoot {
namespace {

#define SUREFOOT_ONE(system)                                                                                      \
  const Library library = {layout, #system, sizes_of<system>(), has_margin<system>, has_state_of<system>, nullptr};
SUREFOOT_SYSTEMS(SUREFOOT_ONE)
#undef SUREFOOT_ONE

}  // namespace
}  // namespace surefoot

extern "C" __attribute__((visibility("default"))) const surefoot::Library* surefoot_library() {
  static surefoot::Library found = surefoot::library;
  found.levels = &surefoot::built_levels();
  return &found;
}
