// Many steps of a block in one go, under random actions: draws, dynamics and sums in one pass over the lanes. Where the
// system never ends an episode, a few lanes at a time stay in registers through all the steps to the next time limit.
#pragma once

#include "block.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

constexpr int tile = 2 * register_floats;  // lanes simulated in registers: two vectors, whose latencies hide each other
constexpr int longest_stride = 256;  // so that sums over a stride bound what they are made of well

/// Some lane's flag is not 0.
inline bool some(const signed char* flags) {
  unsigned long long words[lanes / 8], any = 0;
  __builtin_memcpy(words, flags, lanes);
  for (const unsigned long long word : words) any |= word;
  return any != 0;
}

template <int n, int k = 0>
SF_INLINE void random_actions_of(float (&to)[n], const float (&low)[n], const float (&high)[n], uint32 key, uint32 t) {
  if constexpr (k < n) {
    to[k] = uniform_between(low[k], high[k], key, t, k);
    random_actions_of<n, k + 1>(to, low, high, key, t);
  }
}

template <int n, int k = 0>
SF_INLINE float with_squares_of(const float (&value)[n], float sum) {
  if constexpr (k < n) {
    return with_squares_of<n, k + 1>(value, sum + value[k] * value[k]);
  } else {
    return sum;
  }
}

template <class System>
struct Strides {
  static constexpr int draws = System::normals > 0 ? int(System::normals) : 1;

  /// One step under actions drawn here.
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

  /// A step into the sums.
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
};

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
