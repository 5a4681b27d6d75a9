// One environment of a native system in the registers of a thread: what kernels of rollouts and of plans share.
//
// Macros: SF_SYSTEM, SF_SIZES (cuda_ext/cubin.py gives them).
#pragma once

#include "rollout.h"

namespace surefoot {
namespace gpu {

constexpr Sizes sizes = {SF_SIZES}, declared = sizes_of<SF_SYSTEM>();  // declared: zeros where chosen at run time
static_assert(block_style<SF_SYSTEM> || (sizes.states == declared.states && sizes.actions == declared.actions &&
                                         sizes.observations == declared.observations &&
                                         sizes.parameters == declared.parameters &&
                                         sizes.uniforms == declared.uniforms && sizes.normals == declared.normals),
              "the python description has other widths than the header");
/// Arrays can't be empty.
constexpr int drawn_normals = sizes.normals > 0 ? sizes.normals : 1;
constexpr int drawn_uniforms = sizes.uniforms > 0 ? sizes.uniforms : 1;

struct Environment {
  float s[sizes.states], p[sizes.parameters], o[sizes.observations], a[sizes.actions];
};

// ---- the system ----

template <class System = SF_SYSTEM>
SF_INLINE void observe(Environment& e, const float* matrices) {
  if constexpr (block_style<System>) {
    const Sizes n = {SF_SIZES};  // of this function: nvcc has no addresses of global constants
    System::template observe<float, 1>(n, matrices, e.o, e.s, e.p);
  } else {
    System::template observe<float>(e.o, e.s, e.p);
  }
}

template <class System = SF_SYSTEM>
SF_INLINE Outcome<float> step(Environment& e, const float (&z)[drawn_normals], const float* matrices) {
  if constexpr (block_style<System>) {
    Outcome<float> outcome;
    const Sizes n = {SF_SIZES};
    System::template step<float, 1>(n, matrices, e.s, e.a, e.p, z, &outcome.reward, &outcome.margin,
                                    &outcome.terminated);
    return outcome;
  } else {
    return System::template step<float>(e.s, e.a, e.p, z);
  }
}

template <class System = SF_SYSTEM>
SF_INLINE void reset(Environment& e, uint32 seed, uint32 episode, const float* matrices) {
  const uint32 key = episode_key(seed, episode, reset_stream);
  float u[drawn_uniforms];
#pragma unroll
  for (int k = 0; k < drawn_uniforms; ++k) u[k] = uniform<float>(key, 0, static_cast<uint32>(k));
  if constexpr (block_style<System>) {
    const Sizes n = {SF_SIZES};
    System::template reset<float, 1>(n, matrices, e.s, u, e.p);
  } else {
    System::template reset<float>(e.s, u, e.p);
  }
}

/// What `settle` compares with the largest state.
SF_INLINE float size_of(const Environment& e, const Outcome<float>& outcome) {
  float size = 1e-20f * (abs(outcome.reward) + abs(outcome.margin));
#pragma unroll
  for (int k = 0; k < sizes.states; ++k) size += abs(e.s[k]);
  return size;
}

template <int n>
SF_INLINE void draw_normals(float (&z)[n], uint32 key, uint32 time) {
#pragma unroll
  for (int k = 0; k < n; k += 2) {
    float first, second;
    normals(key, time, static_cast<uint32>(k / 2), first, second);
    z[k] = first;
    if (k + 1 < n) z[k + 1] = second;
  }
}

template <int n>
SF_INLINE void read(float (&to)[n], const float* from, long row) {
#pragma unroll
  for (int k = 0; k < n; ++k) to[k] = from[row * n + k];
}

template <int n>
SF_INLINE void write(float* to, const float (&from)[n], long row) {
#pragma unroll
  for (int k = 0; k < n; ++k) to[row * n + k] = from[k];
}

/// Shared memory of the block; how many bytes the launch says.
extern __shared__ float4 shared_memory[];

}  // namespace gpu
}  // namespace surefoot
