#include "level.h"

#include <atomic>

namespace surefoot {
namespace {

Level best() {
#ifdef SUREFOOT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return Level::v4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return Level::v3;
  return Level::v2;
#else
  return Level::generic;
#endif
}

std::atomic<Level> chosen{best()};

}  // namespace

Level level() { return chosen.load(std::memory_order_relaxed); }

bool set_level(Level wanted) {
  const Level highest = best();
  if ((highest == Level::generic) != (wanted == Level::generic) || wanted > highest) return false;
  chosen.store(wanted, std::memory_order_relaxed);
  return true;
}

}  // namespace surefoot
