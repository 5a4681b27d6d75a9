// A training step as a list of calls with fixed operands: recorded once in python, run again without it.
#include "tape.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dense.h"
#include "product.h"
#include "row_operations.h"
#include "tape_codes.h"

namespace nb = nanobind;

namespace surefoot {
namespace {

/// Where an operand lies: bytes from the base of an input, or from 0 for memory that stays where it is (input 0).
using Place = std::pair<int, std::uintptr_t>;

class Tape {
 public:
  explicit Tape(int inputs) : inputs_(inputs) {}

  void element(const std::string& name, const std::vector<long>& sizes, const std::vector<Place>& places,
               const std::vector<std::vector<long>>& strides) {
    Element e{code_of(name), {1, 1, 1, 1}, {}};
    const std::size_t dims = sizes.size();
    if (dims > most_dims || places.empty() || places.size() > most_operands || strides.size() != places.size())
      throw std::invalid_argument("an element has at most 4 dimensions and 4 operands, each with strides");
    for (std::size_t d = 0; d < dims; ++d) e.sizes[most_dims - dims + d] = sizes[d];
    for (std::size_t i = 0; i < places.size(); ++i) {
      check(places[i]);
      if (strides[i].size() != dims) throw std::invalid_argument("an operand has a stride for each dimension");
      for (std::size_t d = 0; d < dims; ++d) e.strides[i][most_dims - dims + d] = strides[i][d];
    }
    merge(e, static_cast<int>(places.size()));
    calls_.emplace_back([e, places](const Addresses& bases) {
      char* at[most_operands] = {};
      for (std::size_t i = 0; i < places.size(); ++i) at[i] = address<char>(places[i], bases);
      SUREFOOT_CALL(run_element, e, at);
    });
  }

  void mlp_forward(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
                   const Addresses& biases, const Addresses& gains, const Addresses& shifts, Place inputs,
                   long row_stride, std::uintptr_t saved, std::uintptr_t outputs, bool norm_after, float norm_epsilon,
                   int dropout, Place masks, long mask_row_stride, long mask_member_stride) {
    check(inputs);
    check(masks);
    const Network network(std::move(sizes), members, rows, hidden, weights, biases, gains, shifts, norm_after,
                          norm_epsilon, dropout);
    calls_.emplace_back([=](const Addresses& bases) {
      network.forward({address<const float>(inputs, bases), row_stride, 0},
                      {address<const float>(masks, bases), mask_row_stride, mask_member_stride},
                      reinterpret_cast<float*>(saved), reinterpret_cast<float*>(outputs));
    });
  }

  void mlp_backward(std::vector<long> sizes, long members, long rows, int hidden, const Addresses& weights,
                    const Addresses& biases, const Addresses& gains, const Addresses& shifts, Place inputs,
                    long row_stride, std::uintptr_t saved, Place output_gradients, long gradient_row_stride,
                    long gradient_member_stride, const Addresses& weight_gradients, const Addresses& bias_gradients,
                    std::uintptr_t input_gradients, const Addresses& gain_gradients,
                    const Addresses& shift_gradients, bool norm_after, float norm_epsilon, int dropout) {
    check(inputs);
    check(output_gradients);
    const Network network(std::move(sizes), members, rows, hidden, weights, biases, gains, shifts, norm_after,
                          norm_epsilon, dropout);
    network.check(weight_gradients, bias_gradients, gain_gradients, shift_gradients);
    const std::vector<float*> to_weights = pointers(weight_gradients), to_biases = pointers(bias_gradients),
                              to_gains = pointers(gain_gradients), to_shifts = pointers(shift_gradients);
    calls_.emplace_back([=](const Addresses& bases) {
      network.backward({address<const float>(inputs, bases), row_stride, 0}, reinterpret_cast<const float*>(saved),
                       {address<const float>(output_gradients, bases), gradient_row_stride, gradient_member_stride},
                       {to_weights.data(), to_biases.data(), reinterpret_cast<float*>(input_gradients), to_gains.data(),
                        to_shifts.data()});
    });
  }

  void rows(const std::string& name, long rows, long columns, float epsilon, const std::vector<Place>& places) {
    int code = 0;
    while (code < static_cast<int>(RowCode::count) && name != row_names[code]) ++code;
    if (code == static_cast<int>(RowCode::count)) throw std::invalid_argument("no operation on rows " + name);
    if (static_cast<int>(places.size()) != row_places[code])
      throw std::invalid_argument(name + " has " + std::to_string(row_places[code]) + " operands");
    for (const Place& place : places) check(place);
    const RowOperation operation{static_cast<RowCode>(code), rows, columns, epsilon};
    calls_.emplace_back([operation, places](const Addresses& bases) {
      float* at[most_places] = {};
      for (std::size_t i = 0; i < places.size(); ++i) at[i] = address<float>(places[i], bases);
      SUREFOOT_CALL(run_rows, operation, at);
    });
  }

  void product(const std::vector<long>& sizes, const std::vector<Place>& places,
               const std::vector<std::vector<long>>& strides) {
    const bool biased = places.size() == 4;
    if (sizes.size() != 4 || places.size() < 3 || places.size() > 4 || strides.size() != places.size())
      throw std::invalid_argument("a product has 4 sizes, a result, two factors and perhaps a bias, each with strides");
    for (std::size_t i = 0; i < places.size(); ++i) {
      check(places[i]);
      if (strides[i].size() != 3) throw std::invalid_argument("a matrix has strides of members, rows and columns");
      if (i != 1 && i != 2 && strides[i][2] != 1 && sizes[2] > 1)
        throw std::invalid_argument("numbers of a result's or bias's row are adjacent");
    }
    const auto matrices = [&](int i) { return Matrices{strides[i][0], strides[i][1], strides[i][2]}; };
    const Product p{sizes[0],      sizes[1],      sizes[2], sizes[3],
                    matrices(1),   matrices(2),   strides[0][0], strides[0][1],
                    biased,        biased ? strides[3][0] : 0, biased ? strides[3][1] : 0};
    calls_.emplace_back([p, places](const Addresses& bases) {
      const float* bias = p.biased ? address<const float>(places[3], bases) : nullptr;
      multiply(p, address<const float>(places[1], bases), address<const float>(places[2], bases), bias,
               address<float>(places[0], bases));
    });
  }

  void adam(long size, std::uintptr_t parameters, std::uintptr_t gradients, std::uintptr_t first,
            std::uintptr_t second, std::uintptr_t average, std::uintptr_t count, std::uintptr_t rate, double beta1,
            double beta2, double epsilon, double decay, double average_rate) {
    const auto to = [](std::uintptr_t value) { return reinterpret_cast<float*>(value); };
    const Adam step{size,          to(parameters), to(gradients),
                    to(first),     to(second),     to(average),
                    to(count),     reinterpret_cast<const double*>(rate),
                    beta1,         beta2,          epsilon,
                    decay,         average_rate};
    calls_.emplace_back([step](const Addresses&) { step.step(); });
  }

  /// Run all calls; `bases` holds the address of each input, in order.
  void run(const Addresses& inputs) const {
    if (static_cast<int>(inputs.size()) != inputs_) throw std::invalid_argument("a tape needs an address for each input");
    Addresses bases{0};
    bases.insert(bases.end(), inputs.begin(), inputs.end());
    const nb::gil_scoped_release release;
    for (const auto& call : calls_) call(bases);
  }

  std::size_t length() const { return calls_.size(); }

 private:
  int inputs_;
  std::vector<std::function<void(const Addresses&)>> calls_;

  static int code_of(const std::string& name) {
    for (int code = 0; code < static_cast<int>(Code::count); ++code) {
      if (name == code_names[code]) return code;
    }
    throw std::invalid_argument("no instruction " + name);
  }

  template <class T>
  static T* address(const Place& place, const Addresses& bases) {
    return reinterpret_cast<T*>(bases[place.first] + place.second);
  }

  void check(const Place& place) const {
    if (place.first < 0 || place.first > inputs_) throw std::invalid_argument("an operand's input does not exist");
  }

  /// Join the innermost dimension with the one before it while every operand lies as one run through both.
  static void merge(Element& e, int operands) {
    for (int d = most_dims - 1; d > 0;) {
      bool together = true;
      for (int i = 0; i < operands; ++i) together &= e.strides[i][d - 1] == e.strides[i][d] * e.sizes[d];
      if (e.sizes[d] == 1 || (together && e.sizes[d - 1] != 1)) {  // a size of 1 inside is moved outwards
        for (int i = 0; i < operands; ++i) {
          if (e.sizes[d] == 1) e.strides[i][d] = e.strides[i][d - 1];
        }
        e.sizes[d] *= e.sizes[d - 1];
        for (int up = d - 1; up > 0; --up) {
          e.sizes[up] = e.sizes[up - 1];
          for (int i = 0; i < operands; ++i) e.strides[i][up] = e.strides[i][up - 1];
        }
        e.sizes[0] = 1;
        bool rest = false;
        for (int up = 0; up < d; ++up) rest |= e.sizes[up] != 1;
        if (!rest) return;
      } else {
        --d;
      }
    }
  }
};

}  // namespace

void bind_tape(nb::module_& m) {
  nb::class_<Tape>(m, "Tape", "A list of calls with fixed operands; an operand is (input or 0, bytes from its base).")
      .def(nb::init<int>(), nb::arg("inputs"))
      .def("__len__", &Tape::length)
      .def("run", &Tape::run, nb::arg("inputs"), "Run all calls with the inputs at these addresses.")
      .def("element", &Tape::element, nb::arg("name"), nb::arg("sizes"), nb::arg("places"), nb::arg("strides"),
           "result = name(operands): float32 or bool numbers; strides count numbers, 0 broadcasts or reduces.")
      .def("rows", &Tape::rows, nb::arg("name"), nb::arg("rows"), nb::arg("columns"), nb::arg("epsilon"),
           nb::arg("places"), "Softmax or layer norm, or the way back through one, of (rows, columns) adjacent numbers.")
      .def("product", &Tape::product, nb::arg("sizes"), nb::arg("places"), nb::arg("strides"),
           "c = a b + bias of float32 matrices: sizes are (members, rows, columns, depth), places those of c, a, b and, "
           "where there is one, the bias, strides those of members, rows and columns.")
      .def("mlp_forward", &Tape::mlp_forward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"), nb::arg("hidden"),
           nb::arg("weights"), nb::arg("biases"), nb::arg("gains"), nb::arg("shifts"), nb::arg("inputs"),
           nb::arg("row_stride"), nb::arg("saved"), nb::arg("outputs"), nb::arg("norm_after"),
           nb::arg("norm_epsilon"), nb::arg("dropout"), nb::arg("masks"), nb::arg("mask_row_stride"),
           nb::arg("mask_member_stride"))
      .def("mlp_backward", &Tape::mlp_backward, nb::arg("sizes"), nb::arg("members"), nb::arg("rows"),
           nb::arg("hidden"), nb::arg("weights"), nb::arg("biases"), nb::arg("gains"), nb::arg("shifts"),
           nb::arg("inputs"), nb::arg("row_stride"), nb::arg("saved"), nb::arg("output_gradients"),
           nb::arg("gradient_row_stride"), nb::arg("gradient_member_stride"), nb::arg("weight_gradients"),
           nb::arg("bias_gradients"), nb::arg("input_gradients"), nb::arg("gain_gradients"),
           nb::arg("shift_gradients"), nb::arg("norm_after"), nb::arg("norm_epsilon"), nb::arg("dropout"))
      .def("adam", &Tape::adam);
}

}  // namespace surefoot
