// The processor's own limit: float32 multiply-adds on registers only, for the benchmarks to compare with.
#include "../level.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

/// Independent chains of multiply-adds, `rounds` times 256 in all; returns their sum, so that nothing is optimised away.
float multiply_add_chains(long rounds) {
  typedef float Vector __attribute__((vector_size(register_bytes)));
  constexpr int chains = 12;  // hide the latency of a multiply-add, and leave registers for its two numbers
  Vector value[chains];
  for (int i = 0; i < chains; ++i) value[i] = Vector{} + static_cast<float>(i) * 1e-3f;
  const long turns = rounds * 256 / (chains * register_floats);
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 16
    for (int i = 0; i < chains; ++i) value[i] = value[i] * 0.999f + 1e-3f;
  }
  Vector sum = {};
  for (int i = 0; i < chains; ++i) sum += value[i];
  float total = 0;
  for (int i = 0; i < register_floats; ++i) total += sum[i];
  return total;
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
