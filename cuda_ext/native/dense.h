// Multilayer perceptrons with layer norms before or after the activations and dropout masks where wanted: forward and
// backward, in float32 on one core.
#pragma once

#include <cstdint>
#include <vector>

#include "level.h"

namespace surefoot {

/// Between the layers. GELU is its approximation by tanh (Hendrycks and Gimpel).
enum class Hidden { relu = 0, tanh = 1, gelu = 2, silu = 3 };
constexpr int hidden_kinds = 4;

/// What dropout masks multiply: what a hidden layer gives, or its weighted sums.
enum class Dropout { none = 0, activations = 1, sums = 2 };
constexpr int dropout_kinds = 3;

/// An ensemble of `members` MLPs of the same sizes; `members` is 1 for a single network.
struct Mlp {
  const long* sizes;            // layers + 1 widths, the input's first
  const float* const* weights;  // a layer each: (members, out, in), contiguous
  const float* const* biases;   // a layer each: (members, out), contiguous
  int layers;
  long members;
  long rows;  // of the batch
  Hidden hidden;
  const float* const* gains;   // a hidden layer each: (members, width); null without layer norms
  const float* const* shifts;  // likewise
  bool norm_after;             // of the activations instead of what they are of
  float norm_epsilon;          // added to the variance
  Dropout dropout;

  bool normed() const { return gains != nullptr; }
  /// Whether a norm stands between the activation and the masks, which are then saved; else they are part of its slopes.
  bool masks_apart() const {
    return normed() && dropout == (norm_after ? Dropout::activations : Dropout::sums);
  }
  /// Whether the activations' slopes are saved: where the activation's output doesn't tell them, or is not kept.
  bool sloped() const {
    return hidden == Hidden::gelu || hidden == Hidden::silu || (normed() && norm_after) ||
           (dropout != Dropout::none && !masks_apart());
  }
  const float* weight(int layer, long member) const {
    return weights[layer] + member * sizes[layer + 1] * sizes[layer];
  }
  const float* bias(int layer, long member) const { return biases[layer] + member * sizes[layer + 1]; }
};

/// Rows of a batch: row b of member e begins at data + e * member_stride + b * row_stride; its numbers are adjacent.
struct Rows {
  const float* data;
  long row_stride;
  long member_stride;  // 0 where all members read the same rows
};

/// Where gradients are wanted; null where they are not.
struct Gradients {
  float* const* weights;  // a layer each, as Mlp::weights
  float* const* biases;
  float* inputs;  // (rows, in), summed over the members
  float* const* gains;  // a hidden layer each; read only with layer norms
  float* const* shifts;
};

/// Numbers of one optimiser step over flat storage.
struct AdamStep {
  float beta1, beta2, epsilon;
  float step_size;      // learning rate over the first bias correction
  float second_scale;   // one over the square root of the second bias correction
  float keep;           // what decoupled weight decay leaves of a parameter; 1 without it
  float average_rate;   // of the target average
};

/// Batches are held in panels of this many rows, each feature's numbers adjacent: (panels, features, lanes).
constexpr long lanes = 32;
inline long panels(long rows) { return (rows + lanes - 1) / lanes; }

/// Floats that are saved of hidden layer 1, 2, ...: what the next layer reads; with a norm what was scaled and by how
/// much; the activations' slopes, and the masks, where they are needed.
inline long saved_block(const Mlp& mlp, int layer) {
  const long width = mlp.sizes[layer];
  return panels(mlp.rows) * lanes *
         (width + (mlp.normed() ? width + 1 : 0) + (mlp.sloped() ? width : 0) + (mlp.masks_apart() ? width : 0));
}

/// Floats that the forward pass saves for the backward pass.
inline long saved_size(const Mlp& mlp) {
  long size = 0;
  for (int layer = 1; layer < mlp.layers; ++layer) size += saved_block(mlp, layer);
  return mlp.members * size;
}

/// Floats of scratch that `mlp_forward` and `mlp_backward` need, whichever is more.
inline long scratch_size(const Mlp& mlp) {
  long widest = lanes;
  for (int layer = 0; layer <= mlp.layers; ++layer) {
    const long width = (mlp.sizes[layer] + lanes - 1) / lanes * lanes;
    widest = width > widest ? width : widest;
  }
  return (panels(mlp.rows) + 1) * lanes * 4 * widest + widest * widest;  // the last: a weight's columns
}

}  // namespace surefoot

// What levels/dense.cpp defines.
SUREFOOT_DECLARE(void mlp_forward(const Mlp&, const Rows&, const Rows& masks, float* saved, float* outputs,
                                  float* scratch))
SUREFOOT_DECLARE(void mlp_backward(const Mlp&, const Rows&, const float* saved, const Rows& output_gradients,
                                   const Gradients&, float* scratch))
SUREFOOT_DECLARE(void adam_step(const AdamStep&, long size, float* parameters, const float* gradients, float* first,
                                float* second, float* average))

// What dense.cpp defines: calls with the memory that they need, as python and tape.cpp make them.
namespace surefoot {

using Addresses = std::vector<std::uintptr_t>;  // of float32 memory; 0 where there is none

/// An `Mlp` and the lists that it points at.
class Network {
 public:
  /// Throws std::invalid_argument where the lists' lengths disagree, or `hidden` is no activation.
  Network(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
          const Addresses& biases, const Addresses& gains, const Addresses& shifts, bool norm_after,
          float norm_epsilon, int dropout);

  /// `masks` have a number for each hidden unit, the first layer's first; they are read only with dropout.
  void forward(const Rows& inputs, const Rows& masks, float* saved, float* outputs) const;
  void backward(const Rows& inputs, const float* saved, const Rows& output_gradients, const Gradients& wanted) const;
  int layers() const { return static_cast<int>(weights_.size()); }
  /// Throws std::invalid_argument unless there is a gradient's address, or 0, for each parameter.
  void check(const Addresses& weights, const Addresses& biases, const Addresses& gains, const Addresses& shifts) const;

 private:
  std::vector<long> sizes_;
  std::vector<float*> weights_, biases_, gains_, shifts_;
  Mlp mlp() const;
  long members_, rows_;
  Hidden hidden_;
  bool norm_after_;
  float norm_epsilon_;
  Dropout dropout_;
};

std::vector<float*> pointers(const Addresses& addresses);

/// Adam over flat storage; the step's number and learning rate are read where they lie when it runs.
struct Adam {
  long size;
  float *parameters, *gradients, *first, *second;
  float* average;      // of a target network, or null
  float* count;        // steps so far; one more afterwards
  const double* rate;  // learning rate
  double beta1, beta2, epsilon, decay, average_rate;

  void step() const;
};

}  // namespace surefoot
