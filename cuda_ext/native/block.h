// A block of lanes on the CPU: its arrays, and what does not depend on the system. Read by levels/*.cpp only.
#pragma once

#include "rollout.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

constexpr int lanes = 128;      // amortise what a step costs beside them
constexpr int policy_lanes = 32;  // as many as leave a network's layers in the first cache
constexpr int group = 16;  // lanes whose next episodes are prepared together
#if defined(__AVX512F__)
constexpr int tile = 32;  // lanes that are simulated in registers: two vectors, whose latencies hide each other
#elif defined(__AVX__)
constexpr int tile = 16;
#else
constexpr int tile = 8;
#endif
constexpr int longest_stride = 256;  // so that sums over a stride bound what they are made of well

/// What a lane has summed up since the call began.
struct Sums {
  alignas(64) float total[lanes], cost[lanes], lowest[lanes];
};

/// Structure-of-arrays scratch of one thread; element k of lane l is x[k * lanes + l].
struct Block {
  const Job* job;
  int first, valid;  // environments first .. first + valid - 1; further lanes begin as the last one and are not read
  float *states, *next;  // the step reads the former and writes the latter; then they change places
  float *fresh;          // states that the next episodes begin in
  float *actions, *observations, *parameters, *normals, *noise, *uniforms, *one, *two;
  const float* shared;  // the parameters where all environments have the same
  Sums *sums, *next_sums;  // likewise
  Sums both_sums[2];
  alignas(64) float reward[lanes], margin[lanes];
  alignas(64) signed char ends[lanes];  // one byte: makes a loop that writes it take four vectors of floats at a time
  alignas(64) float running[lanes];  // 1, or 0 for a lane that waits for the others
  alignas(64) int start[lanes], ended[lanes], episode[lanes];
  alignas(64) int prepared[lanes];  // the episode that `fresh` and the next keys are those of
  alignas(64) float from_total[lanes], from_cost[lanes];  // sums when the present episode began
  alignas(64) int truncated[lanes], diverged[lanes];
  alignas(64) uint32 seed[lanes];
  // of process noise, policy noise and random actions; `key` counts steps of the call, `next_key` those of the episode
  alignas(64) uint32 key[3][lanes], next_key[3][lanes];
  bool draws[3];  // which keys are used
  int turn;       // the group that is prepared next
  int deadline;   // no lane reaches its time limit before
  bool any_ended;
  bool any_truncated;  // perhaps: then look
  bool all_running;
};

enum { process_key, policy_key, action_key };

/// What a system does to a block.
struct Operations {
  void (*observe)(Block&);
  void (*step)(Block&, int t);
  int (*stride)(Block&, int t);  // many steps in one go; null where there is no such thing
  void (*prepare)(Block&, int ahead, int from);  // `fresh` of a group for the episode that is `ahead` of the present
};

template <int apart = lanes, int n, int k = 0>
SF_INLINE void load(float (&to)[n], const float* from, int l) {
  if constexpr (k < n) {
    to[k] = from[k * apart + l];
    load<apart, n, k + 1>(to, from, l);
  }
}

template <int apart = lanes, int n, int k = 0>
SF_INLINE void store(float* to, const float (&from)[n], int l) {
  if constexpr (k < n) {
    to[k * apart + l] = from[k];
    store<apart, n, k + 1>(to, from, l);
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
  if constexpr (k + 1 < n) {
    return abs(value[k]) + size_of<n, k + 1>(value);
  } else {
    return abs(value[k]);
  }
}

/// Take a step, already in `next`, `reward`, `margin` and `ends`, into the sums of the block, and make it the present.
/// `any_diverged`: some lane has; `any_terminated`: the system ends some lane's episode.
void settle_block(Block& b, int steps, bool any_diverged, bool any_terminated);

/// Which episodes end after `steps` steps of the call, by the system or by the time limit.
void end_block(Block& b, int steps);

/// Some lane's flag is not 0.
inline bool some(const signed char* flags) {
  unsigned long long words[lanes / 8], any = 0;
  __builtin_memcpy(words, flags, lanes);
  for (const unsigned long long word : words) any |= word;
  return any != 0;
}

/// Make what a step has written the present.
inline void turn_over(Block& b) {
  float* const states = b.states;
  b.states = b.next;
  b.next = states;
  Sums* const sums = b.sums;
  b.sums = b.next_sums;
  b.next_sums = sums;
}

template <int n, int k = 0>
SF_INLINE float with_squares_of(const float (&value)[n], float sum) {
  if constexpr (k < n) {
    return with_squares_of<n, k + 1>(value, sum + value[k] * value[k]);
  } else {
    return sum;
  }
}

template <int n, int k = 0>
SF_INLINE void uniforms_of(float (&to)[n], uint32 key) {
  if constexpr (k < n) {
    to[k] = uniform<float>(key, 0, k);
    uniforms_of<n, k + 1>(to, key);
  }
}

template <int n, int k = 0>
SF_INLINE void random_actions_of(float (&to)[n], const float (&low)[n], const float (&high)[n], uint32 key, uint32 t) {
  if constexpr (k < n) {
    to[k] = uniform_between(low[k], high[k], key, t, k);
    random_actions_of<n, k + 1>(to, low, high, key, t);
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

  SF_INLINE static float size_after(const float (&s)[System::states], const Outcome<float>& outcome) {
    return size_of(s) + 1e-20f * (abs(outcome.reward) + abs(outcome.margin));
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

  /// One step under actions drawn here, into the sums as well; `of`: where the lane's sums were, `to`: where they go.
  template <int apart>
  SF_INLINE static Outcome<float> random_step(const float* states, float* next, float (&s)[System::states], uint32 key,
                                              const float (&low)[System::actions], const float (&high)[System::actions],
                                              const float (&p)[System::parameters], uint32 t, int l) {
    const float z[draws] = {};
    float a[System::actions];
    load<apart>(s, states, l);
    random_actions_of(a, low, high, key, t);
    const Outcome<float> outcome = System::template step<float>(s, a, p, z);
    store<apart>(next, s, l);
    return outcome;
  }

  SF_INLINE static void add(const Outcome<float>& outcome, const float* total, const float* cost, const float* lowest,
                            float* next_total, float* next_cost, float* next_lowest, int l) {
    next_total[l] = total[l] + rounded(outcome.reward);
    next_cost[l] = outcome.margin < 0.0f ? cost[l] + 1.0f : cost[l];
    next_lowest[l] = outcome.margin < lowest[l] ? outcome.margin : lowest[l];
  }

  /// Returns the bits of the size, which are in order as whole numbers; those of what is no number come last.
  SF_INLINE static uint32 stride_lane(const float* states, float* next, const Sums& sums, Sums& next_sums,
                                      signed char* ends, const uint32* key, const float (&low)[System::actions],
                                      const float (&high)[System::actions], const float (&p)[System::parameters],
                                      uint32 t, int l) {
    float s[System::states];
    const Outcome<float> outcome = random_step<lanes>(states, next, s, key[l], low, high, p, t, l);
    add(outcome, sums.total, sums.cost, sums.lowest, next_sums.total, next_sums.cost, next_sums.lowest, l);
    ends[l] = outcome.terminated > 0.5f ? 1 : 0;
    return bits_of(size_after(s, outcome));
  }

  /// The constants of a stride: `plain` leaves out the terms of the optional parameter, which is 0.
  template <bool plain>
  SF_INLINE static void constants(const Block& b, float (&low)[System::actions], float (&high)[System::actions],
                                  float (&p)[System::parameters]) {
    copy(low, b.job->low);
    copy(high, b.job->high);
    copy(p, b.shared);
    if constexpr (plain) p[optional_parameter<System>] = 0.0f;
  }

  /// Steps from time t on under random actions, with all lanes running, shared parameters, no noise and no records: to
  /// the first after which an episode ends, or before which a lane diverges. Returns the time reached.
  static int stride(Block& b, int t) {
    if constexpr (endless<System>) {
      return long_stride(b, t);
    } else {
      return short_strides(b, t);
    }
  }

  static int short_strides(Block& b, int t) {
    const Job& job = *b.job;
    float p[System::parameters], low[System::actions], high[System::actions];
    constants<false>(b, low, high, p);
    const uint32* const key = b.key[action_key];
    signed char* const ends = b.ends;
    b.any_ended = false;
    while (t < job.horizon && !b.any_ended) {
      const float* const states = b.states;
      float* const next = b.next;
      const Sums& sums = *b.sums;
      Sums& next_sums = *b.next_sums;
      const uint32 time = static_cast<uint32>(t);
      uint32 largest = 0;
#pragma omp simd reduction(max : largest)
      for (int l = 0; l < lanes; ++l)  // vectorised
        largest = max(largest, stride_lane(states, next, sums, next_sums, ends, key, low, high, p, time, l));
      if (largest > bits_of(SUREFOOT_LARGEST_STATE)) break;
      turn_over(b);
      t += 1;
      if (t >= b.deadline || some(ends)) end_block(b, t);
    }
    return t;
  }

  /// What a few lanes keep in registers through a long stride.
  struct Tile {
    alignas(64) float state[System::states * tile], total[tile], cost[tile], lowest[tile], squares[tile];
    alignas(64) uint32 key[tile];
  };

  SF_INLINE static void tile_lane(Tile& x, const float (&low)[System::actions], const float (&high)[System::actions],
                                  const float (&p)[System::parameters], uint32 t, int l) {
    float s[System::states];
    const Outcome<float> outcome = random_step<tile>(x.state, x.state, s, x.key[l], low, high, p, t, l);
    add(outcome, x.total, x.cost, x.lowest, x.total, x.cost, x.lowest, l);
    const float others[2] = {outcome.reward, outcome.margin};
    x.squares[l] = with_squares_of(others, with_squares_of(s, x.squares[l]));
  }

  /// Lanes `from` on, of the present, from time t to time `until`, into the next. Returns whether a lane may have
  /// diverged: it has not if the squares of all that makes up a size add up to so little.
  template <bool plain>
  static bool long_stride_of(Block& b, int from, int t, int until) {
    constexpr float most = SUREFOOT_LARGEST_STATE / (2 * System::states);
    float p[System::parameters], low[System::actions], high[System::actions];
    constants<plain>(b, low, high, p);
    Tile x;
    for (int k = 0; k < System::states; ++k)
      for (int l = 0; l < tile; ++l) x.state[k * tile + l] = b.states[k * lanes + from + l];
    for (int l = 0; l < tile; ++l) {
      x.total[l] = b.sums->total[from + l];
      x.cost[l] = b.sums->cost[from + l];
      x.lowest[l] = b.sums->lowest[from + l];
      x.key[l] = b.key[action_key][from + l];
      x.squares[l] = 0.0f;
    }
    for (; t < until; ++t) {
      const uint32 time = static_cast<uint32>(t);
#pragma omp simd
      for (int l = 0; l < tile; ++l) tile_lane(x, low, high, p, time, l);  // vectorised
    }
    for (int k = 0; k < System::states; ++k)
      for (int l = 0; l < tile; ++l) b.next[k * lanes + from + l] = x.state[k * tile + l];
    int doubtful = 0;
    for (int l = 0; l < tile; ++l) {
      b.next_sums->total[from + l] = x.total[l];
      b.next_sums->cost[from + l] = x.cost[l];
      b.next_sums->lowest[from + l] = x.lowest[l];
      doubtful |= x.squares[l] <= most * most ? 0 : 1;
    }
    return doubtful != 0;
  }

  template <bool plain>
  static bool all_long_strides(Block& b, int t, int until) {
    bool doubtful = false;
    for (int from = 0; from < lanes; from += tile) doubtful |= long_stride_of<plain>(b, from, t, until);
    return doubtful;
  }

  /// A stride of a system that ends no episode: nothing is to be looked at between two time limits.
  static int long_stride(Block& b, int t) {
    int until = t + longest_stride < b.job->horizon ? t + longest_stride : b.job->horizon;
    until = until < b.deadline ? until : b.deadline;
    b.any_ended = false;
    bool plain = false;
    if constexpr (optional_parameter<System> >= 0) plain = b.shared[optional_parameter<System>] == 0.0f;
    bool doubtful;
    if constexpr (optional_parameter<System> >= 0) {
      doubtful = plain ? all_long_strides<true>(b, t, until) : all_long_strides<false>(b, t, until);
    } else {
      doubtful = all_long_strides<false>(b, t, until);
    }
    if (doubtful) return t;
    turn_over(b);
    if (until >= b.deadline) end_block(b, until);
    return until;
  }

  SF_INLINE static void prepare_lane(Block& b, float* fresh, const float* parameters, int ahead, int l) {
    float s[System::states], u[System::uniforms], p[System::parameters];
    load(p, parameters, l);
    uniforms_of(u, episode_key(b.seed[l], static_cast<uint32>(b.episode[l] + ahead), reset_stream));
    System::template reset<float>(s, u, p);
    store(fresh, s, l);
  }

  static void prepare(Block& b, int ahead, int from) {
    float* const fresh = b.fresh;
    const float* const parameters = b.parameters;
#pragma omp simd
    for (int l = from; l < from + group; ++l) prepare_lane(b, fresh, parameters, ahead, l);  // vectorised
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

  /// Of the whole block, with its first group.
  static void prepare(Block& b, int ahead, int) {
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
    return {&Lanes::observe, &Lanes::step, &Lanes::stride, &Lanes::prepare};
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
