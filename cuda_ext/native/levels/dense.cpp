// MLPs on panels of 32 batch rows: one register tile does all three products, weights are read where they lie.
//
// An activation is held as (panels, features, 32 lanes), so that a layer is out[n][lane] = sum_k w[n][k] in[k][lane]:
// numbers of the weight are broadcast, lanes are vectors, and neither needs packing. The way back to the input of a
// layer is the same product with columns of the weight. The gradient of a weight sums over the batch, so activations are
// transposed once into (features / 32, rows, 32) and the same tile runs over rows. Sizes were chosen on a Zen 4.
#include "../dense.h"

#include <cmath>
#include <cstring>

#include "../vectors.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

constexpr long few = 2;  // so few outputs of a layer, or inputs beside full tiles, are done by dot products
constexpr long near_floats = 1 << 18;  // that the second-level cache keeps beside what streams through it
constexpr long most_whole = 256, least_part = 128;  // rows of a batch that go back through the layers together
constexpr long least_packed = 4;       // panels from which on it pays to copy a weight's columns together

/// tanh by the rational function of maths.h; NaN stays NaN.
inline Vector tanh_of(Vector x) {
  constexpr float most = 8.5f;
  x = x > most ? Vector{} + most : x;
  x = x < -most ? Vector{} - most : x;
  const Vector q = x * x;
  const Vector p = 0.126540750f + q * (2.63874838e-3f + q * (6.75165847e-6f + q * -5.45105738e-9f));
  const Vector d = 1.0f + q * (0.459868729f + q * (0.0226005372f + q * 1.89512502e-4f));
  return x * (0.999998450f + q * p) / d;
}

/// After a layer, and what it does to a gradient that comes from above: `none` after the last one; `sloped` where slopes
/// or masks were saved, and the gradient is multiplied by them.
enum class Activation { none, relu, tanh, sloped };

template <Activation activation>
inline Vector activate(Vector value) {
  if constexpr (activation == Activation::relu) return value < 0.0f ? Vector{} : value;
  if constexpr (activation == Activation::tanh) return tanh_of(value);
  return value;
}

/// `saved`: what the activation gave, or its slopes.
template <Activation activation>
inline Vector pass_down(Vector gradient, Vector saved) {
  if constexpr (activation == Activation::relu) return saved <= 0.0f ? Vector{} : gradient;
  if constexpr (activation == Activation::tanh) return gradient * (1.0f - saved * saved);
  if constexpr (activation == Activation::sloped) return gradient * saved;
  return gradient;
}

/// The activation of one panel's numbers in place, and its slopes unless `slopes` is null.
template <Hidden hidden>
void activate_panel(float* values, float* slopes, long features) {
  constexpr float root = 0.7978845608f, cubic = 0.044715f;  // sqrt(2 / pi), and GELU's own
  for (long i = 0; i < features * lanes; i += width) {
    const Vector x = load(values + i);
    Vector value, slope;
    if constexpr (hidden == Hidden::relu) {
      value = activate<Activation::relu>(x);
      slope = x > 0.0f ? Vector{} + 1.0f : Vector{};
    } else if constexpr (hidden == Hidden::tanh) {
      value = tanh_of(x);
      slope = 1.0f - value * value;
    } else if constexpr (hidden == Hidden::gelu) {
      const Vector squared = x * x, t = tanh_of(root * x * (1.0f + cubic * squared));
      value = 0.5f * x * (1.0f + t);
      slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * (root * (1.0f + 3.0f * cubic * squared));
    } else {
      const Vector share = 0.5f * (1.0f + tanh_of(0.5f * x));  // the logistic function
      value = x * share;
      slope = share * (1.0f + x * (1.0f - share));
    }
    store(values + i, value);
    if (slopes) store(slopes + i, slope);
  }
}

inline void activate_panel(Hidden hidden, float* values, float* slopes, long features) {
  if (hidden == Hidden::relu) activate_panel<Hidden::relu>(values, slopes, features);
  if (hidden == Hidden::tanh) activate_panel<Hidden::tanh>(values, slopes, features);
  if (hidden == Hidden::gelu) activate_panel<Hidden::gelu>(values, slopes, features);
  if (hidden == Hidden::silu) activate_panel<Hidden::silu>(values, slopes, features);
}

/// out[n][lane] = activation(bias[n] + sum_k weight[n][k] in[k][lane]) for one panel; NaN stays NaN.
template <Activation activation>
void layer_forward(const float* weight, const float* bias, const float* in, float* out, long inputs, long outputs) {
  for (long lane = 0; lane < lanes; lane += tile_lanes) {
    for (long n = 0, rows; n < outputs; n += rows) {
      rows = taken(outputs - n, tile_rows);
      with_rows<tile_rows>(rows, [&](auto count) {
        constexpr int M = decltype(count)::value;
        Tile<M> tile;
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          for (int v = 0; v < tile_vectors; ++v) tile.sum[m][v] = Vector{} + bias[n + m];
        }
        multiply<lanes>(tile, weight + n * inputs, inputs, 1, in + lane, inputs);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          for (int v = 0; v < tile_vectors; ++v) {
            store(out + (n + m) * lanes + lane + v * width, activate<activation>(tile.sum[m][v]));
          }
        }
      });
    }
  }
}

/// to[k outputs + n M + m] = weight[n][k + m], for the tiles of M rows that begin at row k: the columns that a tile reads
/// lie together. Those of a wide weight would all fall into a few sets of the cache; so would more rows at once here.
void pack_columns(const float* weight, float* to, long inputs, long outputs) {
  constexpr long together = 8;
  for (long first = 0; first < outputs; first += together) {
    const long end = outputs - first < together ? outputs : first + together;
    for (long k = 0, rows; k < inputs; k += rows) {
      rows = taken(inputs - k, tile_rows);
      with_rows<tile_rows>(rows, [&](auto count) {
        constexpr int M = decltype(count)::value;
        for (long n = first; n < end; ++n)
          std::memcpy(to + k * outputs + n * M, weight + n * inputs + k, M * sizeof(float));
      });
    }
  }
}

/// below[k][lane] = sum_n weight[n][k] above[n][lane] in all panels, times the slope of what gave `activated`.
///
/// A panel stays in the nearest cache while the weight passes by. `packed`: inputs * outputs floats of scratch.
template <Activation activation>
void layer_down(const float* weight, const float* above, const float* activated, float* below, long inputs,
                long outputs, long count_panels, float* packed) {
  const bool together = count_panels >= least_packed;
  if (together) pack_columns(weight, packed, inputs, outputs);
  for (long panel = 0; panel < count_panels; ++panel) {
    const float* from = above + panel * outputs * lanes;
    for (long lane = 0; lane < lanes; lane += tile_lanes) {
      for (long k = 0, rows; k < inputs; k += rows) {
        rows = taken(inputs - k, tile_rows);
        with_rows<tile_rows>(rows, [&](auto count) {
          constexpr int M = decltype(count)::value;
          const long place = (panel * inputs + k) * lanes + lane;
          Tile<M> tile = {};
          multiply<lanes>(tile, together ? packed + k * outputs : weight + k, 1, together ? M : inputs, from + lane, outputs);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            for (int v = 0; v < tile_vectors; ++v) {
              const long at = place + m * lanes + v * width;
              Vector value = tile.sum[m][v];
              if constexpr (activation != Activation::none) value = pass_down<activation>(value, load(activated + at));
              store(below + at, value);
            }
          }
        });
      }
    }
  }
}

/// (panels, features, lanes) to (features / lanes, batch rows, lanes); features are filled up with zeros.
void batch_major(const float* from, float* to, long features, long rows) {
  const long padded = panels(rows) * lanes;
  for (long panel = 0; panel < panels(rows); ++panel) {
    for (long feature = 0; feature < features; feature += width) {
      const long there = features - feature < width ? features - feature : width;
      float* block = to + (feature / lanes * padded + panel * lanes) * lanes + feature % lanes;
      for (long lane = 0; lane < lanes; lane += width) {
        Vector values[width] = {};
        const float* source = from + (panel * features + feature) * lanes + lane;
        if (there == width) {
#pragma GCC unroll 16
          for (long i = 0; i < width; ++i) values[i] = load(source + i * lanes);
        } else {
          for (long i = 0; i < there; ++i) values[i] = load(source + i * lanes);
        }
        transpose(values);
#pragma GCC unroll 16
        for (long i = 0; i < width; ++i) store(block + (lane + i) * lanes, values[i]);
      }
    }
  }
}

/// out[i * step] = sum over the batch of features i of `values` times `factor`, or of the features alone; added to what
/// is there unless `fresh`.
///
/// values: (panels, features, lanes); factor: panels `factor_stride` floats apart, or null.
void dots(const float* values, const float* factor, long factor_stride, float* out, long step, long features,
          long count_panels, bool fresh) {
  for (long feature = 0; feature < features; feature += width) {
    const long there = features - feature < width ? features - feature : width;
    Vector sums[width] = {};
    for (long panel = 0; panel < count_panels; ++panel) {
      const float* source = values + (panel * features + feature) * lanes;
      for (long lane = 0; lane < lanes; lane += width) {
        const Vector scale = factor ? load(factor + panel * factor_stride + lane) : Vector{} + 1.0f;
        if (there == width) {
#pragma GCC unroll 16
          for (long i = 0; i < width; ++i) sums[i] += scale * load(source + i * lanes + lane);
        } else {
          for (long i = 0; i < there; ++i) sums[i] += scale * load(source + i * lanes + lane);
        }
      }
    }
    transpose(sums);
    Vector total = {};
    for (long i = 0; i < width; ++i) total += sums[i];
    for (long i = 0; i < there; ++i) {
      float& to = out[(feature + i) * step];
      to = fresh ? total[i] : to + total[i];
    }
  }
}

/// gradient[n][k] for first <= n < end and k < there <= V * width, of a gradient with rows of `inputs` numbers: sums over
/// the batch, which continue from what `gradient` holds unless `fresh`.
template <int V>
void gradient_columns(const float* above, const float* column, float* gradient, long there, long inputs, long outputs,
                      long first_row, long end, long rows, bool fresh) {
  constexpr int most = tile_rows * tile_vectors / V;
  for (long n = first_row, some_rows; n < end; n += some_rows) {
    some_rows = taken(end - n, most);
    with_rows<most>(some_rows, [&](auto count) {
      constexpr int M = decltype(count)::value;
      Tile<M, V> tile = {};
      float* to = gradient + n * inputs;
      for (int m = 0; m < M; ++m) {  // it is on its way while the sums are made
        for (int v = 0; v < V; ++v) __builtin_prefetch(to + m * inputs + v * width, 1);
      }
      const bool whole = there == V * width;
      if (!fresh && whole) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          for (int v = 0; v < V; ++v) tile.sum[m][v] = load(to + m * inputs + v * width);
        }
      } else if (!fresh) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) std::memcpy(&tile.sum[m], to + m * inputs, there * sizeof(float));
      }
      for (long first = 0; first < rows; first += lanes) {
        const long some = rows - first < lanes ? rows - first : lanes;
        multiply<lanes>(tile, above + first * outputs + n * lanes, lanes, 1, column + first * lanes, some);
      }
      if (whole) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          for (int v = 0; v < V; ++v) store(to + m * inputs + v * width, tile.sum[m][v]);
        }
      } else {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) std::memcpy(to + m * inputs, &tile.sum[m], there * sizeof(float));
      }
    });
  }
}

/// gradient[n][k] = sum over rows b of above[b][n] * in[b][k]; both in panels; added to what is there unless `fresh`.
/// `turned` is scratch as large as `in`.
void weight_gradient(const float* above, const float* in, float* gradient, long inputs, long outputs, long rows,
                     float* turned, bool fresh) {
  const long count = panels(rows);
  if (outputs <= few) {
    for (long n = 0; n < outputs; ++n)
      dots(in, above + n * lanes, outputs * lanes, gradient + n * inputs, 1, inputs, count, fresh);
    return;
  }
  batch_major(in, turned, inputs, rows);
  const long near = rows * outputs <= near_floats / 2 ? outputs : near_floats / 8 / rows;
  const long some = near < tile_rows ? tile_rows : near;
  for (long n = 0; n < outputs; n += some) {  // numbers of `above` that stay near while the columns pass by
    const long end = outputs - n < some ? outputs : n + some;
    for (long k = 0; k < inputs; k += tile_lanes) {
      const float* column = turned + k / lanes * count * lanes * lanes + k % lanes;
      const long there = inputs - k < tile_lanes ? inputs - k : tile_lanes;
      const long beside = there > width ? there - width : 0;
      if (there > width && beside > few)
        gradient_columns<2>(above, column, gradient + k, there, inputs, outputs, n, end, rows, fresh);
      else
        gradient_columns<1>(above, column, gradient + k, there < width ? there : width, inputs, outputs, n, end, rows,
                            fresh);
    }
  }
  const long k = inputs / tile_lanes * tile_lanes + width;  // the first of a few columns beside full tiles
  for (long i = k; i < inputs && inputs - k <= few; ++i)
    dots(above, in + i * lanes, inputs * lanes, gradient + i, inputs, outputs, count, fresh);
}

/// Rows of a batch into panels; lanes beyond the last row become zero.
void into_panels(const float* data, long stride, long features, long rows, float* to) {
  for (long first = 0; first < rows; first += lanes, to += features * lanes) {
    const long some = rows - first < lanes ? rows - first : lanes;
    if (some < lanes) std::memset(to, 0, features * lanes * sizeof(float));
    long turned = 0;  // features of whole panels, `width` at once
    for (; some == lanes && features - turned >= width; turned += width) {
      for (long lane = 0; lane < lanes; lane += width) {
        Vector values[width];
#pragma GCC unroll 16
        for (long i = 0; i < width; ++i) values[i] = load(data + (first + lane + i) * stride + turned);
        transpose(values);
#pragma GCC unroll 16
        for (long i = 0; i < width; ++i) store(to + (turned + i) * lanes + lane, values[i]);
      }
    }
    for (long lane = 0; lane < some; ++lane) {
      const float* row = data + (first + lane) * stride;
      for (long i = turned; i < features; ++i) to[i * lanes + lane] = row[i];
    }
  }
}

/// values[i] *= factors[i], of one panel or several.
void multiply_by(float* values, const float* factors, long numbers) {
  for (long i = 0; i < numbers; i += width) store(values + i, load(values + i) * load(factors + i));
}

/// Panels to rows that lie one after the other.
void from_panels(const float* from, long features, long rows, float* to) {
  for (long first = 0; first < rows; first += lanes, from += features * lanes) {
    const long some = rows - first < lanes ? rows - first : lanes;
    if (features == 1) {
      std::memcpy(to + first, from, some * sizeof(float));
      continue;
    }
    for (long lane = 0; lane < some; ++lane) {
      for (long i = 0; i < features; ++i) to[(first + lane) * features + i] = from[i * lanes + lane];
    }
  }
}

/// Layer norm of one panel in place, then the activation; what was scaled goes to `normal`, by how much to `inverse`,
/// unless they are null. Source: Ba, Kiros and Hinton, "Layer Normalization".
template <Activation activation>
void normalise(float* values, const float* gain, const float* shift, float* normal, float* inverse, long features,
               float epsilon) {
  const float share = 1.0f / static_cast<float>(features);
  for (long lane = 0; lane < lanes; lane += width) {
    Vector sum = {}, squares = {};
    for (long n = 0; n < features; ++n) sum += load(values + n * lanes + lane);
    const Vector mean = share * sum;
    for (long n = 0; n < features; ++n) {
      const Vector apart = load(values + n * lanes + lane) - mean;
      squares += apart * apart;
    }
    Vector scale = share * squares + epsilon;
    for (long i = 0; i < width; ++i) scale[i] = 1.0f / std::sqrt(scale[i]);
    for (long n = 0; n < features; ++n) {
      const Vector unit = (load(values + n * lanes + lane) - mean) * scale;
      if (normal) store(normal + n * lanes + lane, unit);
      store(values + n * lanes + lane, activate<activation>(gain[n] * unit + shift[n]));
    }
    if (inverse) store(inverse + lane, scale);
  }
}

/// The gradient of one panel before a layer norm, in place of the one after it.
void through_norm(float* gradient, const float* normal, const float* inverse, const float* gain, long features) {
  const float share = 1.0f / static_cast<float>(features);
  for (long lane = 0; lane < lanes; lane += width) {
    Vector sum = {}, along = {};
    for (long n = 0; n < features; ++n) {
      const Vector scaled = gain[n] * load(gradient + n * lanes + lane);
      sum += scaled;
      along += scaled * load(normal + n * lanes + lane);
    }
    sum *= share;
    along *= share;
    const Vector scale = load(inverse + lane);
    for (long n = 0; n < features; ++n) {
      const Vector scaled = gain[n] * load(gradient + n * lanes + lane);
      store(gradient + n * lanes + lane, scale * (scaled - sum - along * load(normal + n * lanes + lane)));
    }
  }
}

/// out[n] = sum over the batch of a[n] b[n], both in panels; added to what is there unless `fresh`.
void products(const float* a, const float* b, float* out, long features, long count_panels, bool fresh) {
  for (long n = 0; n < features; ++n) {
    Vector sum = {};
    for (long panel = 0; panel < count_panels; ++panel) {
      const long at = (panel * features + n) * lanes;
      for (long lane = 0; lane < lanes; lane += width) sum += load(a + at + lane) * load(b + at + lane);
    }
    float total = 0.0f;
    for (long i = 0; i < width; ++i) total += sum[i];
    out[n] = fresh ? total : out[n] + total;
  }
}

template <bool averaged>
void adam(const AdamStep& s, long size, float* __restrict__ parameters, const float* __restrict__ gradients,
          float* __restrict__ first, float* __restrict__ second, float* __restrict__ average) {
  for (long i = 0; i < size; ++i) {
    const float gradient = gradients[i];
    const float mean = first[i] + (gradient - first[i]) * (1.0f - s.beta1);
    const float square = second[i] * s.beta2 + (1.0f - s.beta2) * gradient * gradient;
    first[i] = mean;
    second[i] = square;
    const float value = parameters[i] * s.keep - s.step_size * mean / (std::sqrt(square) * s.second_scale + s.epsilon);
    parameters[i] = value;
    if (averaged) average[i] += s.average_rate * (value - average[i]);
  }
}

inline long round_up(long value, long multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Where in what is saved of a hidden layer its slopes begin.
long slopes_at(const Mlp& mlp, int layer) {
  return panels(mlp.rows) * lanes * (mlp.normed() ? 2 * mlp.sizes[layer] + 1 : mlp.sizes[layer]);
}

/// Likewise its masks.
long masks_at(const Mlp& mlp, int layer) {
  return slopes_at(mlp, layer) + (mlp.sloped() ? panels(mlp.rows) * lanes * mlp.sizes[layer] : 0);
}

long widest(const Mlp& mlp) {
  long found = 0;
  for (int layer = 0; layer <= mlp.layers; ++layer) found = mlp.sizes[layer] > found ? mlp.sizes[layer] : found;
  return found;
}

}  // namespace

/// outputs: (members, rows, out); saved: `saved_size` floats, or null where no gradient is wanted.
void mlp_forward(const Mlp& mlp, const Rows& inputs, const Rows& masks, float* saved, float* outputs, float* scratch) {
  const long count = panels(mlp.rows), wide = round_up(widest(mlp), 16) * lanes;
  float* first = scratch;
  float* buffers[2] = {scratch + count * mlp.sizes[0] * lanes, scratch + count * mlp.sizes[0] * lanes + wide};
  float* turned = buffers[1] + wide;  // masks of one panel
  float* last = turned + wide;
  const long out = mlp.sizes[mlp.layers];
  for (long member = 0; member < mlp.members; ++member) {
    if (member == 0 || inputs.member_stride != 0)
      into_panels(inputs.data + member * inputs.member_stride, inputs.row_stride, mlp.sizes[0], mlp.rows, first);
    for (long panel = 0; panel < count; ++panel) {
      const float* in = first + panel * mlp.sizes[0] * lanes;
      float* place = saved;
      const long there = mlp.rows - panel * lanes < lanes ? mlp.rows - panel * lanes : lanes;
      const float* dropped = masks.data + member * masks.member_stride + panel * lanes * masks.row_stride;
      for (int layer = 0; layer < mlp.layers; ++layer) {
        const long before = mlp.sizes[layer], after = mlp.sizes[layer + 1];
        const float* weight = mlp.weight(layer, member);
        const float* bias = mlp.bias(layer, member);
        if (layer == mlp.layers - 1) {
          layer_forward<Activation::none>(weight, bias, in, last + panel * out * lanes, before, after);
        } else {
          float* to = saved ? place + panel * after * lanes : buffers[layer % 2];
          float* slopes = saved && mlp.sloped() ? place + slopes_at(mlp, layer + 1) + panel * after * lanes : nullptr;
          float* mask = saved && mlp.masks_apart() ? place + masks_at(mlp, layer + 1) + panel * after * lanes : turned;
          if (mlp.dropout != Dropout::none) {
            into_panels(dropped, masks.row_stride, after, there, mask);
            dropped += after;
          }
          if (mlp.normed()) {
            layer_forward<Activation::none>(weight, bias, in, to, before, after);
            if (mlp.dropout == Dropout::sums) multiply_by(to, mask, after * lanes);
            if (mlp.norm_after) activate_panel(mlp.hidden, to, slopes, after);
            float* normal = saved ? place + (count + panel) * after * lanes : nullptr;
            float* inverse = saved ? place + (2 * count * after + panel) * lanes : nullptr;
            const float* gain = mlp.gains[layer] + member * after;
            const float* shift = mlp.shifts[layer] + member * after;
            if (mlp.sloped())
              normalise<Activation::none>(to, gain, shift, normal, inverse, after, mlp.norm_epsilon);
            else if (mlp.hidden == Hidden::relu)
              normalise<Activation::relu>(to, gain, shift, normal, inverse, after, mlp.norm_epsilon);
            else
              normalise<Activation::tanh>(to, gain, shift, normal, inverse, after, mlp.norm_epsilon);
            if (mlp.sloped() && !mlp.norm_after) activate_panel(mlp.hidden, to, slopes, after);
          } else if (mlp.hidden == Hidden::relu && mlp.dropout == Dropout::none) {
            layer_forward<Activation::relu>(weight, bias, in, to, before, after);
          } else {  // apart: beside a tile there are no registers for the constants of a function
            layer_forward<Activation::none>(weight, bias, in, to, before, after);
            if (mlp.dropout == Dropout::sums) multiply_by(to, mask, after * lanes);
            activate_panel(mlp.hidden, to, slopes, after);
          }
          if (mlp.dropout == Dropout::activations) multiply_by(to, mask, after * lanes);
          if (mlp.dropout != Dropout::none && slopes && !mlp.masks_apart()) multiply_by(slopes, mask, after * lanes);
          in = to;
          if (saved) place += saved_block(mlp, layer + 1);
        }
      }
    }
    for (int layer = 1; saved && layer < mlp.layers; ++layer) saved += saved_block(mlp, layer);
    from_panels(last, out, mlp.rows, outputs + member * mlp.rows * out);
  }
}

/// Gradients of what `mlp_forward` computed, for (members, rows, out) output gradients.
///
/// A long batch is taken in parts whose activations stay in the cache from layer to layer.
void mlp_backward(const Mlp& mlp, const Rows& inputs, const float* saved, const Rows& output_gradients,
                  const Gradients& wanted, float* scratch) {
  const long most = widest(mlp), fitting = near_floats / (8 * most) / lanes * lanes;
  const long least = most / 2 > least_part ? most / 2 / lanes * lanes : least_part;  // else gradients of wide layers pass by
  const long part = mlp.rows <= most_whole ? most_whole : fitting < least ? least : fitting;  // once for each few rows
  const long count_all = panels(mlp.rows);
  const long wide = panels(part < mlp.rows ? part : mlp.rows) * round_up(most, lanes) * lanes;
  float* above = scratch;
  float* below = above + wide;
  float* turned = below + wide;
  float* first = turned + wide;
  float* packed = first + wide;
  for (long begin = 0; begin == 0 || begin < mlp.rows; begin += part) {  // once without rows: all sums are 0
    const long rows = mlp.rows - begin < part ? mlp.rows - begin : part, count = panels(rows);
    const bool fresh = begin == 0;
    const float* activations = saved;
    for (long member = 0; member < mlp.members; ++member) {
      for (int layer = 1; layer < mlp.layers; ++layer) activations += saved_block(mlp, layer);
      const float* const next = activations;
      const Rows& given = output_gradients;
      into_panels(given.data + member * given.member_stride + begin * given.row_stride, given.row_stride,
                  mlp.sizes[mlp.layers], rows, above);
      for (int layer = mlp.layers - 1; layer >= 0; --layer) {
        const long before = mlp.sizes[layer], after = mlp.sizes[layer + 1], skipped = begin * before;
        const float* in = first;
        if (layer > 0) {
          activations -= saved_block(mlp, layer);
          in = activations + skipped;
        } else if (wanted.weights[0] && (member == 0 || inputs.member_stride != 0)) {
          const float* data = inputs.data + member * inputs.member_stride + begin * inputs.row_stride;
          into_panels(data, inputs.row_stride, before, rows, first);
        }
        if (wanted.biases[layer])
          dots(above, nullptr, 0, wanted.biases[layer] + member * after, 1, after, count, fresh);
        if (wanted.weights[layer])
          weight_gradient(above, in, wanted.weights[layer] + member * before * after, before, after, rows, turned,
                          fresh);
        if (layer > 0) {
          const float* weight = mlp.weight(layer, member);
          const float* slopes = activations + slopes_at(mlp, layer) + skipped;  // read only where they were saved
          const float* masks = activations + masks_at(mlp, layer) + skipped;    // likewise
          if (mlp.normed() && mlp.norm_after && mlp.masks_apart())
            layer_down<Activation::sloped>(weight, above, masks, below, before, after, count, packed);
          else if (mlp.normed() && mlp.norm_after)
            layer_down<Activation::none>(weight, above, nullptr, below, before, after, count, packed);
          else if (mlp.sloped())
            layer_down<Activation::sloped>(weight, above, slopes, below, before, after, count, packed);
          else if (mlp.hidden == Hidden::relu)
            layer_down<Activation::relu>(weight, above, in, below, before, after, count, packed);
          else
            layer_down<Activation::tanh>(weight, above, in, below, before, after, count, packed);
          if (mlp.normed()) {
            const float* normal = activations + count_all * before * lanes + skipped;
            const float* inverse = activations + 2 * count_all * before * lanes + begin;
            float* to_gains = wanted.gains[layer - 1];
            float* to_shifts = wanted.shifts[layer - 1];
            if (to_gains) products(below, normal, to_gains + member * before, before, count, fresh);
            if (to_shifts) dots(below, nullptr, 0, to_shifts + member * before, 1, before, count, fresh);
            for (long panel = 0; panel < count; ++panel)
              through_norm(below + panel * before * lanes, normal + panel * before * lanes, inverse + panel * lanes,
                           mlp.gains[layer - 1] + member * before, before);
            if (mlp.norm_after)
              multiply_by(below, slopes, count * before * lanes);
            else if (mlp.masks_apart())
              multiply_by(below, masks, count * before * lanes);
          }
          float* swap = above;
          above = below;
          below = swap;
        } else if (wanted.inputs) {
          // Summed over the members in panels: `first` is not needed again when the last member's sum is written.
          layer_down<Activation::none>(mlp.weight(0, member), above, nullptr, turned, before, after, count, packed);
          from_panels(turned, before, rows, below);
          float* to = wanted.inputs + begin * before;
          for (long i = 0; i < rows * before; ++i) to[i] = member == 0 ? below[i] : to[i] + below[i];
        }
      }
      activations = next;
    }
  }
}

/// One step of Adam (Kingma and Ba, algorithm 1) in the form of `AdamStep`; then average += rate (parameter - average).
void adam_step(const AdamStep& s, long size, float* __restrict__ parameters, const float* __restrict__ gradients,
               float* __restrict__ first, float* __restrict__ second, float* __restrict__ average) {
  if (average)
    adam<true>(s, size, parameters, gradients, first, second, average);
  else
    adam<false>(s, size, parameters, gradients, first, second, average);
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
