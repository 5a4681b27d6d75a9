// Vectors of the level's registers, and tiles of them: what products are made of. Read by levels/*.cpp only.
#pragma once

#include <cstddef>
#include <utility>

#include "level.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

constexpr long width = register_floats;
constexpr int tile_rows = register_bytes == 64 ? 8 : 6;
constexpr int tile_vectors = 2;
constexpr long tile_lanes = tile_vectors * width;

typedef float Vector __attribute__((vector_size(width * sizeof(float))));
typedef float Unaligned __attribute__((vector_size(width * sizeof(float)), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }

/// A register tile: M rows of V vectors.
template <int M, int V = tile_vectors>
struct Tile {
  Vector sum[M][V];
};

/// tile[m][lane] += sum over k < depth of a[m * a_row + k * a_step] * b[k * b_step + lane].
template <long b_step, int M, int V>
[[gnu::always_inline]] inline void multiply(Tile<M, V>& tile, const float* a, long a_row, long a_step, const float* b,
                                            long depth) {
  for (long k = 0; k < depth; ++k) {
    Vector row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + k * b_step + v * width);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const float scale = a[m * a_row + k * a_step];
      for (int v = 0; v < V; ++v) tile.sum[m][v] += scale * row[v];
    }
  }
}

template <int M>
struct Count {
  static constexpr int value = M;
};

/// Rows of the next tile where `left` are left: at most `most`; the last two tiles share what is left, since one of a few
/// rows would wait for its own sums.
constexpr long taken(long left, long most) { return left >= 2 * most ? most : left > most ? (left + 1) / 2 : left; }

/// Call `f(Count<count>)` for 1 <= count <= most.
template <int most, class F>
[[gnu::always_inline]] inline void with_rows(long count, const F& f) {
  if constexpr (most >= 1) {
    if (count >= most)
      f(Count<most>{});
    else
      with_rows<most - 1>(count, f);
  }
}

/// a[first], b[first], a[first + 1], b[first + 1], ...
template <int first, std::size_t... i>
[[gnu::always_inline]] inline Vector interleave(Vector a, Vector b, std::index_sequence<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, (static_cast<int>(i & 1) * width + first + static_cast<int>(i / 2))...);
#else  // g++ has the other builtin since version 12 only
  typedef int Indices __attribute__((vector_size(width * sizeof(int))));
  return __builtin_shuffle(a, b, Indices{(static_cast<int>(i & 1) * width + first + static_cast<int>(i / 2))...});
#endif
}

/// rows[i] becomes what was column i.
inline void transpose(Vector (&rows)[width]) {
  constexpr auto all = std::make_index_sequence<width>();
#pragma GCC unroll 4
  for (long round = 1; round < width; round *= 2) {
    Vector next[width];
#pragma GCC unroll 16
    for (int i = 0; i < width / 2; ++i) {
      next[2 * i] = interleave<0>(rows[i], rows[i + width / 2], all);
      next[2 * i + 1] = interleave<width / 2>(rows[i], rows[i + width / 2], all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) rows[i] = next[i];
  }
}

}  // namespace
}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
