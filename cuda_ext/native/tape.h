// Instructions of a recorded training step on small tensors; the MLPs among them are those of dense.h.
#pragma once

#include "level.h"

namespace surefoot {

constexpr int most_dims = 4;
constexpr int most_operands = 4;  // the result first

/// result[...] = code(operands[...]) over `sizes`, or over `kept` sizes a reduction of the rest.
struct Element {
  int code;
  long sizes[most_dims];                   // padded with ones in front
  long strides[most_operands][most_dims];  // in numbers; 0 where an operand is broadcast or a result reduced
};

// Name, operands' kinds, and the expression, for X(kind, name, expression): the whole instruction set in one place.
// `unary` to `ternary` map floats a, b, c to a float; `compare` floats to a bool; `logical` bools to a bool.
#define SUREFOOT_ELEMENTS(X)                                            \
  X(unary, copy, a)                                                     \
  X(unary, neg, -a)                                                     \
  X(unary, abs, std::fabs(a))                                           \
  X(unary, square, a* a)                                                \
  X(unary, sqrt, std::sqrt(a))                                          \
  X(unary, reciprocal, 1.0f / a)                                        \
  X(unary, exp, std::exp(a))                                            \
  X(unary, log, std::log(a))                                            \
  X(unary, log1p, std::log1p(a))                                        \
  X(unary, sin, std::sin(a))                                            \
  X(unary, cos, std::cos(a))                                            \
  X(unary, tanh, clip(surefoot::tanh(a), -1.0f, 1.0f))                  \
  X(unary, sigmoid, 1.0f / (1.0f + surefoot::exp(-a)))                  \
  X(unary, relu, a < 0.0f ? 0.0f : a)                                   \
  X(unary, sign, static_cast<float>((a > 0.0f) - (a < 0.0f)))           \
  X(unary, mish, mish_of(a))                                            \
  X(unary, gelu, gelu_of(a))                                            \
  X(binary, mish_backward, a* mish_slope(b))                            \
  X(binary, gelu_backward, a* gelu_slope(b))                            \
  X(binary, mul, a* b)                                                  \
  X(binary, div, a / b)                                                 \
  X(binary, pow, std::pow(a, b))                                        \
  X(binary, maximum, a != a || a > b ? a : b)                           \
  X(binary, minimum, a != a || a < b ? a : b)                           \
  X(binary, tanh_backward, a*(1.0f - b * b))                            \
  X(binary, sigmoid_backward, a*(1.0f - b) * b)                         \
  X(ternary, add, a + c * b)                                            \
  X(ternary, sub, a - c * b)                                            \
  X(ternary, rsub, b - c * a)                                           \
  X(ternary, clamp, a < b ? (b < c ? b : c) : (a > c ? c : a))          \
  X(ternary, lerp, a + c * (b - a))                                     \
  X(ternary, threshold_backward, b <= c ? 0.0f : a)                     \
  X(ternary, softplus, a* b > c ? a : softplus_of(a * b) / b)           \
  X(compare, gt, a > b)                                                 \
  X(compare, ge, a >= b)                                                \
  X(compare, lt, a < b)                                                 \
  X(compare, le, a <= b)                                                \
  X(compare, eq, a == b)                                                \
  X(compare, ne, a != b)                                                \
  X(logical, logical_and, a&& b)                                        \
  X(logical, logical_or, a || b)

}  // namespace surefoot

SUREFOOT_DECLARE(void run_element(const Element&, char* const* places))
