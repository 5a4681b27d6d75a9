// The processor's own limit: float32 multiply-adds on registers only, for the benchmarks to compare with.
#include "../level.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

/// 256 independent chains of `rounds` multiply-adds; returns their sum, so that nothing is optimised away.
float multiply_add_chains(long rounds) {
  constexpr int chains = 256;
  float value[chains];
  for (int i = 0; i < chains; ++i) value[i] = static_cast<float>(i) * 1e-3f;
  for (long round = 0; round < rounds; ++round) {
#pragma omp simd
    for (int i = 0; i < chains; ++i) value[i] = value[i] * 0.999f + 1e-3f;
  }
  float sum = 0;
  for (int i = 0; i < chains; ++i) sum += value[i];
  return sum;
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
