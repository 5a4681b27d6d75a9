// What a system does to a block of lanes: one step, observations, the states that episodes begin in.
#pragma once

#include "strides.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

/// What a system does to a block.
struct Operations {
  void (*observe)(Block&);
  void (*step)(Block&, int t);
  int (*stride)(Block&, int t);  // many steps in one go; null where there is no such thing
  // `fresh` of the lanes from .. to - 1, whole groups, for the episode that is `ahead` of the present one
  void (*prepare)(Block&, int ahead, int from, int to);
};

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
    b.ends[l] = outcome.terminated > 0.5f ? 1 : 0;
    return (size_after(s, outcome) <= SUREFOOT_LARGEST_STATE ? 0 : has_diverged) |
           (outcome.terminated > 0.5f ? has_terminated : 0);
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

  static void prepare(Block& b, int ahead, int from, int to) {
    float* const fresh = b.fresh;
    const float* const parameters = b.parameters;
    for (; from < to; from += group) {
#pragma omp simd
      for (int l = from; l < from + group; ++l) prepare_lane(b, fresh, parameters, ahead, l);  // vectorised
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
    for (int k = 0; k < n.states * lanes; ++k) b.next[k] = b.states[k];
    alignas(64) float ends[lanes];
    System::template step<float, lanes>(n, b.job->matrices, b.next, b.actions, b.parameters, b.normals, b.reward,
                                        b.margin, ends);
    for (int l = 0; l < lanes; ++l) b.ends[l] = ends[l] > 0.5f ? 1 : 0;
    settle_block(b, t + 1, true, true);
  }

  /// Of all lanes: those that need it not get what they have.
  static void prepare(Block& b, int ahead, int, int) {
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
    using Whole = BlockOperations<System>;
    return {&Whole::observe, &Whole::step, nullptr, &Whole::prepare};
  } else {
    using Lanes = LaneOperations<System>;
    return {&Lanes::observe, &Lanes::step, &Strides<System>::stride, &Lanes::prepare};
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
