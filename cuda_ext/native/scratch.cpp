#include "scratch.h"

#include <cstdint>
#include <memory>

namespace surefoot {

float* scratch(long size) {
  thread_local std::unique_ptr<float[]> memory;
  thread_local long there = 0;
  constexpr long per_line = 64 / sizeof(float);
  if (size > there) {
    memory.reset(new float[size + per_line]);
    there = size;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
  return memory.get() + (64 - address % 64) % 64 / sizeof(float);
}

}  // namespace surefoot
