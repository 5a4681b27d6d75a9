#include "level.h"

#include <atomic>

#ifdef SUREFOOT_X86
#include <cpuid.h>

#include <initializer_list>
#endif

namespace surefoot {
namespace {

#ifdef SUREFOOT_X86
bool has(unsigned found, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(found >> bit & 1)) return false;
  return true;
}

/// Asks the processor itself: __builtin_cpu_supports knows nothing under zig, whose run-time library has a stub of it.
Level best() {
  unsigned a, b, c, d, basic = 0, more = 0, extended = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) basic = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) more = b;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) extended = c;
  if (!has(basic, {27})) return Level::v2;  // OSXSAVE: the system tells which registers it saves
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  // FMA, MOVBE, AVX, F16C; BMI, AVX2, BMI2; LZCNT; registers xmm and ymm
  const bool v3 =
      has(basic, {12, 22, 28, 29}) && has(more, {3, 5, 8}) && has(extended, {5}) && has(saved, {1, 2});
  // AVX-512 F, DQ, CD, BW, VL; mask registers and zmm
  if (v3 && has(more, {16, 17, 28, 30, 31}) && has(saved, {5, 6, 7})) return Level::v4;
  return v3 ? Level::v3 : Level::v2;
}
#else
Level best() { return Level::generic; }
#endif

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
