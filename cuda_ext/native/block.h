// A block of lanes on the CPU: its arrays, and what does not depend on the system. Read by levels/*.cpp only.
#pragma once

#include "rollout.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

constexpr int lanes = 64;
constexpr int group = 16;  // lanes that are reset together

/// Structure-of-arrays scratch of one thread; element k of lane l is x[k * lanes + l].
struct Block {
  const Job* job;
  int first, valid;  // environments first .. first + valid - 1; further lanes repeat the last one
  float *states, *fresh, *actions, *observations, *parameters, *normals, *noise, *uniforms, *one, *two;
  const float* shared;  // the parameters where all environments have the same
  alignas(64) float reward[lanes], margin[lanes], ends[lanes], total[lanes], cost[lanes], lowest[lanes];
  alignas(64) float running[lanes];  // 1, or 0 for a lane that waits for the others
  alignas(64) int start[lanes], ended[lanes], episode[lanes];
  alignas(64) uint32 seed[lanes], process_key[lanes], policy_key[lanes], action_key[lanes];
  alignas(64) float from_total[lanes], from_cost[lanes];  // sums when the present episode began
  int length[lanes], terminated[lanes], truncated[lanes], diverged[lanes], finished[lanes], finished_length[lanes];
  float finished_return[lanes], finished_cost[lanes];
  int any_ended;
};

/// The three things that a system does to a block.
struct Operations {
  void (*observe)(Block&);
  void (*step)(Block&, int t);
  void (*reset)(Block&);  // the lanes that have ended
};

template <int n, int k = 0>
SF_INLINE void load(float (&to)[n], const float* from, int l) {
  if constexpr (k < n) {
    to[k] = from[k * lanes + l];
    load<n, k + 1>(to, from, l);
  }
}

template <int n, int k = 0>
SF_INLINE void store(float* to, const float (&from)[n], int l) {
  if constexpr (k < n) {
    to[k * lanes + l] = from[k];
    store<n, k + 1>(to, from, l);
  }
}

template <int n, int k = 0>
SF_INLINE void copy(float (&to)[n], const float* from) {
  if constexpr (k < n) {
    to[k] = from[k];
    copy<n, k + 1>(to, from);
  }
}

/// Where `chosen` is 1; it is 0 elsewhere.
template <int n, int k = 0>
SF_INLINE void keep(float chosen, float (&value)[n], const float* otherwise, int l) {
  if constexpr (k < n) {
    value[k] = chosen > 0.5f ? value[k] : otherwise[k * lanes + l];
    keep<n, k + 1>(chosen, value, otherwise, l);
  }
}

/// Sum of the absolute values: one comparison of it tells whether they are all finite and small. (A comparison for
/// each of them is worse: the compiler works out some for the bounds of a clipped value and makes branches of that.)
template <int n, int k = 0>
SF_INLINE float size_of(const float (&value)[n]) {
  if constexpr (k < n) {
    return abs(value[k]) + size_of<n, k + 1>(value);
  } else {
    return 0.0f;
  }
}

template <int n, int k = 0>
SF_INLINE void uniforms_of(float (&to)[n], uint32 key) {
  if constexpr (k < n) {
    to[k] = uniform<float>(key, 0, k);
    uniforms_of<n, k + 1>(to, key);
  }
}

/// Operations of a system with widths known to the compiler: one loop over lanes each, whose body is one inlined call.
/// (Arrays declared in a simd loop itself would stay in memory, one copy a lane; those of an inlined function end in
/// registers. Pointers are copied out of the block first, or they would be loaded anew for every lane.)
template <class System>
struct LaneOperations {
  static constexpr int draws = System::normals > 0 ? int(System::normals) : 1;

  SF_INLINE static void observe_lane(const float* states, const float* parameters, float* observations, int l) {
    float s[System::states], o[System::observations], p[System::parameters];
    load(s, states, l);
    load(p, parameters, l);
    System::template observe<float>(o, s, p);
    store(observations, o, l);
  }

  static void observe(Block& b) {
    const float *const states = b.states, *const parameters = b.parameters;
    float* const observations = b.observations;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) observe_lane(states, parameters, observations, l);  // vectorised
  }

  /// `shared` parameters are scalars, and what depends on them alone leaves the loop.
  template <bool shared>
  SF_INLINE static int step_lane(Block& b, float* states, const float* actions, const float* parameters,
                                 const float* normals, int steps, int limit, int l) {
    float s[System::states], a[System::actions], z[draws], p[System::parameters];
    load(s, states, l);
    load(a, actions, l);
    load(z, normals, l);
    if constexpr (shared) {
      copy(p, parameters);
    } else {
      load(p, parameters, l);
    }
    const Outcome<float> outcome = System::template step<float>(s, a, p, z);
    float reward = outcome.reward, margin = outcome.margin, kept;
    float total = b.total[l], cost = b.cost[l], lowest = b.lowest[l];
    const float size = size_of(s) + 1e-20f * (abs(reward) + abs(margin));
    const float last = steps - b.start[l] >= limit ? 1.0f : 0.0f;
    const int ended =
        settle(b.running[l], size, outcome.terminated, last, reward, margin, total, cost, lowest, kept);
    keep(kept, s, states, l);
    store(states, s, l);
    b.reward[l] = reward;
    b.margin[l] = margin;
    b.total[l] = total;
    b.cost[l] = cost;
    b.lowest[l] = lowest;
    b.ended[l] = ended;
    return ended;
  }

  static void step(Block& b, int t) {
    float* const states = b.states;
    const float *const actions = b.actions, *const normals = b.normals;
    const int limit = b.job->limit, steps = t + 1;
    int any = 0;
    if (b.job->shared) {
      const float* const p = b.shared;
#pragma omp simd reduction(| : any)
      for (int l = 0; l < lanes; ++l)  // vectorised
        any |= step_lane<true>(b, states, actions, p, normals, steps, limit, l);
    } else {
      const float* const p = b.parameters;
#pragma omp simd reduction(| : any)
      for (int l = 0; l < lanes; ++l)  // vectorised
        any |= step_lane<false>(b, states, actions, p, normals, steps, limit, l);
    }
    b.any_ended = any;
  }

  SF_INLINE static void reset_lane(const Block& b, float* states, const float* parameters, int l) {
    float s[System::states], u[System::uniforms], p[System::parameters];
    load(p, parameters, l);
    uniforms_of(u, episode_key(b.seed[l], static_cast<uint32>(b.episode[l]), reset_stream));
    System::template reset<float>(s, u, p);
    keep(b.ended[l] != 0 ? 1.0f : 0.0f, s, states, l);
    store(states, s, l);
  }

  static void reset(Block& b) {
    float* const states = b.states;
    const float* const parameters = b.parameters;
    for (int from = 0; from < lanes; from += group) {
      int any = 0;
      for (int l = from; l < from + group; ++l) any |= b.ended[l];
      if (any == 0) continue;
#pragma omp simd
      for (int l = from; l < from + group; ++l) reset_lane(b, states, parameters, l);  // vectorised
    }
  }
};

/// Operations of a system with widths chosen at run time, which loops over the lanes itself.
template <class System>
struct BlockOperations {
  static void observe(Block& b) {
    System::template observe<float, lanes>(b.job->sizes, b.job->matrices, b.observations, b.states, b.parameters);
  }

  static void step(Block& b, int t) {
    const Sizes& n = b.job->sizes;
    for (int k = 0; k < n.states * lanes; ++k) b.fresh[k] = b.states[k];
    System::template step<float, lanes>(n, b.job->matrices, b.fresh, b.actions, b.parameters, b.normals, b.reward,
                                        b.margin, b.ends);
    alignas(64) float size[lanes], kept[lanes];
    for (int l = 0; l < lanes; ++l) size[l] = 1e-20f * (abs(b.reward[l]) + abs(b.margin[l]));
    for (int k = 0; k < n.states; ++k)
      for (int l = 0; l < lanes; ++l) size[l] += abs(b.fresh[k * lanes + l]);
    int any = 0;
    for (int l = 0; l < lanes; ++l) {
      const float last = t + 1 - b.start[l] >= b.job->limit ? 1.0f : 0.0f;
      b.ended[l] = settle(b.running[l], size[l], b.ends[l], last, b.reward[l], b.margin[l], b.total[l], b.cost[l],
                          b.lowest[l], kept[l]);
      any |= b.ended[l];
    }
    for (int k = 0; k < n.states; ++k)
      for (int l = 0; l < lanes; ++l)
        b.states[k * lanes + l] = kept[l] > 0.5f ? b.fresh[k * lanes + l] : b.states[k * lanes + l];
    b.any_ended = any;
  }

  static void reset(Block& b) {
    const Sizes& n = b.job->sizes;
    for (int l = 0; l < lanes; ++l) {
      const uint32 key = episode_key(b.seed[l], static_cast<uint32>(b.episode[l]), reset_stream);
      for (int k = 0; k < n.uniforms; ++k)
        b.uniforms[k * lanes + l] = uniform<float>(key, 0, static_cast<uint32>(k));
    }
    System::template reset<float, lanes>(n, b.job->matrices, b.fresh, b.uniforms, b.parameters);
    for (int k = 0; k < n.states; ++k)
      for (int l = 0; l < lanes; ++l)
        if (b.ended[l] != 0) b.states[k * lanes + l] = b.fresh[k * lanes + l];
  }
};

template <class System>
constexpr Operations operations() {
  if constexpr (block_style<System>) {
    return {&BlockOperations<System>::observe, &BlockOperations<System>::step, &BlockOperations<System>::reset};
  } else {
    return {&LaneOperations<System>::observe, &LaneOperations<System>::step, &LaneOperations<System>::reset};
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
