// A block of lanes on the CPU: its arrays, and what does not depend on the system. Read by levels/*.cpp only.
#pragma once

#include "rollout.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {

constexpr int lanes = 128;      // amortise what a step costs beside them
constexpr int policy_lanes = 32;  // as many as leave a network's layers in the first cache
constexpr int group = 16;  // lanes whose next episodes are prepared together

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

/// Make what a step has written the present.
inline void turn_over(Block& b) {
  float* const states = b.states;
  b.states = b.next;
  b.next = states;
  Sums* const sums = b.sums;
  b.sums = b.next_sums;
  b.next_sums = sums;
}

/// What is compared with the largest state.
template <int n>
SF_INLINE float size_after(const float (&s)[n], const Outcome<float>& outcome) {
  return size_of(s) + 1e-20f * (abs(outcome.reward) + abs(outcome.margin));
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
