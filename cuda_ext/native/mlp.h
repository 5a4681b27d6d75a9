// A multilayer perceptron policy with widths chosen at run time, for a block of L lanes: element k of lane l of an
// array is x[k * L + l]. Device-clean; the GPU has its own forward pass but reads the same packed form.
#pragma once

#include "maths.h"
#include "random.h"

namespace surefoot {

enum class Activation { none = 0, relu = 1, tanh = 2, silu = 3 };
/// Where the Gaussian noise of a sampling policy comes in.
enum class Sampling { none = 0, after_squash = 1, before_squash = 2 };

enum { max_layers = 16, policy_header = 5 };

/// A linear layer, packed in bundles of eight outputs, then one of four, then single ones: first the biases of the
/// bundle, then for each input its weights. Layer norm's gain and shift follow where there is one.
struct Layer {
  int inputs, outputs;
  const float* weights;
  const float* gain;  // null without layer norm
  const float* shift;
};

struct Policy {
  int observations, actions, layers, width;  // width: the largest of the layers'
  Activation activation;
  bool squash;  // tanh of the output; it is clipped to [-1, 1] in any case
  Sampling sampling;
  const float *mean, *inverse_scale;  // of the observations
  const float *middle, *half;         // action = middle + half * output
  const float* deviation;             // after_squash: standard deviations; before_squash: range of their logarithm
  Layer layer[max_layers];
};

/// The policy packed by `NativePolicy.packed`: header = layers, activation, layer norm, squash, sampling, then the
/// widths. Points into `values`.
SF_INLINE Policy unpack(const int* header, const float* values) {
  Policy p{};
  p.layers = header[0];
  p.activation = static_cast<Activation>(header[1]);
  p.squash = header[3] != 0;
  p.sampling = static_cast<Sampling>(header[4]);
  const int* const widths = header + policy_header;
  p.observations = widths[0];
  p.actions = p.sampling == Sampling::before_squash ? widths[p.layers] / 2 : widths[p.layers];
  p.mean = values;
  p.inverse_scale = p.mean + p.observations;
  p.middle = p.inverse_scale + p.observations;
  p.half = p.middle + p.actions;
  p.deviation = p.half + p.actions;
  values = p.deviation + (p.actions > 2 ? p.actions : 2);
  p.width = widths[0];
  for (int k = 0; k < p.layers; ++k) {
    Layer& layer = p.layer[k];
    layer.inputs = widths[k];
    layer.outputs = widths[k + 1];
    layer.weights = values;
    values += (layer.inputs + 1) * layer.outputs;
    if (header[2] != 0 && k + 1 < p.layers) {
      layer.gain = values;
      layer.shift = values + layer.outputs;
      values += 2 * layer.outputs;
    }
    if (layer.outputs > p.width) p.width = layer.outputs;
  }
  return p;
}

/// Without comparisons (see `limited`): it ends the inner loops of layers whose outer loops vectorise.
template <Activation activation>
SF_INLINE float activate(float x) {
  if constexpr (activation == Activation::relu) {
    const uint32 negative = static_cast<uint32>(static_cast<int>(bits_of(x)) >> 31);
    return float_of(bits_of(x) & ~negative);
  }
  if constexpr (activation == Activation::tanh) return tanh_of_limited(limited(x, 8.5f));
  if constexpr (activation == Activation::silu) {
    return x * (0.5f + 0.5f * tanh_of_limited(limited(0.5f * x, 8.5f)));
  }
  return x;
}

// g++ vectorises the loops over lanes below although they hold loops over inputs. clang never does that: it gets a
// vector where g++ has a float, so that the same statements are the inner loop's.
#if defined(__clang__) && !defined(__CUDACC__)
#if defined(__AVX512F__)
enum { at_once = 16 };
#elif defined(__AVX__)
enum { at_once = 8 };
#else
enum { at_once = 4 };
#endif
typedef float Some __attribute__((vector_size(at_once * sizeof(float)), aligned(4), may_alias));
#else
enum { at_once = 1 };
typedef float Some;
#endif

SF_INLINE Some some(const float* from) { return *reinterpret_cast<const Some*>(from); }

template <Activation activation>
SF_INLINE void put(float* to, Some value) {
  if constexpr (at_once == 1) {
    *to = activate<activation>(reinterpret_cast<const float&>(value));
  } else {
    *reinterpret_cast<Some*>(to) = value;
    for (int l = 0; l < at_once; ++l) to[l] = activate<activation>(to[l]);
  }
}

/// Four outputs (of `stride` in their bundle) for lanes l and l + L / 2 at once: eight sums in registers hide the
/// latency of the multiply-adds, and every weight that is loaded serves two of them. Lanes are the outer loop and the
/// one that vectorises, so no branch may be left in it: inputs > 0 is taken for granted.
template <Activation activation, int stride, int L>
SF_FUNCTION void four_outputs(int inputs, const float* w, const float* x, float* y) {
  constexpr int h = L / 2;
#pragma omp simd
  for (int l = 0; l < h; l += at_once) {  // vectorised
    Some s0 = Some{} + w[0], s1 = Some{} + w[1], s2 = Some{} + w[2], s3 = Some{} + w[3];
    Some r0 = s0, r1 = s1, r2 = s2, r3 = s3;
    int i = 0;
    do {
      const Some v = some(x + i * L + l), u = some(x + i * L + h + l);
      const float* const row = w + stride * (i + 1);
      s0 += row[0] * v;
      r0 += row[0] * u;
      s1 += row[1] * v;
      r1 += row[1] * u;
      s2 += row[2] * v;
      r2 += row[2] * u;
      s3 += row[3] * v;
      r3 += row[3] * u;
    } while (++i < inputs);
    put<activation>(y + 0 * L + l, s0);
    put<activation>(y + 1 * L + l, s1);
    put<activation>(y + 2 * L + l, s2);
    put<activation>(y + 3 * L + l, s3);
    put<activation>(y + 0 * L + h + l, r0);
    put<activation>(y + 1 * L + h + l, r1);
    put<activation>(y + 2 * L + h + l, r2);
    put<activation>(y + 3 * L + h + l, r3);
  }
}

/// One output as four partial sums, for the same reason.
template <Activation activation, int L>
SF_FUNCTION void one_output(int inputs, const float* w, const float* x, float* y) {
  const int fours = inputs / 4;
  for (int l = 0; l < L; ++l) y[l] = w[0];
  if (fours > 0) {
#pragma omp simd
    for (int l = 0; l < L; l += at_once) {  // vectorised
      Some s0 = Some{}, s1 = Some{}, s2 = Some{}, s3 = Some{};
      int i = 0;
      do {
        s0 += w[4 * i + 1] * some(x + (4 * i + 0) * L + l);
        s1 += w[4 * i + 2] * some(x + (4 * i + 1) * L + l);
        s2 += w[4 * i + 3] * some(x + (4 * i + 2) * L + l);
        s3 += w[4 * i + 4] * some(x + (4 * i + 3) * L + l);
      } while (++i < fours);
      put<Activation::none>(y + l, some(y + l) + ((s0 + s1) + (s2 + s3)));
    }
  }
  for (int i = 4 * fours; i < inputs; ++i) {
#pragma omp simd
    for (int l = 0; l < L; ++l) y[l] += w[i + 1] * x[i * L + l];  // vectorised
  }
#pragma omp simd
  for (int l = 0; l < L; ++l) y[l] = activate<activation>(y[l]);  // vectorised
}

template <Activation activation, int L>
SF_FUNCTION void linear(const Layer& layer, const float* x, float* y) {
  const float* w = layer.weights;
  int k = 0;
  for (; k + 8 <= layer.outputs; k += 8, w += 8 * (layer.inputs + 1)) {
    four_outputs<activation, 8, L>(layer.inputs, w, x, y + k * L);
    four_outputs<activation, 8, L>(layer.inputs, w + 4, x, y + (k + 4) * L);
  }
  for (; k + 4 <= layer.outputs; k += 4, w += 4 * (layer.inputs + 1))
    four_outputs<activation, 4, L>(layer.inputs, w, x, y + k * L);
  for (; k < layer.outputs; ++k, w += layer.inputs + 1) one_output<activation, L>(layer.inputs, w, x, y + k * L);
}

/// Layer norm over the outputs (variance + 1e-5, as torch's), then the activation, in place.
template <Activation activation, int L>
SF_FUNCTION void normalise(const Layer& layer, float* y) {
  const int n = layer.outputs;
  const float share = 1.0f / static_cast<float>(n);
  float mean[L], scale[L];
#pragma omp simd
  for (int l = 0; l < L; l += at_once) {  // vectorised
    Some sum = Some{};
    int k = 0;
    do sum += some(y + k * L + l);
    while (++k < n);
    put<Activation::none>(mean + l, sum * share);
  }
#pragma omp simd
  for (int l = 0; l < L; l += at_once) {  // vectorised
    Some squares = Some{};
    int k = 0;
    do {
      const Some d = some(y + k * L + l) - some(mean + l);
      squares += d * d;
    } while (++k < n);
    put<Activation::none>(scale + l, squares * share + 1e-5f);
  }
#pragma omp simd
  for (int l = 0; l < L; ++l) scale[l] = 1.0f / sqrt(scale[l]);  // vectorised
  for (int k = 0; k < n; ++k) {
    float* const row = y + k * L;
    const float gain = layer.gain[k], shift = layer.shift[k];
#pragma omp simd
    for (int l = 0; l < L; ++l)  // vectorised
      row[l] = activate<activation>((row[l] - mean[l]) * scale[l] * gain + shift);
  }
}

template <Activation activation, int L>
SF_FUNCTION void hidden(const Layer& layer, const float* x, float* y) {
  if (layer.gain != nullptr) {
    linear<Activation::none, L>(layer, x, y);
    normalise<activation, L>(layer, y);
  } else {
    linear<activation, L>(layer, x, y);
  }
}

/// Actions of L lanes from their observations. Element k of lane l is x[k * stride + l] for observations, actions and
/// `noise`, which is read where the policy samples; `one` and `two` are scratch of width * L each.
template <int L, int stride>
SF_FUNCTION void policy_actions(const Policy& p, const float* observations, const float* noise, float* one, float* two,
                    float* actions) {
  for (int k = 0; k < p.observations; ++k) {
    const float* const o = observations + k * stride;
    float* const to = one + k * L;
    const float mean = p.mean[k], scale = p.inverse_scale[k];
#pragma omp simd
    for (int l = 0; l < L; ++l) to[l] = (o[l] - mean) * scale;  // vectorised
  }
  for (int k = 0; k + 1 < p.layers; ++k) {
    switch (p.activation) {
      case Activation::relu: hidden<Activation::relu, L>(p.layer[k], one, two); break;
      case Activation::tanh: hidden<Activation::tanh, L>(p.layer[k], one, two); break;
      default: hidden<Activation::silu, L>(p.layer[k], one, two); break;
    }
    float* const swapped = one;
    one = two;
    two = swapped;
  }
  linear<Activation::none, L>(p.layer[p.layers - 1], one, two);
  for (int k = 0; k < p.actions; ++k) {
    float *const y = two + k * L, *const action = actions + k * stride;
    const float* const z = noise + k * stride;
    if (p.sampling == Sampling::before_squash) {
      const float* const log_deviation = two + (p.actions + k) * L;
      const float low = p.deviation[0], high = p.deviation[1];
#pragma omp simd
      for (int l = 0; l < L; ++l) y[l] = y[l] + exp(clip(log_deviation[l], low, high)) * z[l];  // vectorised
    }
    if (p.squash) {
#pragma omp simd
      for (int l = 0; l < L; ++l) y[l] = tanh(y[l]);  // vectorised
    }
    if (p.sampling == Sampling::after_squash) {
      const float deviation = p.deviation[k];
#pragma omp simd
      for (int l = 0; l < L; ++l) y[l] = y[l] + deviation * z[l];  // vectorised
    }
    const float middle = p.middle[k], half = p.half[k];
#pragma omp simd
    for (int l = 0; l < L; ++l) action[l] = middle + half * clip(y[l], -1.0f, 1.0f);  // vectorised
  }
}

}  // namespace surefoot
