// A network of one row: each weight is read once, so that the caches' speed is what limits it. Eight outputs are summed
// at once, for as many streams of weights, and an input that is loaded serves all of them.
#include "../one_row.h"

#include <cstring>

#include "../maths.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

constexpr long width = register_floats;
constexpr int together = 8;

typedef float Vector __attribute__((vector_size(width * sizeof(float))));
typedef float Unaligned __attribute__((vector_size(width * sizeof(float)), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }

/// Halves are added until one number is left.
inline float sum_of(Vector value) {
  float parts[width];
  std::memcpy(parts, &value, sizeof parts);
  for (long half = width / 2; half > 0; half /= 2)
    for (long i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

template <int n>
inline void outputs(const RowLayer& layer, long first, const float* x, float* y) {
  const float* const w = layer.weights + first * layer.inputs;
  Vector sum[n] = {};
  long i = 0;
  for (; i + width <= layer.inputs; i += width) {
    const Vector v = load(x + i);
    for (int k = 0; k < n; ++k) sum[k] += load(w + k * layer.inputs + i) * v;
  }
  for (int k = 0; k < n; ++k) {
    float total = sum_of(sum[k]);
    for (long j = i; j < layer.inputs; ++j) total += w[k * layer.inputs + j] * x[j];
    y[first + k] = total + layer.biases[first + k];
  }
}

void linear(const RowLayer& layer, const float* x, float* y) {
  long k = 0;
  for (; k + together <= layer.outputs; k += together) outputs<together>(layer, k, x, y);
  for (; k < layer.outputs; ++k) outputs<1>(layer, k, x, y);
}

/// x / (1 + exp(-x)) and its like are written with tanh, which can't overflow.
inline float logistic(float x) { return 0.5f + 0.5f * tanh(0.5f * x); }

/// tanh(log(1 + e^x)) = (n^2 + 2 n) / (n^2 + 2 n + 2) with n = e^x, which for x > 15 is 1 in float32.
inline float mish_factor(float x) {
  const float n = exp(x < 15.0f ? x : 15.0f), m = n * (n + 2.0f);
  return m / (m + 2.0f);
}

void activate(RowActivation kind, long count, const float* x, float* y) {
  switch (kind) {
    case RowActivation::relu:
#pragma omp simd
      for (long k = 0; k < count; ++k) y[k] = x[k] < 0.0f ? 0.0f : x[k];
      break;
    case RowActivation::tanh:
#pragma omp simd
      for (long k = 0; k < count; ++k) y[k] = tanh(x[k]);
      break;
    case RowActivation::silu:
#pragma omp simd
      for (long k = 0; k < count; ++k) y[k] = x[k] * logistic(x[k]);
      break;
    case RowActivation::gelu:
#pragma omp simd
      for (long k = 0; k < count; ++k)
        y[k] = x[k] * (0.5f + 0.5f * tanh(0.797884561f * (x[k] + 0.044715f * x[k] * x[k] * x[k])));
      break;
    case RowActivation::mish:
#pragma omp simd
      for (long k = 0; k < count; ++k) y[k] = x[k] * mish_factor(x[k]);
      break;
  }
}

}  // namespace

void row_forward(const RowNetwork& network, const float* input, float* output, float* scratch) {
  const auto& layers = network.layers;
  float *x = scratch, *y = scratch + network.width, *z = scratch + 2 * network.width;
  const std::size_t last = layers.size() - 1;
  if (last == 0) {
    linear(layers[0], input, output);
    return;
  }
  linear(layers[0], input, x);
  for (std::size_t k = 1; k < last; k += network.residual ? 2 : 1) {
    activate(network.activation, layers[k - 1].outputs, x, y);
    if (network.residual) {
      linear(layers[k], y, z);
      activate(network.activation, layers[k].outputs, z, z);
      linear(layers[k + 1], z, y);
      for (long i = 0; i < layers[k + 1].outputs; ++i) x[i] += y[i];
    } else {
      linear(layers[k], y, x);
    }
  }
  if (!network.residual) activate(network.activation, layers[last - 1].outputs, x, x);
  linear(layers[last], x, output);
}

void row_flow(const RowNetwork& network, const RowFlow& flow, const float* features, float* input, float* x,
              float* scratch) {
  float* const velocity = scratch + network.scratch_floats();
  for (int step = 0; step < flow.steps; ++step) {
    std::memcpy(input + flow.place, x, static_cast<std::size_t>(flow.count) * sizeof(float));
    std::memcpy(input + flow.feature_place, features + step * flow.feature_count,
                static_cast<std::size_t>(flow.feature_count) * sizeof(float));
    row_forward(network, input, velocity, scratch);
    for (long i = 0; i < flow.count; ++i) {
      x[i] += flow.size * velocity[i];
      if (flow.clip) x[i] = clip(x[i], -1.0f, 1.0f);
    }
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
