// Random numbers by counting: a draw is a hash of (seed, episode, step, stream, index) and needs no state, so that a
// result depends neither on threads nor on blocks nor on the device. cuda_ext/twin.py draws the same bits.
#pragma once

#include "maths.h"

namespace surefoot {

/// What a draw is for; draws of different streams have nothing in common.
enum Stream : uint32 { reset_stream = 1, process_stream = 2, policy_stream = 3, action_stream = 4 };

enum { draws_per_step = 64 };  // index < draws_per_step

/// A bijection of the 32-bit integers in which every bit of x reaches every bit of the result.
SF_INLINE uint32 mix(uint32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

/// The part of a draw that an episode keeps.
SF_INLINE uint32 episode_key(uint32 seed, uint32 episode, uint32 stream) {
  return mix(mix(seed ^ (stream * 0x9e3779b9u)) + episode * 0x85ebca6bu);
}

/// The factor spreads the counter: the hash of numbers that follow each other is not independent enough.
SF_INLINE uint32 draw(uint32 key, uint32 step, uint32 index) {
  return mix(key + (step * draws_per_step + index) * 0x9e3779b9u);
}

/// The key whose step 0 is step `steps` of `key`.
SF_INLINE uint32 later(uint32 key, uint32 steps) { return key + steps * (draws_per_step * 0x9e3779b9u); }

/// [0, 1) in steps of 2^-24; `T` is float or double, the value the same.
template <class T>
SF_INLINE T uniform(uint32 key, uint32 step, uint32 index) {
  return static_cast<T>(static_cast<int>(draw(key, step, index) >> 8)) * T(5.9604644775390625e-8);
}

/// low + (high - low) * uniform, with one product fewer: that with the power of two is exact wherever it stands.
SF_INLINE float uniform_between(float low, float high, uint32 key, uint32 step, uint32 index) {
  const float steps = static_cast<float>(static_cast<int>(draw(key, step, index) >> 8));
  return low + (high - low) * 5.9604644775390625e-8f * steps;
}

/// The standard normal numbers `pair` * 2 and `pair` * 2 + 1 of a step, by Box and Muller's transform of the uniform
/// ones with the same two indices.
template <class T>
SF_INLINE void normals(uint32 key, uint32 step, uint32 pair, T& first, T& second) {
  const T radius = sqrt(T(-2) * log(T(1) - uniform<T>(key, step, 2 * pair)));
  T sine, cosine;
  sine_cosine(T(6.28318530717958648) * uniform<T>(key, step, 2 * pair + 1), sine, cosine);
  first = radius * cosine;
  second = radius * sine;
}

}  // namespace surefoot
