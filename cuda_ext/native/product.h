// Products of matrices beside those of MLPs: of any strides, one or several at once, in float32 on one core.
#pragma once

#include "level.h"

namespace surefoot {

/// Strides of the matrices of one operand, in numbers; 0 where one is read again and again.
struct Matrices {
  long member, row, column;
};

/// c[e] = a[e] b[e] + bias[e] for each member e: (rows, depth) times (depth, columns).
struct Product {
  long members, rows, columns, depth;
  Matrices a, b;
  long c_member, c_row;        // the numbers of a result's row are adjacent
  bool biased;
  long bias_member, bias_row;  // likewise
};

constexpr long most_deep = 256;     // numbers of the depth that are taken together
constexpr long most_columns = 512;  // of `b`, whose part then fits into the second-level cache
constexpr long most_rows = 96;      // of `a`, likewise

/// Floats of scratch that `run_product` needs.
constexpr long product_scratch = most_deep * (most_columns + most_rows);

/// c[e] = a[e] b[e] + bias[e]; memory as `Product` describes it.
void multiply(const Product& product, const float* a, const float* b, const float* bias, float* c);

}  // namespace surefoot

// What levels/product.cpp defines.
SUREFOOT_DECLARE(void run_product(const Product&, const float* a, const float* b, const float* bias, float* c,
                                  float* scratch))
