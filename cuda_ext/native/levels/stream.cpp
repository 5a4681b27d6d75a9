// Streaming agents: forward, gradients by hand, traces, the bound and the weights, in as few passes as can be.
//
// For each network of a stream: (1) one pass over w gives the outputs at S and S'; (2) layer by layer from the top, one
// pass over w and z gives the gradient below, the new trace and its L1 norm; (3) one pass over z and w moves the weights
// and, where an action follows, computes the layer's outputs for it from the weights just moved.
#include "../stream.h"

#include <cstring>

#include "../stream_policy.h"
#include "../stream_rows.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

template <class T>
constexpr T slope = T(0.01);  // of LeakyReLU at and below 0

/// Subnormal numbers count as 0 while this lives: a trace that decays for long would make some processors crawl.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | 0x8040u); }
  ~FlushSubnormals() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
#else
  FlushSubnormals() {}
#endif
};

/// The stream that is being done, and the one that will be next: its memory is asked for while this one's is worked on.
struct Turn {
  long stream, next;

  /// How far beyond a number of this stream's network lies the same number of the next one's.
  template <class T>
  long ahead(const StreamNetwork<T>& net) const {
    return (next - stream) * net.stride;
  }
};

// ---- the network ----

/// activation = LeakyReLU(layer norm of what is in `normal`); returns 1 over the standard deviation.
template <class T>
T activate(T* __restrict__ normal, T* __restrict__ activation, long count, bool layer_norm) {
  T inverse = 1;
  if (layer_norm) {
    T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < count; ++i) sum += normal[i];
    const T mean = sum / T(count);
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < count; ++i) squares += (normal[i] - mean) * (normal[i] - mean);
    inverse = T(1) / root(squares / T(count) + T(1e-5));
#pragma omp simd
    for (long i = 0; i < count; ++i) normal[i] = (normal[i] - mean) * inverse;
  }
#pragma omp simd
  for (long i = 0; i < count; ++i) activation[i] = normal[i] > T(0) ? normal[i] : slope<T> * normal[i];
  fill_tail(activation, count);
  return inverse;
}

/// d = gradient of a hidden layer's products, from that of its activations.
template <class T>
void through_activation(const T* __restrict__ above, const T* __restrict__ normal, T inverse, T* __restrict__ d,
                        long count, bool layer_norm) {
  T sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
  for (long i = 0; i < count; ++i) {
    d[i] = normal[i] > T(0) ? above[i] : slope<T> * above[i];
    sum += d[i];
    along += d[i] * normal[i];
  }
  if (!layer_norm) return;
  sum /= T(count);
  along /= T(count);
#pragma omp simd
  for (long i = 0; i < count; ++i) d[i] = (d[i] - sum - normal[i] * along) * inverse;
}

/// The network at N samples whose inputs are in place; with `moving`, its weights move by scale * trace first.
template <class T, int N, bool moving = false>
void forward(const StreamNetwork<T>& net, Turn turn, const StreamSample<T>* const (&samples)[N], bool layer_norm,
             T scale = 0) {
  const long ahead = turn.ahead(net);
  long at = turn.stream * net.stride;
  for (int l = 0; l < net.layers; ++l) {
    const long inputs = net.sizes[l], outputs = net.sizes[l + 1];
    const bool hidden = l + 1 < net.layers;
    const T* in[N];
    T* out[N];
    for (int n = 0; n < N; ++n) {
      in[n] = samples[n]->activations[l];
      out[n] = hidden ? samples[n]->normal[l] : samples[n]->outputs;
    }
    layer_forward<T, N, moving>(net.weights + at, net.traces + at, scale, in, out, inputs, outputs, ahead);
    for (int n = 0; n < N && hidden; ++n)
      samples[n]->inverses[l] = activate(samples[n]->normal[l], samples[n]->activations[l + 1], outputs, layer_norm);
    at += (inputs + 1) * outputs;
  }
}

/// Traces of the network at S, for the gradient `s.above` of its outputs. Returns their L1 norm.
template <class T>
T accumulate(const Stream<T>& s, const StreamNetwork<T>& net, Turn turn, T decay) {
  const long ahead = turn.ahead(net);
  long at = turn.stream * net.stride + net.parameters;
  T total = 0;
  for (int l = net.layers - 1; l >= 0; --l) {
    const long inputs = net.sizes[l], outputs = net.sizes[l + 1];
    at -= (inputs + 1) * outputs;
    const T* const x = net.here.activations[l];
    if (l == 0) {
      total += layer_traces<T, false>(net.weights + at, net.traces + at, decay, s.above, x, nullptr, inputs, outputs,
                                      ahead);
    } else {
      total += layer_traces<T, true>(net.weights + at, net.traces + at, decay, s.above, x, s.below, inputs, outputs,
                                     ahead);
      through_activation(s.below, net.here.normal[l - 1], net.here.inverses[l - 1], s.above, inputs,
                         s.settings.layer_norm);
    }
  }
  return total;
}

template <class T>
void set_inputs(const StreamNetwork<T>& net, const StreamSample<T>& sample, const T* from) {
  for (long i = 0; i < net.sizes[0]; ++i) sample.activations[0][i] = from[i];
  fill_tail(sample.activations[0], net.sizes[0]);
}

// ---- one update: traces, bound, weights ----

/// How the weights move once the traces are known: by scale * z, or by scale * z / sqrt(correction * second + epsilon).
template <class T>
struct Move {
  T scale, correction;
};

template <class T>
T* of_stream(T* all, const StreamNetwork<T>& net, long stream) {
  return all + stream * net.stride;
}

/// Traces with the gradient `s.above`, and the step size that the bound allows (ObGD, streaming/traces.py).
template <class T>
Move<T> prepare(const Stream<T>& s, const StreamNetwork<T>& net, Turn turn, double delta, bool cut) {
  const StreamSettings& c = s.settings;
  const long stream = turn.stream;
  T* const z = of_stream(net.traces, net, stream);
  if (cut) std::memset(z, 0, net.parameters * sizeof(T));
  double size = accumulate(s, net, turn, static_cast<T>(c.decay));
  if (c.optimizer == StreamOptimizer::sgd) return {static_cast<T>(c.learning_rate * delta), T(0)};
  T correction = 0;
  if (c.optimizer == StreamOptimizer::adaptive) {
    correction = static_cast<T>(1 / (1 - __builtin_pow(c.beta2, static_cast<double>(s.count[stream]))));
    size = second_moments(of_stream(net.second, net, stream), z, static_cast<T>(delta), static_cast<T>(c.beta2),
                          correction, static_cast<T>(c.epsilon_adaptive), net.parameters);
  }
  const double error = delta < 0 ? -delta : delta;
  const double bound = c.step_size * net.kappa * (error > 1 ? error : 1) * size;
  return {static_cast<T>(c.step_size / (bound > 1 ? bound : 1) * delta), correction};
}

template <class T>
void apply(const Stream<T>& s, const StreamNetwork<T>& net, Turn turn, const Move<T>& step) {
  const long stream = turn.stream;
  T* const w = of_stream(net.weights, net, stream);
  const T* const z = of_stream(net.traces, net, stream);
  if (s.settings.optimizer == StreamOptimizer::adaptive)
    move_adaptively(w, z, of_stream(net.second, net, stream), step.scale, step.correction,
                    static_cast<T>(s.settings.epsilon_adaptive), net.parameters);
  else
    move(w, z, step.scale, net.parameters, turn.ahead(net));
}

template <class T>
void clear_traces(const StreamNetwork<T>& net, long stream) {
  std::memset(of_stream(net.traces, net, stream), 0, net.parameters * sizeof(T));
}

// ---- learning ----

/// The transition's end, as learning and the traces see it.
struct End {
  bool done, bootstraps;
};

template <class T>
End end_of(const Stream<T>& s, long stream) {
  const bool terminated = s.in_terminated[stream] != 0, done = terminated || s.in_truncated[stream] != 0;
  return {done, !(s.settings.official_time_limit ? done : terminated)};
}

/// The critic's part of an update: the TD error, and the critic's traces. Leaves its weights for the caller to move.
template <class T>
Move<T> learn_critic(const Stream<T>& s, Turn turn, const End& end, double& delta) {
  const StreamSettings& c = s.settings;
  const long stream = turn.stream;
  const StreamNetwork<T>& net = s.critic;
  set_inputs(net, net.here, s.states + stream * c.observations);
  set_inputs(net, net.next, s.following + stream * c.observations);
  const StreamSample<T>* const both[2] = {&net.here, &net.next};
  forward<T, 2>(net, turn, both, c.layer_norm);
  const long outputs = net.sizes[net.layers];
  const bool of_actions = c.kind == StreamKind::q || c.kind == StreamKind::sarsa;
  const long taken = of_actions ? s.chosen.choices[stream] : 0;
  const long follows = c.kind == StreamKind::q       ? best_of(net.next.outputs, outputs)
                       : c.kind == StreamKind::sarsa ? s.next_chosen.choices[stream]
                                                     : 0;
  delta = scaled_reward(s, stream, end.done) - static_cast<double>(net.here.outputs[taken]);
  if (end.bootstraps) delta += c.discount * static_cast<double>(net.next.outputs[follows]);
  s.out_td[stream] = delta;
  for (long i = 0; i < outputs; ++i) s.above[i] = i == taken ? T(1) : T(0);
  if (c.optimizer == StreamOptimizer::adaptive) s.count[stream] += 1;
  const bool cut = c.kind == StreamKind::q && c.cut == StreamCut::watkins && s.explored[stream];
  return prepare(s, net, turn, delta, cut);
}

template <class T>
Move<T> learn_actor(const Stream<T>& s, Turn turn, double delta) {
  const long stream = turn.stream;
  const StreamNetwork<T>& net = s.actor;
  set_inputs(net, net.here, s.states + stream * s.settings.observations);
  const StreamSample<T>* const here[1] = {&net.here};
  forward<T, 1>(net, turn, here, s.settings.layer_norm);
  const double direction = delta > 0 ? 1.0 : delta < 0 ? -1.0 : 0.0;
  policy_gradient(s, stream, static_cast<T>(s.settings.entropy * direction));
  return prepare(s, net, turn, delta, false);
}

template <class T>
void copy_action(const Stream<T>& s, long stream, const StreamActions<T>& to) {
  const long actions = s.settings.actions;
  if (s.settings.discrete)
    to.choices[stream] = s.next_chosen.choices[stream];
  else
    std::memcpy(to.values + stream * actions, s.next_chosen.values + stream * actions, actions * sizeof(T));
}

template <class T>
void step(const Stream<T>& s, Turn turn, int phases) {
  const StreamSettings& c = s.settings;
  const long stream = turn.stream;
  const bool has_actions = c.kind != StreamKind::td;
  const bool first = s.in_ended_with_first[stream] != 0;
  const StreamNetwork<T>& acting = c.kind == StreamKind::ac ? s.actor : s.critic;
  const StreamSample<T>* const sample[1] = {&acting.next};
  const T* const following = s.following + stream * c.observations;
  const End end = end_of(s, stream);

  if (phases & stream_observe) normalise(s, stream, s.in_observations);
  if ((phases & stream_act_before) && has_actions) {
    set_inputs(acting, acting.next, following);
    forward<T, 1>(acting, turn, sample, c.layer_norm);
    choose(s, stream, acting.next.outputs);
    copy_action(s, stream, s.out_actions);
  }

  // The acting network's weights move below, together with its forward pass for the action.
  const bool learns = (phases & stream_learn) && s.ready[stream];
  Move<T> moved = {};
  if (learns) {
    double delta;
    moved = learn_critic(s, turn, end, delta);
    if (c.kind == StreamKind::ac) {
      apply(s, s.critic, turn, moved);
      if (end.done) clear_traces(s.critic, stream);
      moved = learn_actor(s, turn, delta);
    }
    s.learned[stream] += 1;
  }
  if ((phases & stream_reset) && first) normalise(s, stream, s.in_first);

  // An action chosen before learning stays, except where a new episode has started since.
  const bool acts = has_actions && (phases & stream_act) && (!(phases & stream_act_before) || first);
  if (acts) set_inputs(acting, acting.next, following);
  if (learns && acts && c.optimizer != StreamOptimizer::adaptive) {
    forward<T, 1, true>(acting, turn, sample, c.layer_norm, moved.scale);
  } else {
    if (learns) apply(s, acting, turn, moved);
    if (acts) forward<T, 1>(acting, turn, sample, c.layer_norm);
  }
  if (learns) {
    const bool cut = c.kind == StreamKind::q && c.cut == StreamCut::official && s.explored[stream];
    if (end.done || cut) clear_traces(acting, stream);
  }
  if (acts) {
    choose(s, stream, acting.next.outputs);
    copy_action(s, stream, s.out_actions);
  }

  if (phases & stream_shift) {
    std::memcpy(s.states + stream * c.observations, following, c.observations * sizeof(T));
    if (has_actions) {
      copy_action(s, stream, s.chosen);
      copy_action(s, stream, s.out_actions);
      s.explored[stream] = s.next_explored[stream];
    }
    s.ready[stream] = !end.done || first;
  }
}

/// Each call goes the other way round: where the cache can't hold all streams, what the last call left there comes first.
template <class T>
void all(const Stream<T>& s, int phases, bool backwards) {
  const FlushSubnormals flush;
  const long by = backwards ? -1 : 1, end = backwards ? -1 : s.streams;
  const auto active = [&](long stream) {
    while (stream != end && !s.in_active[stream]) stream += by;
    return stream;
  };
  long stream = active(backwards ? s.streams - 1 : 0);
  while (stream != end) {
    const long next = active(stream + by);
    step(s, {stream, next == end ? stream : next}, phases);
    stream = next;
  }
}

}  // namespace

void stream_run(const Stream<float>& stream, int phases, bool backwards) { all(stream, phases, backwards); }
void stream_run(const Stream<double>& stream, int phases, bool backwards) { all(stream, phases, backwards); }

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
