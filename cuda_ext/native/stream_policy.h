// What a streaming agent does beside its networks' layers: running statistics, actions, and the policy's gradient.
// Included by levels/stream.cpp only.
#pragma once

#include "level.h"
#include "stream.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

inline float exponential(float x) { return __builtin_expf(x); }
inline double exponential(double x) { return __builtin_exp(x); }
inline float log_of_1_plus(float x) { return __builtin_log1pf(x); }
inline double log_of_1_plus(double x) { return __builtin_log1p(x); }
inline float logarithm(float x) { return __builtin_logf(x); }
inline double logarithm(double x) { return __builtin_log(x); }

// ---- statistics ----

/// One more number for Welford's moments; the first one sets the mean.
inline void add(double value, double number, double& mean, double& squares) {
  const double before = number == 1 ? value : mean;
  const double after = before + (value - before) / number;
  squares = number == 1 ? 0.0 : squares + (value - before) * (value - after);
  mean = after;
}

/// following = (raw - mean) / standard deviation, after raw has been counted.
template <class T>
void normalise(const Stream<T>& s, long stream, const double* all) {
  const long count = s.settings.observations, at = stream * count;
  const double* __restrict__ const raw = all + at;
  T* __restrict__ const out = s.following + at;
  if (!s.settings.normalise_observations) {
    for (long i = 0; i < count; ++i) out[i] = static_cast<T>(raw[i]);
    return;
  }
  double* __restrict__ const mean = s.observation_mean + at;
  double* __restrict__ const squares = s.observation_squares + at;
  const double number = s.observation_count[stream] += 1;
#pragma omp simd
  for (long i = 0; i < count; ++i) {
    add(raw[i], number, mean[i], squares[i]);
    const double variance = number < 2 ? 1.0 : squares[i] / (number - 1);
    out[i] = static_cast<T>((raw[i] - mean[i]) / __builtin_sqrt(variance + 1e-8));
  }
}

/// The reward over the standard deviation of its discounted sum.
template <class T>
double scaled_reward(const Stream<T>& s, long stream, bool done) {
  const StreamSettings& c = s.settings;
  const double reward = s.in_rewards[stream];
  if (!c.scale_rewards) return reward;
  const double kept = done && c.clear_before_add ? 0.0 : s.reward_trace[stream];
  const double trace = c.discount * kept + reward;
  const double number = s.reward_count[stream] += 1;
  add(trace, number, s.reward_mean[stream], s.reward_squares[stream]);
  s.reward_trace[stream] = done && !c.clear_before_add ? 0.0 : trace;
  const double variance = number < 2 ? 1.0 : s.reward_squares[stream] / (number - 1);
  return reward / __builtin_sqrt(variance + 1e-8);
}

// ---- actions and their gradients ----

template <class T>
long best_of(const T* values, long count) {
  long best = 0;
  for (long i = 1; i < count; ++i) best = values[i] > values[best] ? i : best;
  return best;
}

/// log softmax in place.
template <class T>
void log_softmax(T* values, long count) {
  const T most = values[best_of(values, count)];
  T sum = 0;
  for (long i = 0; i < count; ++i) sum += exponential(values[i] - most);
  const T shift = most + logarithm(sum);
  for (long i = 0; i < count; ++i) values[i] -= shift;
}

template <class T>
T softplus(T x) {
  return (x > T(0) ? x : T(0)) + log_of_1_plus(exponential(x > T(0) ? -x : x));
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

/// The next action from the outputs of the network at `following`, drawn with the noise of this call.
template <class T>
void choose(const Stream<T>& s, long stream, T* outputs) {
  const StreamSettings& c = s.settings;
  const long actions = c.actions;
  const T* const noise = s.in_noise + stream * s.noises;
  if (!c.discrete) {
    T* const to = s.next_chosen.values + stream * actions;
    for (long i = 0; i < actions; ++i) to[i] = outputs[i] + softplus(outputs[actions + i]) * noise[i];
    s.next_explored[stream] = false;
    return;
  }
  if (c.kind == StreamKind::ac) {
    log_softmax(outputs, actions);
    T reached = 0;
    long choice = 0;
    for (; choice < actions - 1; ++choice) {
      reached += exponential(outputs[choice]);
      if (reached > noise[0]) break;
    }
    s.next_chosen.choices[stream] = choice;
    s.next_explored[stream] = false;
    return;
  }
  const long greedy = best_of(outputs, actions);
  long choice = greedy;
  if (noise[0] < static_cast<T>(*s.in_epsilon)) {
    choice = static_cast<long>(noise[1] * T(actions));
    choice = choice < 0 ? 0 : choice < actions ? choice : actions - 1;
  }
  s.next_chosen.choices[stream] = choice;
  s.next_explored[stream] = choice != greedy;
}

/// s.above = gradient of log pi(A|S) + weight * entropy with respect to the actor's outputs at S.
template <class T>
void policy_gradient(const Stream<T>& s, long stream, T weight) {
  const long actions = s.settings.actions;
  T* const outputs = s.actor.here.outputs;
  if (!s.settings.discrete) {
    const T* const taken = s.chosen.values + stream * actions;
    for (long i = 0; i < actions; ++i) {
      const T raw = outputs[actions + i], deviation = softplus(raw);
      const T unit = (taken[i] - outputs[i]) / deviation;
      s.above[i] = unit / deviation;
      s.above[actions + i] = (unit * unit - T(1) + weight) / deviation * sigmoid(raw);
    }
    return;
  }
  log_softmax(outputs, actions);
  T entropy = 0;
  for (long i = 0; i < actions; ++i) entropy -= exponential(outputs[i]) * outputs[i];
  for (long i = 0; i < actions; ++i) {
    const T taken = i == s.chosen.choices[stream] ? T(1) : T(0);
    const T probability = exponential(outputs[i]);
    s.above[i] = taken - probability * (T(1) + weight * (outputs[i] + entropy));
  }
}

}  // namespace
}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
