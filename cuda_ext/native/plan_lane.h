// What plans on a processor (levels/plan.cpp) and on a GPU (plan.cuh) have in common. Device-clean.
#pragma once

#include "plan.h"
#include "random.h"

namespace surefoot {

/// After those of random.h; world_models/draws.py has the same.
constexpr uint32 candidate_stream = 5, future_stream = 6;

SF_INLINE float infinity() { return float_of(0x7f800000u); }

/// The key of a plan's draws for something, of row `row`.
SF_INLINE uint32 plan_key(const PlanJob& job, int row, uint32 stream) {
  return episode_key(static_cast<uint32>(job.draws[2 * row]), static_cast<uint32>(job.draws[2 * row + 1]), stream);
}

/// The key of candidate, or future, `number` of a plan.
SF_INLINE uint32 numbered(uint32 key, int number) { return mix(key + static_cast<uint32>(number) * 0x85ebca6bu); }

/// The key of step `t` of a future.
SF_INLINE uint32 of_step(uint32 key, int t) { return mix(key + static_cast<uint32>(t) * 0x9e3779b9u); }

/// Writes standard normal numbers 2 * pair and 2 * pair + 1 of (futures, horizon, normals), where the process has any.
SF_INLINE void draw_future(float* to, const PlanJob& job, uint32 key, int future, int t) {
  const int width = job.sizes.normals;
  const uint32 now = of_step(numbered(key, future), t);
  for (int k = 0; k < width; k += 2) {
    float first, second;
    normals(now, 0u, static_cast<uint32>(k / 2), first, second);
    to[(future * job.horizon + t) * width + k] = first;
    if (k + 1 < width) to[(future * job.horizon + t) * width + k + 1] = second;
  }
}

/// erf(x): Abramowitz and Stegun's 7.1.26, absolute error 1.5e-7.
SF_INLINE float error_function(float x) {
  const float z = abs(x), t = 1.0f / (1.0f + 0.3275911f * z);
  const float tail = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  return float_of(bits_of(1.0f - tail * exp(-z * z)) | (bits_of(x) & 0x80000000u));
}

/// A standard normal number as one of the normal distribution cut at two deviations, in the same order: sqrt(2)
/// erfinv(erf(sqrt(2)) erf(x / sqrt(2))), the inverse by the central polynomial of Giles (2012), whose range it is.
SF_INLINE float truncated_normal(float x) {
  const float y = 0.954499736f * error_function(0.707106781f * x);
  const float w = -log((1.0f - y) * (1.0f + y)) - 2.5f;
  float p = 2.81022636e-08f;
  p = 3.43273939e-07f + p * w;
  p = -3.5233877e-06f + p * w;
  p = -4.39150654e-06f + p * w;
  p = 0.00021858087f + p * w;
  p = -0.00125372503f + p * w;
  p = -0.00417768164f + p * w;
  p = 0.246640727f + p * w;
  p = 1.50140941f + p * w;
  return 1.41421356f * p * y;
}

/// A candidate's action from a standard normal number: clipped, or truncated at two deviations, which are then at most half
/// the way to a bound.
template <bool truncated>
SF_INLINE float action_of(float mean, float deviation, float white) {
  if constexpr (truncated) {
    const float room = max(min(1.0f - mean, 1.0f + mean), 0.0f);
    return clip(mean + min(deviation, 0.5f * room) * truncated_normal(white), -1.0f, 1.0f);
  } else {
    return clip(mean + deviation * white, -1.0f, 1.0f);
  }
}

/// A step into the sums of a lane. `fine`: the state is a number, and not too large. After an end each step costs what that
/// of the end did: a plan that crashes is not a cheap one.
SF_INLINE void count_step(float& total, float& cost, float& last, float& alive, float& wild, float reward, float margin,
                          float ended, float size, float scale) {
  const float fine = size <= SUREFOOT_LARGEST_STATE ? 1.0f : 0.0f;
  const float earns = alive * fine;
  total = total + (earns > 0.5f ? scale * reward : 0.0f);
  last = alive > 0.5f ? (margin >= 0.0f ? 0.0f : 1.0f) : last;
  cost = cost + last;
  wild = wild + alive * (1.0f - fine);
  alive = earns * (1.0f - ended);
}

/// Mean of the `tail` least of the futures' values, `apart` from each other; they are put in another order.
SF_INLINE float of_worst(float* values, int apart, int futures, int tail) {
  float sum = 0.0f;
  for (int k = 0; k < tail; ++k) {
    int least = k;
    for (int m = k + 1; m < futures; ++m) least = values[m * apart] < values[least * apart] ? m : least;
    sum += values[least * apart];
    values[least * apart] = values[k * apart];
  }
  return sum / static_cast<float>(tail);
}

/// What a candidate comes to: `spent` is 0 within the limit, else its cost, and infinite where it is no number; of equal ones the
/// larger `value` is the better one.
SF_INLINE void judge(const PlanJob& job, float total, float cost, float wild, float& spent, float& value) {
  const bool number = wild == 0.0f, feasible = !job.limited || cost <= job.cost_limit;
  spent = !number ? infinity() : feasible ? 0.0f : cost;
  value = number ? total : -infinity();
}

SF_INLINE bool better(float spent, float value, float other_spent, float other_value) {
  return spent < other_spent || (spent == other_spent && value > other_value);
}

}  // namespace surefoot
