// Softmax and layer norms, forward and backward: a row is read from memory once.
#include "../row_operations.h"

#include <cmath>
#include <cstring>

#include "../maths.h"
#include "../vectors.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

constexpr int chains = 8;  // of sums and maxima of a row: as many as the shortest rows that occur have numbers

/// f over all numbers of a row, in independent chains.
template <class F>
inline float fold(const float* row, long n, float start, const F& f) {
  float found[chains];
  for (float& one : found) one = start;
  long i = 0;
  for (; i + chains <= n; i += chains) {
    for (int k = 0; k < chains; ++k) found[k] = f(found[k], row[i + k]);
  }
  for (; i < n; ++i) found[0] = f(found[0], row[i]);
  for (int apart = chains / 2; apart > 0; apart /= 2) {
    for (int k = 0; k < apart; ++k) found[k] = f(found[k], found[k + apart]);
  }
  return found[0];
}

inline float larger(float a, float b) { return a != a || a > b ? a : b; }
inline float sum_of(float a, float b) { return a + b; }

/// exp(x) for x <= 0, 0 where it is below the smallest normal number.
inline float exp_of_negative(float x) { return select(x < -87.0f, 0.0f, surefoot::exp(x)); }

void softmax(long rows, long n, float* y, const float* x) {
  for (long row = 0; row < rows; ++row) {
    const float most = fold(x + row * n, n, -INFINITY, larger);
    for (long i = 0; i < n; ++i) y[row * n + i] = x[row * n + i] - most;
  }
  const long all = rows * n;
  for (long i = 0; i < all; ++i) y[i] = exp_of_negative(y[i]);
  for (long row = 0; row < rows; ++row) {
    const float share = 1.0f / fold(y + row * n, n, 0.0f, sum_of);
    for (long i = 0; i < n; ++i) y[row * n + i] *= share;
  }
}

void softmax_backward(long rows, long n, float* __restrict__ dx, const float* dy, const float* y) {
  for (long row = 0; row < rows; ++row, dx += n, dy += n, y += n) {
    for (long i = 0; i < n; ++i) dx[i] = dy[i] * y[i];
    const float sum = fold(dx, n, 0.0f, sum_of);
    for (long i = 0; i < n; ++i) dx[i] -= sum * y[i];
  }
}

/// Numbers i .. i + width - 1 of a row of n; zeros beyond its end.
inline Vector numbers(const float* row, long i, long n) {
  if (n - i >= width) return load(row + i);
  Vector found = {};
  std::memcpy(&found, row + i, (n - i) * sizeof(float));
  return found;
}

inline void put(float* row, long i, long n, Vector value) {
  if (n - i >= width)
    store(row + i, value);
  else
    std::memcpy(row + i, &value, (n - i) * sizeof(float));
}

inline float total(Vector value) {
  float sum = 0.0f;
  for (long i = 0; i < width; ++i) sum += value[i];
  return sum;
}

/// Source: Ba, Kiros and Hinton, "Layer Normalization".
void layer_norm(const RowOperation& p, float* y, float* means, float* inverses, const float* x, const float* gain,
                const float* shift) {
  const long n = p.columns;
  const float share = 1.0f / static_cast<float>(n);
  for (long row = 0; row < p.rows; ++row, x += n, y += n) {
    Vector sum = {}, squares = {};
    for (long i = 0; i < n; i += width) sum += numbers(x, i, n);
    const float mean = share * total(sum);
    long i = 0;
    for (; i + width <= n; i += width) {
      const Vector apart = load(x + i) - mean;
      squares += apart * apart;
    }
    float square = total(squares);
    for (; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
    const float inverse = 1.0f / std::sqrt(share * square + p.epsilon);
    for (long k = 0; k < n; k += width) {
      Vector unit = (numbers(x, k, n) - mean) * inverse;
      if (gain) unit *= numbers(gain, k, n);
      if (shift) unit += numbers(shift, k, n);
      put(y, k, n, unit);
    }
    means[row] = mean;
    inverses[row] = inverse;
  }
}

void layer_norm_backward(const RowOperation& p, float* dx, float* to_gain, float* to_shift, const float* dy,
                         const float* x, const float* means, const float* inverses, const float* gain) {
  const long n = p.columns;
  const float share = 1.0f / static_cast<float>(n);
  if (to_gain) std::memset(to_gain, 0, n * sizeof(float));
  if (to_shift) std::memset(to_shift, 0, n * sizeof(float));
  for (long row = 0; row < p.rows; ++row, x += n, dy += n, dx += n) {
    const float mean = means[row], inverse = inverses[row];
    Vector sum = {}, along = {};
    for (long i = 0; i < n; i += width) {
      const Vector above = numbers(dy, i, n), unit = (numbers(x, i, n) - mean) * inverse;
      const Vector scaled = gain ? above * numbers(gain, i, n) : above;
      sum += scaled;
      along += scaled * unit;
      if (to_gain) put(to_gain, i, n, numbers(to_gain, i, n) + above * unit);
      if (to_shift) put(to_shift, i, n, numbers(to_shift, i, n) + above);
    }
    const float of_sum = share * total(sum), of_along = share * total(along);
    for (long i = 0; i < n; i += width) {
      const Vector above = numbers(dy, i, n), unit = (numbers(x, i, n) - mean) * inverse;
      const Vector scaled = gain ? above * numbers(gain, i, n) : above;
      put(dx, i, n, inverse * (scaled - of_sum - unit * of_along));
    }
  }
}

}  // namespace

void run_rows(const RowOperation& p, float* const* at) {
  switch (p.code) {
    case RowCode::softmax: softmax(p.rows, p.columns, at[0], at[1]); return;
    case RowCode::softmax_backward: softmax_backward(p.rows, p.columns, at[0], at[1], at[2]); return;
    case RowCode::layer_norm: layer_norm(p, at[0], at[1], at[2], at[3], at[4], at[5]); return;
    case RowCode::layer_norm_backward:
      layer_norm_backward(p, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
      return;
    case RowCode::count: return;
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
