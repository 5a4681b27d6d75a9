// Softmax and layer norms of a tape: operations on rows of numbers that lie side by side.
#pragma once

#include "level.h"

namespace surefoot {

constexpr int most_places = 8;  // of one operation: what it writes first, then what it reads

enum class RowCode { softmax, softmax_backward, layer_norm, layer_norm_backward, count };

/// Names of the codes; what `places` of `run_rows` are, of which those in brackets may be null.
///   softmax              y | x
///   softmax_backward     dx | dy, y
///   layer_norm           y, mean, inverse | x, [gain], [shift]
///   layer_norm_backward  dx, [dgain], [dshift] | dy, x, mean, inverse, [gain]
constexpr const char* row_names[] = {"softmax", "softmax_backward", "layer_norm", "layer_norm_backward"};
constexpr int row_places[] = {2, 3, 6, 8};

/// An operation on (rows, columns) adjacent numbers; mean and inverse deviation are a number a row.
struct RowOperation {
  RowCode code;
  long rows, columns;
  float epsilon;  // added to the variance
};

}  // namespace surefoot

// What levels/row_operations.cpp defines.
SUREFOOT_DECLARE(void run_rows(const RowOperation&, float* const* places))
