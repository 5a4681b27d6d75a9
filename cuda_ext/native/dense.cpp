// Binds levels/dense.cpp: python passes addresses of float32 memory, and has checked shapes and strides.
#include "dense.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "scratch.h"

namespace nb = nanobind;

namespace surefoot {
namespace {

template <class T>
T* to(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void forward(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
             const Addresses& biases, const Addresses& gains, const Addresses& shifts, std::uintptr_t inputs,
             long row_stride, std::uintptr_t saved, std::uintptr_t outputs, bool norm_after, float norm_epsilon,
             int dropout, std::uintptr_t masks, long mask_row_stride, long mask_member_stride) {
  const Network network(std::move(sizes), members, rows, hidden, weights, biases, gains, shifts, norm_after,
                        norm_epsilon, dropout);
  const nb::gil_scoped_release release;
  network.forward({to<const float>(inputs), row_stride, 0},
                  {to<const float>(masks), mask_row_stride, mask_member_stride}, to<float>(saved), to<float>(outputs));
}

void backward(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
              const Addresses& biases, const Addresses& gains, const Addresses& shifts, std::uintptr_t inputs,
              long row_stride, std::uintptr_t saved, std::uintptr_t output_gradients, long gradient_row_stride,
              long gradient_member_stride, const Addresses& weight_gradients, const Addresses& bias_gradients,
              std::uintptr_t input_gradients, const Addresses& gain_gradients, const Addresses& shift_gradients,
              bool norm_after, float norm_epsilon, int dropout) {
  const Network network(std::move(sizes), members, rows, hidden, weights, biases, gains, shifts, norm_after,
                        norm_epsilon, dropout);
  network.check(weight_gradients, bias_gradients, gain_gradients, shift_gradients);
  const std::vector<float*> to_weights = pointers(weight_gradients), to_biases = pointers(bias_gradients),
                            to_gains = pointers(gain_gradients), to_shifts = pointers(shift_gradients);
  const nb::gil_scoped_release release;
  network.backward({to<const float>(inputs), row_stride, 0}, to<const float>(saved),
                   {to<const float>(output_gradients), gradient_row_stride, gradient_member_stride},
                   {to_weights.data(), to_biases.data(), to<float>(input_gradients), to_gains.data(), to_shifts.data()});
}

long saved_floats(const std::vector<long>& sizes, long members, long rows, bool normed, int hidden, bool norm_after,
                  int dropout) {
  const float* const any = nullptr;
  const Mlp mlp = {sizes.data(), nullptr, nullptr, static_cast<int>(sizes.size()) - 1, members, rows,
                   static_cast<Hidden>(hidden), normed ? &any : nullptr, nullptr, norm_after, 0.0f,
                   static_cast<Dropout>(dropout)};
  return saved_size(mlp);
}

void adam(long size, std::uintptr_t parameters, std::uintptr_t gradients, std::uintptr_t first, std::uintptr_t second,
          std::uintptr_t average, std::uintptr_t count, std::uintptr_t rate, double beta1, double beta2,
          double epsilon, double decay, double average_rate) {
  const nb::gil_scoped_release release;
  Adam{size, to<float>(parameters), to<float>(gradients), to<float>(first), to<float>(second), to<float>(average),
       to<float>(count), to<const double>(rate), beta1, beta2, epsilon, decay, average_rate}
      .step();
}

}  // namespace

std::vector<float*> pointers(const Addresses& addresses) {
  std::vector<float*> found;
  found.reserve(addresses.size());
  for (const auto address : addresses) found.push_back(to<float>(address));
  return found;
}

Network::Network(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
                 const Addresses& biases, const Addresses& gains, const Addresses& shifts, bool norm_after,
                 float norm_epsilon, int dropout)
    : sizes_(std::move(sizes)),
      weights_(pointers(weights)),
      biases_(pointers(biases)),
      gains_(pointers(gains)),
      shifts_(pointers(shifts)),
      members_(members),
      rows_(rows),
      hidden_(static_cast<Hidden>(hidden)),
      norm_after_(norm_after),
      norm_epsilon_(norm_epsilon),
      dropout_(static_cast<Dropout>(dropout)) {
  if (hidden < 0 || hidden >= hidden_kinds)
    throw std::invalid_argument("hidden layers are ReLU (0), tanh (1), GELU (2) or SiLU (3)");
  if (dropout < 0 || dropout >= dropout_kinds)
    throw std::invalid_argument("dropout is of nothing (0), of activations (1) or of sums (2)");
  if (weights.empty() || sizes_.size() != weights.size() + 1 || biases.size() != weights.size() || members < 0 ||
      rows < 0)
    throw std::invalid_argument("an MLP of n layers needs n + 1 sizes, n weights and n biases");
  if (gains.size() != shifts.size() || (!gains.empty() && gains.size() + 1 != weights.size()))
    throw std::invalid_argument("layer norms of an MLP of n layers have n - 1 gains and n - 1 shifts");
}

void Network::check(const Addresses& weights, const Addresses& biases, const Addresses& gains,
                    const Addresses& shifts) const {
  if (weights.size() != weights_.size() || biases.size() != biases_.size() || gains.size() != gains_.size() ||
      shifts.size() != shifts_.size())
    throw std::invalid_argument("a gradient address, or 0, is needed for each weight, bias, gain and shift");
}

Mlp Network::mlp() const {
  const bool normed = !gains_.empty();
  return {sizes_.data(), weights_.data(), biases_.data(), layers(), members_, rows_, hidden_,
          normed ? gains_.data() : nullptr, normed ? shifts_.data() : nullptr, norm_after_, norm_epsilon_, dropout_};
}

void Network::forward(const Rows& inputs, const Rows& masks, float* saved, float* outputs) const {
  const Mlp own = mlp();
  SUREFOOT_CALL(mlp_forward, own, inputs, masks, saved, outputs, scratch(scratch_size(own)));
}

void Network::backward(const Rows& inputs, const float* saved, const Rows& output_gradients,
                       const Gradients& wanted) const {
  const Mlp own = mlp();
  SUREFOOT_CALL(mlp_backward, own, inputs, saved, output_gradients, wanted, scratch(scratch_size(own)));
}

void Adam::step() const {
  const double number = *count += 1;
  const AdamStep numbers = {static_cast<float>(beta1),
                            static_cast<float>(beta2),
                            static_cast<float>(epsilon),
                            static_cast<float>(*rate / (1 - std::pow(beta1, number))),
                            static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, number))),
                            static_cast<float>(1 - *rate * decay),
                            static_cast<float>(average_rate)};
  SUREFOOT_CALL(adam_step, numbers, size, parameters, gradients, first, second, average);
}

void bind_dense(nb::module_& m) {
  m.attr("dense_revision") = 6;  // another number wherever the same inputs may give other bits
  m.def("mlp_forward", &forward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("hidden"),
        nb::arg("weights"), nb::arg("biases"), nb::arg("gains"), nb::arg("shifts"), nb::arg("inputs"),
        nb::arg("row_stride"), nb::arg("saved"), nb::arg("outputs"), nb::arg("norm_after") = false,
        nb::arg("norm_epsilon") = 1e-5f, nb::arg("dropout") = 0, nb::arg("masks") = 0,
        nb::arg("mask_row_stride") = 0, nb::arg("mask_member_stride") = 0,
        "Outputs (members, rows, out) of an MLP whose hidden layers are ReLU (0), tanh (1), GELU by tanh (2) or SiLU "
        "(3), with layer norms before or after them where there are gains and shifts, and masks of activations (1) or "
        "sums (2), a number for each hidden unit, with dropout; saved may be 0.");
  m.def("mlp_backward", &backward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("hidden"),
        nb::arg("weights"), nb::arg("biases"), nb::arg("gains"), nb::arg("shifts"), nb::arg("inputs"),
        nb::arg("row_stride"), nb::arg("saved"), nb::arg("output_gradients"), nb::arg("gradient_row_stride"),
        nb::arg("gradient_member_stride"), nb::arg("weight_gradients"), nb::arg("bias_gradients"),
        nb::arg("input_gradients"), nb::arg("gain_gradients"), nb::arg("shift_gradients"),
        nb::arg("norm_after") = false, nb::arg("norm_epsilon") = 1e-5f, nb::arg("dropout") = 0,
        "Gradients of what mlp_forward saved; an address of 0 is a gradient that is not wanted.");
  m.def("mlp_saved_floats", &saved_floats, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("normed"),
        nb::arg("hidden") = 0, nb::arg("norm_after") = false, nb::arg("dropout") = 0, "Floats that mlp_forward saves for mlp_backward.");
  m.def("adam", &adam, nb::arg("size"), nb::arg("parameters"), nb::arg("gradients"), nb::arg("first"),
        nb::arg("second"), nb::arg("average"), nb::arg("count"), nb::arg("rate"), nb::arg("beta1"), nb::arg("beta2"),
        nb::arg("epsilon"), nb::arg("decay"), nb::arg("average_rate"),
        "One Adam step in place, which adds 1 to the float32 count and reads the float64 rate; then average += "
        "average_rate * (parameter - average) unless average is 0.");
}

}  // namespace surefoot
