// A block of lanes on the CPU: its arrays, and what does not depend on the system. Read by levels/*.cpp only.
#pragma once

#include "rollout.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

constexpr int lanes = 128;      // amortise what a step costs beside them
constexpr int policy_lanes = 32;  // as many as leave a network's layers in the first cache
constexpr int group = 16;  // lanes whose ends are booked together

/// Structure-of-arrays scratch of one thread; element k of lane l is x[k * lanes + l].
struct Block {
  const Job* job;
  int first, valid;  // environments first .. first + valid - 1; further lanes begin as the last one and are not read
  float *states, *next;  // the step reads the former and writes the latter; then they change places
  float *fresh;          // states that the next episodes begin in
  float *actions, *observations, *parameters, *normals, *noise, *uniforms, *one, *two;
  const float* shared;  // the parameters where all environments have the same
  alignas(64) float reward[lanes], margin[lanes], ends[lanes], total[lanes], cost[lanes], lowest[lanes];
  alignas(64) float running[lanes];  // 1, or 0 for a lane that waits for the others
  alignas(64) int start[lanes], ended[lanes], episode[lanes];
  alignas(64) int used[lanes];  // `fresh` and the next keys are those of the present episode, not of the next one
  alignas(64) float from_total[lanes], from_cost[lanes];  // sums when the present episode began
  alignas(64) int truncated[lanes], diverged[lanes];
  alignas(64) uint32 seed[lanes];
  alignas(64) uint32 key[3][lanes], next_key[3][lanes];  // of process noise, policy noise and random actions
  int deadline;  // no lane reaches its time limit before
  bool any_ended;
  bool all_running;
};

/// The three things that a system does to a block.
struct Operations {
  void (*observe)(Block&);
  void (*step)(Block&, int t);
  void (*prepare)(Block&, int ahead);  // `fresh` for the episode that is `ahead` of the present one
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

template <int n, int k = 0>
SF_INLINE float size_of(const float (&value)[n]) {
  if constexpr (k < n) {
    return abs(value[k]) + size_of<n, k + 1>(value);
  } else {
    return 0.0f;
  }
}

/// Take a step, already in `next`, `reward`, `margin` and `ends`, into the sums of the block, and make it the present.
/// `any_diverged`: some lane has; `any_terminated`: the system ends some lane's episode.
void settle_block(Block& b, int steps, bool any_diverged, bool any_terminated);

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
  enum { has_diverged = 1, has_terminated = 2 };

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

  /// `shared` parameters are scalars, and what depends on them alone leaves the loop. Returns what the lane did.
  template <bool shared>
  SF_INLINE static int step_lane(Block& b, const float* states, float* next, const float* actions,
                                 const float* parameters, const float (&common)[System::parameters],
                                 const float* normals, int l) {
    float s[System::states], a[System::actions], z[draws], p[System::parameters];
    load(s, states, l);
    load(a, actions, l);
    load(z, normals, l);
    if constexpr (shared) {
      copy(p, common);
    } else {
      load(p, parameters, l);
    }
    const Outcome<float> outcome = System::template step<float>(s, a, p, z);
    store(next, s, l);
    b.reward[l] = outcome.reward;
    b.margin[l] = outcome.margin;
    b.ends[l] = outcome.terminated;
    const float size = size_of(s) + 1e-20f * (abs(outcome.reward) + abs(outcome.margin));
    return (size <= SUREFOOT_LARGEST_STATE ? 0 : has_diverged) | (outcome.terminated > 0.5f ? has_terminated : 0);
  }

  static void step(Block& b, int t) {
    const float *const states = b.states, *const actions = b.actions, *const normals = b.normals;
    const float* const p = b.parameters;
    float* const next = b.next;
    float common[System::parameters];
    copy(common, b.shared);
    int any = 0;
    if (b.job->shared) {
#pragma omp simd reduction(| : any)
      for (int l = 0; l < lanes; ++l)  // vectorised
        any |= step_lane<true>(b, states, next, actions, p, common, normals, l);
    } else {
#pragma omp simd reduction(| : any)
      for (int l = 0; l < lanes; ++l)  // vectorised
        any |= step_lane<false>(b, states, next, actions, p, common, normals, l);
    }
    settle_block(b, t + 1, (any & has_diverged) != 0, (any & has_terminated) != 0);
  }

  SF_INLINE static void prepare_lane(Block& b, float* fresh, const float* parameters, int ahead, int l) {
    float s[System::states], u[System::uniforms], p[System::parameters];
    load(p, parameters, l);
    uniforms_of(u, episode_key(b.seed[l], static_cast<uint32>(b.episode[l] + ahead), reset_stream));
    System::template reset<float>(s, u, p);
    store(fresh, s, l);
  }

  static void prepare(Block& b, int ahead) {
    float* const fresh = b.fresh;
    const float* const parameters = b.parameters;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) prepare_lane(b, fresh, parameters, ahead, l);  // vectorised
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
    for (int k = 0; k < n.states * lanes; ++k) b.next[k] = b.states[k];
    System::template step<float, lanes>(n, b.job->matrices, b.next, b.actions, b.parameters, b.normals, b.reward,
                                        b.margin, b.ends);
    settle_block(b, t + 1, true, true);
  }

  static void prepare(Block& b, int ahead) {
    const Sizes& n = b.job->sizes;
    for (int l = 0; l < lanes; ++l) {
      const uint32 key = episode_key(b.seed[l], static_cast<uint32>(b.episode[l] + ahead), reset_stream);
      for (int k = 0; k < n.uniforms; ++k)
        b.uniforms[k * lanes + l] = uniform<float>(key, 0, static_cast<uint32>(k));
    }
    System::template reset<float, lanes>(n, b.job->matrices, b.fresh, b.uniforms, b.parameters);
  }
};

template <class System>
constexpr Operations operations() {
  if constexpr (block_style<System>) {
    return {&BlockOperations<System>::observe, &BlockOperations<System>::step, &BlockOperations<System>::prepare};
  } else {
    return {&LaneOperations<System>::observe, &LaneOperations<System>::step, &LaneOperations<System>::prepare};
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
