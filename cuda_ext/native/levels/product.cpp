// Products of matrices: parts of both operands are packed so that the register tile of MLPs reads them as they lie.
//
// The depth is taken in parts whose sums are added to the result one after the other: their ends, and so the order of sums,
// don't depend on the instruction set or on the strides. Of a part, columns of `b` lie in panels as wide as a tile, which
// stay in the nearest cache while tiles of `a` pass by. Source: Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (2008). Sizes were chosen on a Zen 4.
#include "../product.h"

#include <cstring>

#include "../vectors.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

static_assert(most_columns % tile_lanes == 0 && most_rows % tile_rows == 0);

/// Into to[k step + lane] what lies at from[k row + lane column] for depth x there numbers; zeros beyond, up to `filled`.
void pack_lanes(const float* from, long row, long column, float* to, long step, long there, long filled, long depth) {
  if (column == 1) {
    for (long k = 0; k < depth; ++k) {
      const float* source = from + k * row;
      float* place = to + k * step;
      long lane = 0;
      for (; lane + width <= there; lane += width) store(place + lane, load(source + lane));
      for (; lane < there; ++lane) place[lane] = source[lane];
      for (; lane < filled; ++lane) place[lane] = 0.0f;
    }
    return;
  }
  for (long lane = 0; lane < filled; lane += width) {
    const long some = there - lane < width ? there - lane : width;
    long k = 0;
    for (; row == 1 && k + width <= depth && filled - lane >= width; k += width) {
      Vector values[width] = {};
      if (some == width) {
#pragma GCC unroll 16
        for (long i = 0; i < width; ++i) values[i] = load(from + (lane + i) * column + k);
      } else {
        for (long i = 0; i < some; ++i) values[i] = load(from + (lane + i) * column + k);
      }
      transpose(values);
#pragma GCC unroll 16
      for (long i = 0; i < width; ++i) store(to + (k + i) * step + lane, values[i]);
    }
    for (; k < depth; ++k) {
      const long end = filled - lane < width ? filled - lane : width;
      for (long i = 0; i < end; ++i) to[k * step + lane + i] = i < some ? from[k * row + (lane + i) * column] : 0.0f;
    }
  }
}

/// c[i][lane] for M rows and `there` lanes; `first`: it begins with the bias, if there is one, instead of what c holds.
template <int M, int V>
[[gnu::always_inline]] inline void tile_of(const float* a, long a_row, long a_step, const float* b, const float* bias,
                                           long bias_row, float* c, long c_row, long there, long depth, bool first) {
  for (int m = 0; m < M; ++m) {  // the result is on its way while the sums are made
    for (int v = 0; v < V; ++v) __builtin_prefetch(c + m * c_row + v * width, 1);
  }
  Tile<M, V> tile = {};
  multiply<V * width>(tile, a, a_row, a_step, b, depth);
  const float* before = first ? bias : c;
  const long before_row = first ? bias_row : c_row;
  if (there == V * width) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < V; ++v) {
        Vector value = tile.sum[m][v];
        if (before) value += load(before + m * before_row + v * width);
        store(c + m * c_row + v * width, value);
      }
    }
    return;
  }
  float values[M][V * width];
  std::memcpy(values, &tile, sizeof(values));
  for (int m = 0; m < M; ++m) {
    for (long lane = 0; lane < there; ++lane)
      c[m * c_row + lane] = before ? before[m * before_row + lane] + values[m][lane] : values[m][lane];
  }
}

/// Rows of `a` as tiles of M read them: to[i depth + k M + m] = from[(i + m) row + k column], for tiles from row i on.
void pack_rows(const float* from, long row, long column, float* to, long rows, long depth) {
  for (long i = 0, some; i < rows; i += some) {
    some = taken(rows - i, tile_rows);
    with_rows<tile_rows>(some, [&](auto count) {
      constexpr int M = decltype(count)::value;
      const float* source = from + i * row;
      float* place = to + i * depth;
      for (long k = 0; k < depth; ++k, source += column, place += M) {
        if (row == 1) {
          std::memcpy(place, source, M * sizeof(float));
        } else {
          for (long m = 0; m < M; ++m) place[m] = source[m * row];
        }
      }
    });
  }
}

/// A part of an operand that is read next: it is asked for while tiles are computed, a few lines of the cache at a time.
/// Nothing else would: the parts' rows are too short for the processor to see them coming.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const float* from, long row, long column, long rows, long columns) {
    if (row != 1 && column != 1) return;
    const bool turned = column != 1;
    at_ = reinterpret_cast<const char*>(from);
    step_ = (turned ? column : row) * static_cast<long>(sizeof(float));
    bytes_ = (turned ? rows : columns) * static_cast<long>(sizeof(float));
    left_ = turned ? columns : rows;
  }
  long lines() const { return left_ * ((bytes_ + line - 1) / line); }
  void ask(long lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(at_ + place_, 0, 2);
      place_ += line;
      if (place_ >= bytes_) {
        place_ = 0;
        at_ += step_;
        --left_;
      }
    }
  }

 private:
  static constexpr long line = 64;
  const char* at_ = nullptr;
  long step_ = 0, bytes_ = 0, left_ = 0, place_ = 0;
};

/// Results of a part of the operands.
struct Part {
  const float* a;
  long a_row;
  bool packed;  // `a` by `pack_rows`; else the numbers of its rows are adjacent
  const float* bias;
  long bias_row;
  float* c;
  long c_row, rows, depth;
  bool first;
};

/// A panel of `there` <= V * width columns.
template <int V>
void panel_of(const Part& p, const float* b, long lane, long there, Ahead& ahead, long lines) {
  for (long i = 0, some; i < p.rows; i += some) {
    some = taken(p.rows - i, tile_rows);
    ahead.ask(lines);
    with_rows<tile_rows>(some, [&](auto count) {
      constexpr int M = decltype(count)::value;
      const float* a = p.packed ? p.a + i * p.depth : p.a + i * p.a_row;
      const float* bias = p.bias ? p.bias + i * p.bias_row + lane : nullptr;
      float* c = p.c + i * p.c_row + lane;
      if (p.packed)
        tile_of<M, V>(a, 1, M, b, bias, p.bias_row, c, p.c_row, there, p.depth, p.first);
      else
        tile_of<M, V>(a, p.a_row, 1, b, bias, p.bias_row, c, p.c_row, there, p.depth, p.first);
    });
  }
}

}  // namespace

void run_product(const Product& p, const float* a, const float* b, const float* bias, float* c, float* scratch) {
  float *const packed_b = scratch, *const packed_a = scratch + most_deep * most_columns;
  const long parts = p.depth > most_deep ? (p.depth + most_deep - 1) / most_deep : 1;
  const long deep = p.depth > 0 ? (p.depth + parts - 1) / parts : 1;
  const bool pack = p.a.column != 1;
  const auto smaller = [](long a, long b) { return a < b ? a : b; };
  const auto next = [&](long e, long k, long j, long i) {  // seen from part i, j, k of member e, where a and b point
    const long depth = smaller(p.depth - k, deep);
    if (i + most_rows < p.rows)
      return Ahead(a + (i + most_rows) * p.a.row + k * p.a.column, p.a.row, p.a.column,
                   smaller(p.rows - i - most_rows, most_rows), depth);
    if (j + most_columns < p.columns)
      return Ahead(b + k * p.b.row + (j + most_columns) * p.b.column, p.b.row, p.b.column, depth,
                   smaller(p.columns - j - most_columns, most_columns));
    if (k + deep < p.depth)
      return Ahead(b + (k + deep) * p.b.row, p.b.row, p.b.column, smaller(p.depth - k - deep, deep),
                   smaller(p.columns, most_columns));
    if (e + 1 < p.members)
      return Ahead(b + p.b.member, p.b.row, p.b.column, smaller(p.depth, deep), smaller(p.columns, most_columns));
    return Ahead();
  };
  for (long e = 0; e < p.members; ++e, a += p.a.member, b += p.b.member, c += p.c_member) {
    for (long k = 0; k == 0 || k < p.depth; k += deep) {
      const long depth = p.depth - k < deep ? p.depth - k : deep;
      for (long j = 0; j < p.columns; j += most_columns) {
        const long columns = p.columns - j < most_columns ? p.columns - j : most_columns;
        const float* const right = b + k * p.b.row + j * p.b.column;
        for (long lane = 0; lane < columns; lane += tile_lanes) {
          const long there = columns - lane < tile_lanes ? columns - lane : tile_lanes;
          const long step = there > width ? tile_lanes : width;
          pack_lanes(right + lane * p.b.column, p.b.row, p.b.column, packed_b + lane * depth, step, there, step, depth);
        }
        for (long i = 0; i < p.rows; i += most_rows) {
          const long rows = p.rows - i < most_rows ? p.rows - i : most_rows;
          const float* left = a + i * p.a.row + k * p.a.column;
          if (pack) pack_rows(left, p.a.row, p.a.column, packed_a, rows, depth);
          const float* added = p.biased ? bias + e * p.bias_member + i * p.bias_row + j : nullptr;
          const Part part = {pack ? packed_a : left, p.a.row, pack, added, p.bias_row, c + i * p.c_row + j,
                             p.c_row, rows, depth, k == 0};
          Ahead ahead = next(e, k, j, i);
          const long tiles = (columns + tile_lanes - 1) / tile_lanes * ((rows + tile_rows - 1) / tile_rows);
          const long lines = (ahead.lines() + tiles - 1) / tiles;
          for (long lane = 0; lane < columns; lane += tile_lanes) {
            const long there = columns - lane < tile_lanes ? columns - lane : tile_lanes;
            if (there > width)
              panel_of<2>(part, packed_b + lane * depth, lane, there, ahead, lines);
            else
              panel_of<1>(part, packed_b + lane * depth, lane, there, ahead, lines);
          }
        }
      }
    }
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
