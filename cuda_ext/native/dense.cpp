// Binds levels/dense.cpp: python passes addresses of float32 memory, and has checked shapes and strides.
#include "dense.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

namespace nb = nanobind;

namespace surefoot {
namespace {

using Addresses = std::vector<std::uintptr_t>;

/// Memory of this thread that grows to the largest call's need and stays: fresh pages cost more than the arithmetic.
float* scratch(long size) {
  thread_local std::unique_ptr<float[]> memory;
  thread_local long there = 0;
  constexpr long per_line = 64 / sizeof(float);
  if (size > there) {
    memory.reset(new float[size + per_line]);
    there = size;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
  return memory.get() + (64 - address % 64) % 64 / sizeof(float);
}

std::vector<float*> pointers(const Addresses& addresses) {
  std::vector<float*> found;
  found.reserve(addresses.size());
  for (const auto address : addresses) found.push_back(reinterpret_cast<float*>(address));
  return found;
}

/// An `Mlp` and what it points at.
struct Network {
  std::vector<float*> weights, biases;
  Mlp mlp;

  Network(const std::vector<long>& sizes, long members, long rows, const Addresses& w, const Addresses& b)
      : weights(pointers(w)), biases(pointers(b)) {
    if (sizes.size() < 2 || w.size() + 1 != sizes.size() || b.size() != w.size() || members < 0 || rows < 0)
      throw nb::value_error("an MLP of n layers needs n + 1 sizes, n weights and n biases");
    mlp = {sizes.data(), weights.data(), biases.data(), static_cast<int>(w.size()), members, rows};
  }
};

void forward(const std::vector<long>& sizes, long members, long rows, const Addresses& weights,
             const Addresses& biases, std::uintptr_t inputs, long row_stride, long member_stride, std::uintptr_t saved,
             std::uintptr_t outputs) {
  const Network network(sizes, members, rows, weights, biases);
  const nb::gil_scoped_release release;
  const Rows in = {reinterpret_cast<const float*>(inputs), row_stride, member_stride};
  SUREFOOT_CALL(mlp_forward, network.mlp, in, reinterpret_cast<float*>(saved), reinterpret_cast<float*>(outputs),
                scratch(scratch_size(network.mlp)));
}

void backward(const std::vector<long>& sizes, long members, long rows, const Addresses& weights,
              const Addresses& biases, std::uintptr_t inputs, long row_stride, long member_stride,
              std::uintptr_t saved, std::uintptr_t output_gradients, long gradient_row_stride,
              long gradient_member_stride, const Addresses& weight_gradients, const Addresses& bias_gradients,
              std::uintptr_t input_gradients) {
  const Network network(sizes, members, rows, weights, biases);
  const std::vector<float*> to_weights = pointers(weight_gradients), to_biases = pointers(bias_gradients);
  if (to_weights.size() != weights.size() || to_biases.size() != weights.size())
    throw nb::value_error("a gradient address, or 0, is needed for each weight and bias");
  const nb::gil_scoped_release release;
  const Rows in = {reinterpret_cast<const float*>(inputs), row_stride, member_stride};
  const Rows from = {reinterpret_cast<const float*>(output_gradients), gradient_row_stride, gradient_member_stride};
  const Gradients to = {to_weights.data(), to_biases.data(), reinterpret_cast<float*>(input_gradients)};
  SUREFOOT_CALL(mlp_backward, network.mlp, in, reinterpret_cast<const float*>(saved), from, to,
                scratch(scratch_size(network.mlp)));
}

long saved_floats(const std::vector<long>& sizes, long members, long rows) {
  const Mlp mlp = {sizes.data(), nullptr, nullptr, static_cast<int>(sizes.size()) - 1, members, rows};
  return saved_size(mlp);
}

void adam(long size, std::uintptr_t parameters, std::uintptr_t gradients, std::uintptr_t first, std::uintptr_t second,
          double count, double rate, double beta1, double beta2, double epsilon, double decay, std::uintptr_t average,
          double average_rate) {
  const nb::gil_scoped_release release;
  const AdamStep step = {static_cast<float>(beta1),
                         static_cast<float>(beta2),
                         static_cast<float>(epsilon),
                         static_cast<float>(rate / (1 - std::pow(beta1, count))),
                         static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, count))),
                         static_cast<float>(1 - rate * decay),
                         static_cast<float>(average_rate)};
  SUREFOOT_CALL(adam_step, step, size, reinterpret_cast<float*>(parameters), reinterpret_cast<const float*>(gradients),
                reinterpret_cast<float*>(first), reinterpret_cast<float*>(second), reinterpret_cast<float*>(average));
}

}  // namespace

void bind_dense(nb::module_& m) {
  m.attr("dense_revision") = 1;  // another number wherever the same inputs may give other bits
  m.def("mlp_forward", &forward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("weights"),
        nb::arg("biases"), nb::arg("inputs"), nb::arg("row_stride"), nb::arg("member_stride"), nb::arg("saved"),
        nb::arg("outputs"), "Outputs (members, rows, out) of a ReLU MLP; saved may be 0.");
  m.def("mlp_backward", &backward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("weights"),
        nb::arg("biases"), nb::arg("inputs"), nb::arg("row_stride"), nb::arg("member_stride"), nb::arg("saved"),
        nb::arg("output_gradients"), nb::arg("gradient_row_stride"), nb::arg("gradient_member_stride"),
        nb::arg("weight_gradients"), nb::arg("bias_gradients"), nb::arg("input_gradients"),
        "Gradients of what mlp_forward saved; an address of 0 is a gradient that is not wanted.");
  m.def("mlp_saved_floats", &saved_floats, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"),
        "Floats that mlp_forward saves for mlp_backward.");
  m.def("adam", &adam, nb::arg("size"), nb::arg("parameters"), nb::arg("gradients"), nb::arg("first"),
        nb::arg("second"), nb::arg("count"), nb::arg("rate"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"),
        nb::arg("decay"), nb::arg("average"), nb::arg("average_rate"),
        "One Adam step in place, the count-th; then average += average_rate * (parameter - average) unless it is 0.");
}

}  // namespace surefoot
