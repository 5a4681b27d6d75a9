// Streaming agents (stream-x): K independent streams, each of which learns from one transition at a time.
#pragma once

#include <cstdint>

namespace surefoot {

enum class StreamKind { td, q, sarsa, ac };
enum class StreamOptimizer { obgd, adaptive, sgd };
enum class StreamCut { watkins, official };

/// What one call does, in this order, for each active stream; bits that may be joined.
enum StreamPhase : int {
  stream_observe = 1,
  stream_act_before = 2,
  stream_learn = 4,
  stream_reset = 8,
  stream_act = 16,
  stream_shift = 32,
};

struct StreamSettings {
  StreamKind kind;
  StreamOptimizer optimizer;
  StreamCut cut;
  bool discrete, layer_norm, normalise_observations, scale_rewards, official_time_limit, clear_before_add;
  long observations, actions;
  double discount, decay;  // `decay` is that of a trace in a step: discount * lambda
  double step_size, entropy, beta2, epsilon_adaptive, learning_rate;
};

constexpr int stream_most_layers = 17;
constexpr long stream_pad = 16;  // numbers that a vector may hold: buffers of one sample are filled up to a multiple

/// What the forward pass of one sample leaves: buffers are in scratch, aligned and filled up.
///
/// After the `stream_padded(n)` numbers of an `activations[l]` lies its tail: the last vector of the n numbers, with
/// zeros in place of those that whole vectors before it hold already.
template <class T>
struct StreamSample {
  T* activations[stream_most_layers];  // of layer l: its input
  T* normal[stream_most_layers];       // of hidden layer l: after the layer norm
  T* inverses;                         // of hidden layer l: 1 over the standard deviation
  T* outputs;
};

/// An MLP whose K flat parameter vectors lie `stride` numbers apart: per layer W (out, in), then b (out).
template <class T>
struct StreamNetwork {
  int layers;
  long sizes[stream_most_layers + 1];
  long parameters, stride;
  double kappa;
  T *weights, *traces, *second;  // `second` for adaptive ObGD only
  StreamSample<T> here, next;    // at S, and at S'
};

/// Actions of all streams: (K, A) numbers, or (K,) choices.
template <class T>
struct StreamActions {
  T* values;
  std::int64_t* choices;
};

/// Memory of K streams, K first; names as in stream.py. Pointers that the settings make needless may be null.
template <class T>
struct Stream {
  StreamSettings settings;
  long streams;
  long noises;  // numbers of noise that a stream needs for an action
  StreamNetwork<T> critic, actor;
  std::int64_t *count, *learned;
  double *observation_count, *observation_mean, *observation_squares;
  double *reward_trace, *reward_count, *reward_mean, *reward_squares;
  T *states, *following;
  StreamActions<T> chosen, next_chosen, out_actions;
  bool *explored, *next_explored, *ready;
  const double *in_observations, *in_first, *in_rewards, *in_epsilon;
  const std::uint8_t *in_terminated, *in_truncated, *in_ended_with_first, *in_active;
  const T* in_noise;
  double* out_td;
  T *above, *below;  // gradients at a layer's output and input
};

constexpr long stream_padded(long count) { return (count + stream_pad - 1) / stream_pad * stream_pad; }

/// Numbers of a buffer for a sample's activations: padded, then the tail.
constexpr long stream_room(long count) { return stream_padded(count) + stream_pad; }

}  // namespace surefoot
