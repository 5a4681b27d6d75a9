"""The part of an exported C++ header that all policies share; `@WORDS@` are filled in by `core.policy.cpp`."""

from __future__ import annotations

ACTIVATIONS = {
    "relu": "x < 0.0f ? 0.0f : x",  # NaN stays NaN, so that it is noticed
    "tanh": "std::tanh(x)",
    "silu": "x / (1.0f + std::exp(-x))",
    "gelu": "0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f))",
    "gelu_tanh": "0.5f * x * (1.0f + std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)))",
    "leaky_relu": "x > 0.0f ? x : 0.01f * x",
    "mish": "x * std::tanh(x > 20.0f ? x : std::log1p(std::exp(x)))",
}
"""Name of an activation -> its expression of x."""

RUNTIME = """\
// A policy written by surefoot @VERSION@. It needs a C++11 compiler and nothing else; compile it with -O3, and with
// -march=native where it runs on the machine that compiles it.
//
//   @NAME@::Policy policy;                                // at the beginning, and policy.reset() at each episode's
//   float observation[@NAME@::observation_size], action[@NAME@::action_size];
//   if (!policy.act(observation, action)) { /* the observation or the action is not finite: stop the robot */ }
//
// Observations and actions are in the units of the environment; actions are within their bounds. An object remembers
// @HISTORY@ observation(s) and a chunk of @CHUNK@ action(s): use one for each robot, in one thread at a time.@NAMES@
#ifndef @GUARD@
#define @GUARD@

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) || defined(__clang__) || defined(_MSC_VER)
#define SUREFOOT_RESTRICT __restrict
#else
#define SUREFOOT_RESTRICT
#endif

namespace @NAME@ {

constexpr int observation_size = @OBSERVATIONS@;
constexpr int action_size = @ACTIONS@;
constexpr int history = @HISTORY@;
constexpr int chunk = @CHUNK@;@GOAL_SIZE@

namespace detail {

@ARRAYS@

// Whether no number is infinite or NaN, by its bits: compilers may take std::isfinite away under -ffast-math.
inline bool finite(const float* values, int count) {
  for (int k = 0; k < count; ++k) {
    std::uint32_t bits;
    std::memcpy(&bits, values + k, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) return false;
  }
  return true;
}

// y = W x + b; W lies in panels of @PANEL@ outputs.
template <int In, int Out>
inline void dense(const float* SUREFOOT_RESTRICT w, const float* SUREFOOT_RESTRICT b, const float* SUREFOOT_RESTRICT x,
                  float* SUREFOOT_RESTRICT y) {
  for (int p = 0; p < Out; p += @PANEL@) {
    float sum[@PANEL@];
    for (int k = 0; k < @PANEL@; ++k) sum[k] = b[p + k];
    for (int i = 0; i < In; ++i) {
      const float value = x[i];
      for (int k = 0; k < @PANEL@; ++k) sum[k] += w[k] * value;
      w += @PANEL@;
    }
    for (int k = 0; k < @PANEL@; ++k) y[p + k] = sum[k];
  }
}

template <int Width>
inline void active(float* values) {
  for (int k = 0; k < Width; ++k) {
    const float x = values[k];
    values[k] = @ACTIVATION@;
  }
}

template <int Width>
inline void norm(const float* gain, const float* shift, float epsilon, float* values) {
  float mean = 0.0f, variance = 0.0f;
  for (int k = 0; k < Width; ++k) mean += values[k];
  mean /= Width;
  for (int k = 0; k < Width; ++k) variance += (values[k] - mean) * (values[k] - mean);
  const float factor = 1.0f / std::sqrt(variance / Width + epsilon);
  for (int k = 0; k < Width; ++k) values[k] = (values[k] - mean) * factor * gain[k] + shift[k];
}

template <int Width>
inline void unit(float* values) {
  float square = 0.0f;
  for (int k = 0; k < Width; ++k) square += values[k] * values[k];
  const float length = std::sqrt(square) > 1e-12f ? std::sqrt(square) : 1e-12f;
  for (int k = 0; k < Width; ++k) values[k] /= length;
}

}  // namespace detail

class Policy {
 public:
  Policy() { reset(); }

  // Begin an episode: nothing was observed and nothing is planned.
  void reset() {
    std::memset(in, 0, sizeof in);
    queued = 0;@GOAL_RESET@
  }
@GOAL_SET@
@ACT@

 private:
  // Take an observation in; false where it is not finite, and then nothing is changed.
  bool see(const float* observation) {
@GOAL_CHECK@    float seen[observation_size];
    for (int k = 0; k < observation_size; ++k) {
      seen[k] = (observation[k] - detail::mean[k]) / detail::scale[k];
      if (@LIMITED@) seen[k] = seen[k] < -@LIMIT@ ? -@LIMIT@ : seen[k] > @LIMIT@ ? @LIMIT@ : seen[k];
    }
    if (!detail::finite(observation, observation_size) || !detail::finite(seen, observation_size)) return false;
    std::memmove(in, in + observation_size, sizeof(float) * observation_size * (history - 1));
    std::memcpy(in + observation_size * (history - 1), seen, sizeof seen);
    return true;
  }

  void run() {
    @LAYERS@
  }

  alignas(64) float in[observation_size * history@GOAL_MORE@];
  alignas(64) float h0[@WIDEST@];
  alignas(64) float h1[@WIDEST@];
  alignas(64) float out[@PADDED@];
  alignas(64) float plan[@OUTPUTS@];
  int queued;@GOAL_MEMBER@
};

@MORE@
}  // namespace @NAME@

#endif  // @GUARD@
"""
"""The header but for its numbers."""

CLASS = {
    "continuous": """\
  // The action (action_size numbers) for an observation (observation_size numbers). False where the observation or the
  // action is not finite; `action` is then left as it was, and the observation is not remembered.
  bool act(const float* observation, float* action) {
    float before[observation_size * history];
    std::memcpy(before, in, sizeof before);
    if (!see(observation)) return false;
    if (queued == 0) {
      run();
      if (!detail::finite(out, @OUTPUTS@)) {
        std::memcpy(in, before, sizeof before);
        return false;
      }
      for (int k = 0; k < @OUTPUTS@; ++k) {
        const float x = @SQUASHED@ ? std::tanh(out[k]) : out[k];
        const float inside = x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
        const float low = detail::action_low[k % action_size], high = detail::action_high[k % action_size];
        const float scaled = detail::middle[k % action_size] + detail::half[k % action_size] * inside;
        plan[k] = scaled < low ? low : scaled > high ? high : scaled;  // rounding may leave them
      }
      queued = @EXECUTE@;
    }
    std::memcpy(action, plan + action_size * (@EXECUTE@ - queued), sizeof(float) * action_size);
    --queued;
    return true;
  }""",
    "discrete": """\
  // The number of the choice, 0 to action_size - 1, for an observation (observation_size numbers); -1 where the
  // observation or a score is not finite.
  int choose(const float* observation) {
    if (!see(observation)) return -1;
    run();
    if (!detail::finite(out, action_size)) return -1;
    int best = 0;
    for (int k = 1; k < action_size; ++k)
      if (out[k] > out[best]) best = k;
    return best;
  }""",
}
"""The function that acts, by what actions are."""

GOAL_SET = """
  // What this episode is to reach, goal_size numbers in the units of observations; call it behind reset(). False where
  // it is not finite, and then nothing is changed. Without a goal, act gives false.
  bool set_goal(const float* goal) {
    float wanted[goal_size];
    for (int k = 0; k < goal_size; ++k) {
      wanted[k] = (goal[k] - detail::goal_mean[k]) / detail::goal_scale[k];
      if (@GOAL_LIMITED@ && wanted[k] < -@GOAL_LIMIT@) wanted[k] = -@GOAL_LIMIT@;
      if (@GOAL_LIMITED@ && wanted[k] > @GOAL_LIMIT@) wanted[k] = @GOAL_LIMIT@;
    }
    if (!detail::finite(goal, goal_size) || !detail::finite(wanted, goal_size)) return false;
    std::memcpy(in + observation_size * history, wanted, sizeof wanted);
    aimed = true;
    return true;
  }
"""
"""Of policies that are asked for a goal."""
