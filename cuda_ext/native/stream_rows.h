// Passes over the rows of one layer, for one sample: products, traces, weights. Included by levels/stream.cpp only.
//
// Rows are read where they lie. The width of the vectors is the largest that a row fills; what is left of a row is done
// by one more vector that ends with the row and overlaps the one before, so no pass reads or writes beyond a row. The
// order of every sum depends on the layer's size alone, never on an address: a stream gives the same bits in any company.
#pragma once

#include <cstdint>
#include <utility>

#include "level.h"
#include "stream.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

template <class T>
constexpr int most_lanes = register_bytes / static_cast<int>(sizeof(T));

template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  typedef std::int32_t type;
  static constexpr type magnitude = 0x7fffffff;
};
template <>
struct BitsOf<double> {
  typedef std::int64_t type;
  static constexpr type magnitude = 0x7fffffffffffffff;
};

/// Vectors of W numbers.
template <class T, int W>
struct Pack {
  typedef typename BitsOf<T>::type Bit;
  typedef T Vector __attribute__((vector_size(W * sizeof(T))));
  typedef T Unaligned __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
  typedef Bit Bits __attribute__((vector_size(W * sizeof(T))));

  static Vector load(const T* from) { return *reinterpret_cast<const Unaligned*>(from); }
  static void store(T* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
  static Vector all(T value) {
    Vector out;
    for (int i = 0; i < W; ++i) out[i] = value;
    return out;
  }
  /// |value| where `mask` is BitsOf<T>::magnitude, 0 where it is 0.
  static Vector magnitude(Vector value, Bits mask) { return (Vector)((Bits)value & mask); }
  static Bits magnitudes(int skipped) {
    Bits mask = {};
    for (int i = skipped; i < W; ++i) mask[i] = BitsOf<T>::magnitude;
    return mask;
  }
  static T sum(Vector value) {
    T total = 0;
    for (int i = 0; i < W; ++i) total += value[i];
    return total;
  }
};

/// a[first], b[first], a[first + 1], b[first + 1], ... of W numbers
template <class P, int W, int first, std::size_t... i>
[[gnu::always_inline]] inline typename P::Vector interleave(typename P::Vector a, typename P::Vector b,
                                                            std::index_sequence<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (static_cast<int>(i & 1) * W + first + static_cast<int>(i / 2))...);
#else
  return __builtin_shuffle(a, b, typename P::Bits{(static_cast<int>(i & 1) * W + first + static_cast<int>(i / 2))...});
#endif
}

/// Number i of the result is the sum of rows[i]: each round folds two rows of halves into one.
template <class T, int W, int count = W>
[[gnu::always_inline]] inline typename Pack<T, W>::Vector sums_of(typename Pack<T, W>::Vector* rows) {
  if constexpr (count == 1) {
    return rows[0];
  } else {
    typedef Pack<T, W> P;
    constexpr auto all = std::make_index_sequence<W>();
    typename P::Vector folded[count / 2];
#pragma GCC unroll 8
    for (int i = 0; i < count / 2; ++i) {
      folded[i] = interleave<P, W, 0>(rows[i], rows[i + count / 2], all) +
                  interleave<P, W, W / 2>(rows[i], rows[i + count / 2], all);
    }
    return sums_of<T, W, count / 2>(folded);
  }
}

/// Call `f(Lanes<W>)` with the widest vectors that `count` numbers fill.
template <int W>
struct Lanes {
  static constexpr int value = W;
};
template <class T, class F, int W = most_lanes<T>>
[[gnu::always_inline]] inline void with_lanes(long count, const F& f) {
  if constexpr (W == 1) {
    f(Lanes<1>{});
  } else {
    if (count >= W)
      f(Lanes<W>{});
    else
      with_lanes<T, F, W / 2>(count, f);
  }
}

/// Fill in the tail of a sample's buffer (`StreamSample`).
template <class T>
void fill_tail(T* values, long count) {
  T* const tail = values + stream_padded(count);
  with_lanes<T>(count, [&](auto lanes) {
    constexpr int W = decltype(lanes)::value;
    const long rest = count % W;
    for (long i = 0; i < W; ++i) tail[i] = i < W - rest ? T(0) : values[count - W + i];
  });
}

/// Bring a line of the next stream's memory near, `ahead` numbers from what is worked on: the passes that write a number
/// of this stream ask for the same number of the next one. A hint only: nothing is read.
inline void ask(const void* address) { __builtin_prefetch(address, 1, 2); }

/// How many rows go together: they share what is loaded of the sample.
template <int W>
constexpr int together = W < 4 ? W : 4;

/// sums[n][row + m] = row m of w times sample n, not yet summed over lanes; with `moving`, w += scale * z first.
template <class T, int W, int M, int N, bool moving>
[[gnu::always_inline]] inline void row_products(T* w, const T* z, T scale, const T* const (&in)[N], long inputs,
                                                typename Pack<T, W>::Vector (&sums)[N][W], long row, long ahead) {
  typedef Pack<T, W> P;
  typedef typename P::Vector Vector;
  const long rest = inputs % W, full = inputs - rest, tail = stream_padded(inputs);
  const Vector scales = P::all(scale);
  Vector sum[M][N] = {}, last[M] = {};
  const T* x_at[N];
  for (int n = 0; n < N; ++n) x_at[n] = in[n];
  if (rest != 0) {  // read before the vector that it overlaps is written
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const long at = m * inputs + inputs - W;
      last[m] = P::load(w + at);
      if constexpr (moving) last[m] += scales * P::load(z + at);
    }
  }
  for (long k = 0; k < full; k += W) {
    Vector x[N];
    for (int n = 0; n < N; ++n) x[n] = P::load(x_at[n] + k);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const long at = m * inputs + k;
      if constexpr (moving) ask(w + at + ahead);
      Vector weights = P::load(w + at);
      if constexpr (moving) {
        weights += scales * P::load(z + at);
        P::store(w + at, weights);
      }
      for (int n = 0; n < N; ++n) sum[m][n] += weights * x[n];
    }
  }
  if (rest != 0) {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      if constexpr (moving) P::store(w + m * inputs + inputs - W, last[m]);
      for (int n = 0; n < N; ++n) sum[m][n] += last[m] * P::load(x_at[n] + tail);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[n][row + m] = sum[m][n];
}

/// out[n] = w in[n] + b for N samples at once, where w (outputs, inputs) is followed by b; with `moving`, w and b move
/// by scale * z first.
template <class T, int N, bool moving>
void layer_forward(T* w, const T* z, T scale, const T* const (&in)[N], T* const (&out)[N], long inputs, long outputs,
                   long ahead) {
  T* const b = w + inputs * outputs;
  if constexpr (moving) {
    const T* const z_b = z + inputs * outputs;
#pragma omp simd
    for (long i = 0; i < outputs; ++i) b[i] += scale * z_b[i];
  }
  with_lanes<T>(inputs, [&](auto lanes) {
    constexpr int W = decltype(lanes)::value, M = together<W>;
    typedef Pack<T, W> P;
    for (long first = 0; first < outputs; first += W) {
      const long there = outputs - first < W ? outputs - first : W;
      typename P::Vector sums[N][W];
      if (there < W) {
        for (int n = 0; n < N; ++n)
          for (int i = 0; i < W; ++i) sums[n][i] = typename P::Vector{};
      }
      long row = 0, place = first * inputs;
      for (; row + M <= there; row += M, place += M * inputs)
        row_products<T, W, M, N, moving>(w + place, z + place, scale, in, inputs, sums, row, ahead);
      for (; row < there; ++row, place += inputs)
        row_products<T, W, 1, N, moving>(w + place, z + place, scale, in, inputs, sums, row, ahead);
      for (int n = 0; n < N; ++n) {
        const typename P::Vector total = sums_of<T, W>(sums[n]);
        if (there == W) {
          P::store(out[n] + first, total + P::load(b + first));
        } else {
          for (long i = 0; i < there; ++i) out[n][first + i] = total[i] + b[first + i];
        }
      }
    }
  });
}

/// Of M rows: z = decay * z + d x^T, the sums of |z| into `size`, and with `down` below += w^T d. `counted` masks what
/// of a vector counts, of a whole one and of the last.
template <class T, int W, int M, bool down>
[[gnu::always_inline]] inline void row_traces(const T* w, T* z, T decay, const T* d, const T* x, T* below, long inputs,
                                              const typename Pack<T, W>::Bits (&counted)[2],
                                              typename Pack<T, W>::Vector (&size)[M], long ahead) {
  typedef Pack<T, W> P;
  typedef typename P::Vector Vector;
  const long rest = inputs % W, full = inputs - rest, tail = stream_padded(inputs), end = inputs - W;
  const Vector decays = P::all(decay);
  Vector gradient[M], last[M] = {};
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) gradient[m] = P::all(d[m]);
  if (rest != 0) {  // read before the vector that it overlaps is written
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) last[m] = P::load(z + m * inputs + end);
  }
  for (long k = 0; k < full; k += W) {
    const Vector values = P::load(x + k);
    Vector under = {};
    if constexpr (down) under = P::load(below + k);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const long at = m * inputs + k;
      ask(z + at + ahead);
      const Vector trace = decays * P::load(z + at) + gradient[m] * values;
      P::store(z + at, trace);
      size[m] += P::magnitude(trace, counted[0]);
      if constexpr (down) under += gradient[m] * P::load(w + at);
    }
    if constexpr (down) P::store(below + k, under);
  }
  if (rest != 0) {
    const Vector values = P::load(x + end);
    Vector under = {};
    if constexpr (down) under = P::load(below + tail);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const long at = m * inputs + end;
      const Vector trace = decays * last[m] + gradient[m] * values;
      P::store(z + at, trace);
      size[m] += P::magnitude(trace, counted[1]);
      if constexpr (down) under += gradient[m] * P::load(w + at);
    }
    if constexpr (down) P::store(below + tail, under);
  }
}

/// Traces of a layer with the gradient d of its outputs: z = decay * z + d x^T and d. Returns the sum of |z|.
///
/// With `down`, below = w^T d; its buffer has `stream_room(inputs)` numbers.
template <class T, bool down>
T layer_traces(const T* w, T* z, T decay, const T* d, const T* x, T* below, long inputs, long outputs,
               long ahead) {
  T total = 0;
  if constexpr (down) {
    for (long i = 0; i < stream_room(inputs); ++i) below[i] = T(0);
  }
  with_lanes<T>(inputs, [&](auto lanes) {
    constexpr int W = decltype(lanes)::value, M = together<W>;
    typedef Pack<T, W> P;
    const int rest = static_cast<int>(inputs % W);
    const typename P::Bits counted[2] = {P::magnitudes(0), P::magnitudes(W - rest)};
    typename P::Vector sizes[M] = {}, others[1] = {};
    long row = 0;
    for (; row + M <= outputs; row += M)
      row_traces<T, W, M, down>(w + row * inputs, z + row * inputs, decay, d + row, x, below, inputs, counted, sizes,
                                ahead);
    for (; row < outputs; ++row)
      row_traces<T, W, 1, down>(w + row * inputs, z + row * inputs, decay, d + row, x, below, inputs, counted, others,
                                ahead);
    for (int m = 0; m < M; ++m) others[0] += sizes[m];
    total = P::sum(others[0]);
    if constexpr (down) {
      for (long i = 0; i < rest; ++i) below[inputs - rest + i] = below[stream_padded(inputs) + W - rest + i];
    }
  });
  T* const z_b = z + inputs * outputs;
  for (long i = 0; i < outputs; ++i) {
    z_b[i] = decay * z_b[i] + d[i];
    total += z_b[i] < T(0) ? -z_b[i] : z_b[i];
  }
  return total;
}

/// w += scale * z, for all of a network.
template <class T>
void move(T* __restrict__ w, const T* __restrict__ z, T scale, long count, long ahead) {
  constexpr long line = 64 / sizeof(T);
  long i = 0;
  for (; i + 4 * line <= count; i += 4 * line) {
    for (long j = 0; j < 4; ++j) ask(w + i + j * line + ahead);
#pragma omp simd
    for (long j = 0; j < 4 * line; ++j) w[i + j] += scale * z[i + j];
  }
  for (; i < count; ++i) w[i] += scale * z[i];
}

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

/// Second moments of delta * z, decayed by beta2; returns the sum of |z| / sqrt(correction * second + epsilon).
template <class T>
T second_moments(T* __restrict__ second, const T* __restrict__ z, T delta, T beta2, T correction, T epsilon,
                 long count) {
  constexpr long chains = stream_pad;
  T sums[chains] = {};
  const auto one = [&](long i) {
    const T step = delta * z[i];
    second[i] = beta2 * second[i] + (T(1) - beta2) * (step * step);
    return (z[i] < T(0) ? -z[i] : z[i]) / root(correction * second[i] + epsilon);
  };
  long i = 0;
  for (; i + chains <= count; i += chains) {
#pragma omp simd
    for (long j = 0; j < chains; ++j) sums[j] += one(i + j);
  }
  T total = 0;
  for (; i < count; ++i) total += one(i);
  for (const T sum : sums) total += sum;
  return total;
}

/// w += scale * z / sqrt(correction * second + epsilon)
template <class T>
void move_adaptively(T* __restrict__ w, const T* __restrict__ z, const T* __restrict__ second, T scale, T correction,
                     T epsilon, long count) {
#pragma omp simd
  for (long i = 0; i < count; ++i) w[i] += scale * (z[i] / root(correction * second[i] + epsilon));
}

}  // namespace
}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
