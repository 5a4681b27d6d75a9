// One observation through a policy's network, and the steps of a flow: what a control loop asks for.
#pragma once

#include <vector>

#include "level.h"

namespace surefoot {

/// Of hidden layers. GELU is its approximation by tanh.
enum class RowActivation { relu = 0, tanh = 1, silu = 2, gelu = 3, mish = 4 };
constexpr int row_activations = 5;

struct RowLayer {
  long inputs, outputs;
  const float* weights;  // (outputs, inputs), contiguous
  const float* biases;
};

/// Layers one after another with activations between; or residual: a first layer, blocks x + B act(A act(x)) of two
/// layers each, and a last layer.
struct RowNetwork {
  std::vector<RowLayer> layers;
  RowActivation activation;
  bool residual;
  long width;  // the largest of the layers' outputs

  long scratch_floats() const { return 3 * width; }
};

/// x goes from noise to an action by `steps` additions of `size` times the network's velocity, and is clipped to
/// [-1, 1] after each where `clip`. Before each step x is written into the input at `place`, and that step's row of
/// `features`, (steps, feature_count), at `feature_place`.
struct RowFlow {
  int steps;
  float size;
  bool clip;
  long count, place, feature_place, feature_count;
};

}  // namespace surefoot

// What levels/one_row.cpp defines. `scratch` has scratch_floats.
SUREFOOT_DECLARE(void row_forward(const RowNetwork&, const float* input, float* output, float* scratch);
                 void row_flow(const RowNetwork&, const RowFlow&, const float* features, float* input, float* x,
                               float* scratch))
