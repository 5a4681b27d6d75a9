// Binds levels/one_row.cpp: python passes addresses of float32 memory, and has checked widths.
#include "one_row.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;

namespace surefoot {
namespace {

using Addresses = std::vector<std::uintptr_t>;

float* to(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

/// A network whose parameters lie elsewhere and may change there, with memory for one row: for one thread at a time.
class OneRow {
 public:
  OneRow(const std::vector<long>& inputs, const std::vector<long>& outputs, const Addresses& weights,
         const Addresses& biases, int activation, bool residual) {
    if (activation < 0 || activation >= row_activations)
      throw std::invalid_argument("hidden layers are ReLU (0), tanh (1), SiLU (2), GELU by tanh (3) or mish (4)");
    const std::size_t count = inputs.size();
    if (count == 0 || outputs.size() != count || weights.size() != count || biases.size() != count)
      throw std::invalid_argument("each layer needs inputs, outputs, weights and biases");
    if (residual && (count < 2 || count % 2 != 0))
      throw std::invalid_argument("a residual network has a first layer, blocks of two and a last layer");
    network_.activation = static_cast<RowActivation>(activation);
    network_.residual = residual;
    network_.width = 1;
    for (std::size_t k = 0; k < count; ++k) {
      if (k > 0 && inputs[k] != outputs[k - 1]) throw std::invalid_argument("a layer reads what the last one gives");
      network_.layers.push_back({inputs[k], outputs[k], to(weights[k]), to(biases[k])});
      if (outputs[k] > network_.width) network_.width = outputs[k];
    }
    for (std::size_t k = 2; residual && k + 1 < count; k += 2)
      if (outputs[k] != outputs[0]) throw std::invalid_argument("a block gives as many numbers as it reads");
    scratch_.resize(static_cast<std::size_t>(network_.scratch_floats() + outputs.back()));
  }

  void forward(std::uintptr_t input, std::uintptr_t output) {
    const nb::gil_scoped_release release;
    SUREFOOT_CALL(row_forward, network_, to(input), to(output), scratch_.data());
  }

  void flow(int steps, float size, bool clip, long place, long feature_place, long feature_count,
            std::uintptr_t features, std::uintptr_t input, std::uintptr_t x) {
    const long count = network_.layers.back().outputs, width = network_.layers.front().inputs;
    if (place < 0 || place + count > width || feature_place < 0 || feature_count < 0 ||
        feature_place + feature_count > width)
      throw std::invalid_argument("the flow's numbers lie outside of the network's input");
    const RowFlow how = {steps, size, clip, count, place, feature_place, feature_count};
    const nb::gil_scoped_release release;
    SUREFOOT_CALL(row_flow, network_, how, to(features), to(input), to(x), scratch_.data());
  }

 private:
  RowNetwork network_;
  std::vector<float> scratch_;
};

}  // namespace

void bind_one_row(nb::module_& m) {
  nb::class_<OneRow>(m, "OneRow", "A network of one row, whose parameters lie elsewhere; for one thread at a time.")
      .def(nb::init<const std::vector<long>&, const std::vector<long>&, const Addresses&, const Addresses&, int,
                    bool>(),
           nb::arg("inputs"), nb::arg("outputs"), nb::arg("weights"), nb::arg("biases"), nb::arg("activation"),
           nb::arg("residual"))
      .def("forward", &OneRow::forward, nb::arg("input"), nb::arg("output"), "Outputs of one row of inputs.")
      .def("flow", &OneRow::flow, nb::arg("steps"), nb::arg("size"), nb::arg("clip"), nb::arg("place"),
           nb::arg("feature_place"), nb::arg("feature_count"), nb::arg("features"), nb::arg("input"), nb::arg("x"),
           "Carry x along the network's velocity, in place; `input` holds what does not change.");
}

}  // namespace surefoot
