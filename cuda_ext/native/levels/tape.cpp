// Elementwise operations and reductions of a tape: a few hundred numbers each, so what counts is that nothing is around.
#include "../tape.h"

#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "../maths.h"
#include "../tape_codes.h"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

/// log(1 + exp(x)), relative error 4e-7, in a form that vectorises; Kahan's correction keeps small ones exact.
inline float softplus_of(float x) {
  const float small = surefoot::exp(-surefoot::abs(x)), sum = 1.0f + small, rounded = sum - 1.0f;
  const float logarithm = surefoot::log(sum) * (small / select(rounded > 0.0f, rounded, 1.0f));
  return surefoot::max(x, 0.0f) + select(rounded > 0.0f, logarithm, small);
}

/// 1 / (1 + exp(-x)), relative error 3e-7.
inline float logistic(float x) { return 1.0f / (1.0f + surefoot::exp(-x)); }

// With p = logistic(x) and a = p (2 - p), tanh(softplus(x)) = a / (2 - a): no logarithm, and no cancellation.
/// x tanh(softplus(x)). Source: Misra, "Mish: A Self Regularized Non-Monotonic Activation Function".
inline float mish_of(float x) {
  const float p = logistic(x), a = p * (2.0f - p);
  return x * a / (2.0f - a);
}

inline float mish_slope(float x) {
  const float p = logistic(x), a = p * (2.0f - p), below = 1.0f / (2.0f - a), rest = (1.0f - p) * below;
  return a * below + x * 4.0f * p * rest * rest;
}

/// The standard normal distribution's function, absolute error 1e-7 beside rounding, and its density.
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26.
inline void normal_of(float x, float& below, float& density) {
  const float size = surefoot::abs(x), t = 1.0f / (1.0f + 0.2316418882f * size), e = surefoot::exp(-0.5f * x * x);
  const float tail = 0.5f * e * t *
                     (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  below = select(x < 0.0f, tail, 1.0f - tail);
  density = 0.3989422804f * e;
}

/// x times the normal distribution's function. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units".
inline float gelu_of(float x) {
  float below, density;
  normal_of(x, below, density);
  return x * below;
}

inline float gelu_slope(float x) {
  float below, density;
  normal_of(x, below, density);
  return below + x * density;
}

/// Call `f(i, j, k)` for all but the innermost dimension.
template <class F>
inline void outer(const Element& e, const F& f) {
  for (long i = 0; i < e.sizes[0]; ++i) {
    for (long j = 0; j < e.sizes[1]; ++j) {
      for (long k = 0; k < e.sizes[2]; ++k) f(i, j, k);
    }
  }
}

template <class T>
inline T* at(const Element& e, char* const* places, int operand, long i, long j, long k) {
  const long* s = e.strides[operand];
  return reinterpret_cast<T*>(places[operand]) + i * s[0] + j * s[1] + k * s[2];
}

constexpr long block = 256;  // numbers of an operand that are copied together; or, of one that lies across, 16 rows of 16
constexpr long across = 16;

/// An operand's numbers beside each other, so that loops vectorise: where they lie, or copied from where they don't.
template <class T>
class Line {
 public:
  /// at[k * row + x * step]
  Line(const T* at, long row, long step) : at_(at), row_(row), step_(step) {}

  bool lies_across() const { return step_ != 0 && step_ != 1; }

  /// Have `rows` rows from k on, and `some` numbers of each from x on.
  void have(long k, long rows, long x, long some) {
    k_ = k;
    x_ = x;
    if (step_ == 1 || (step_ == 0 && row_ == 0 && filled_ >= some * rows)) return;
    filled_ = some * rows;
    apart_ = some;
    for (long i = 0; step_ == 0 && i < rows; ++i) {
      const T same = at_[(k + i) * row_];
      for (long l = 0; l < some; ++l) numbers_[i * some + l] = same;
    }
    for (long l = 0; step_ != 0 && l < some; ++l) {
      for (long i = 0; i < rows; ++i) numbers_[i * some + l] = at_[(k + i) * row_ + (x + l) * step_];
    }
  }

  const T* row(long i) const { return step_ == 1 ? at_ + (k_ + i) * row_ + x_ : numbers_ + i * apart_; }

 private:
  const T* at_;
  long row_, step_, k_ = 0, x_ = 0, filled_ = 0, apart_ = 0;
  T numbers_[block];
};

template <class Out, class... In, class F, std::size_t... I>
inline void map(const Element& e, char* const* places, const F& f, std::index_sequence<I...>) {
  const long n = e.sizes[3], step = e.strides[0][3];
  for (long i = 0; i < e.sizes[0]; ++i) {
    for (long j = 0; j < e.sizes[1]; ++j) {
      std::tuple<Line<In>...> lines(
          Line<In>(at<const In>(e, places, I + 1, i, j, 0), e.strides[I + 1][2], e.strides[I + 1][3])...);
      const bool turned = (std::get<I>(lines).lies_across() || ...);
      const long most_rows = turned ? across : 1, most = block / most_rows;
      for (long k = 0; k < e.sizes[2]; k += most_rows) {
        const long rows = e.sizes[2] - k < most_rows ? e.sizes[2] - k : most_rows;
        for (long x = 0; x < n; x += most) {
          const long some = n - x < most ? n - x : most;
          (std::get<I>(lines).have(k, rows, x, some), ...);
          for (long row = 0; row < rows; ++row) {
            Out* out = at<Out>(e, places, 0, i, j, k + row) + x * step;
            const std::tuple<const In*...> in(std::get<I>(lines).row(row)...);
            if (step == 1) {
#pragma omp simd
              for (long l = 0; l < some; ++l) out[l] = f(std::get<I>(in)[l]...);
            } else {
              for (long l = 0; l < some; ++l) out[l * step] = f(std::get<I>(in)[l]...);
            }
          }
        }
      }
    }
  }
}

template <class Out, class... In, class F>
inline void each(const Element& e, char* const* places, const F& f) {
  map<Out, In...>(e, places, f, std::index_sequence_for<In...>{});
}

/// The result has stride 0 where it is reduced: it is set to `start` first, and each number is then taken into it.
template <class F>
inline void fold(const Element& e, char* const* places, float start, const F& f) {
  const long step = e.strides[0][3], from = e.strides[1][3];
  outer(e, [&](long i, long j, long k) {
    float* out = at<float>(e, places, 0, i, j, k);
    for (long x = 0; x < e.sizes[3]; ++x) out[x * step] = start;
  });
  outer(e, [&](long i, long j, long k) {
    float* out = at<float>(e, places, 0, i, j, k);
    const float* in = at<const float>(e, places, 1, i, j, k);
    if (step != 0) {
      for (long x = 0; x < e.sizes[3]; ++x) out[x * step] = f(out[x * step], in[x * from]);
      return;
    }
    float sums[8];  // independent chains: quicker, and more exact than one
    for (float& sum : sums) sum = start;
    long x = 0;
    for (; x + 8 <= e.sizes[3]; x += 8) {
      for (int y = 0; y < 8; ++y) sums[y] = f(sums[y], in[(x + y) * from]);
    }
    for (; x < e.sizes[3]; ++x) sums[0] = f(sums[0], in[x * from]);
    for (const float sum : sums) *out = f(*out, sum);
  });
}

}  // namespace

void run_element(const Element& e, char* const* places) {
  switch (static_cast<Code>(e.code)) {
#define unary(expression) each<float, float>(e, places, [](float a) -> float { return expression; })
#define binary(expression) each<float, float, float>(e, places, [](float a, float b) -> float { return expression; })
#define ternary(expression) \
  each<float, float, float, float>(e, places, [](float a, float b, float c) -> float { return expression; })
#define compare(expression) each<bool, float, float>(e, places, [](float a, float b) -> bool { return expression; })
#define logical(expression) each<bool, bool, bool>(e, places, [](bool a, bool b) -> bool { return expression; })
#define X(kind, name, expression) \
  case Code::name: kind(expression); return;
    SUREFOOT_ELEMENTS(X)
#undef X
    case Code::where:
      each<float, bool, float, float>(e, places, [](bool a, float b, float c) -> float { return a ? b : c; });
      return;
    case Code::to_float: each<float, bool>(e, places, [](bool a) -> float { return a; }); return;
    case Code::logical_not: each<bool, bool>(e, places, [](bool a) -> bool { return !a; }); return;
    case Code::sum: fold(e, places, 0.0f, [](float a, float b) { return a + b; }); return;
    case Code::amin:
      fold(e, places, INFINITY, [](float a, float b) { return a != a || a < b ? a : b; });
      return;
    case Code::amax:
      fold(e, places, -INFINITY, [](float a, float b) { return a != a || a > b ? a : b; });
      return;
    case Code::count: return;
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
