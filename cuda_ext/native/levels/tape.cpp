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

template <class Out, class... In, class F, std::size_t... I>
inline void map(const Element& e, char* const* places, const F& f, std::index_sequence<I...>) {
  const long n = e.sizes[3], step = e.strides[0][3];
  const bool adjacent = step == 1 && ((e.strides[I + 1][3] == 1) && ...);
  outer(e, [&](long i, long j, long k) {
    Out* out = at<Out>(e, places, 0, i, j, k);
    const std::tuple<const In*...> in(at<const In>(e, places, I + 1, i, j, k)...);
    if (adjacent) {
      for (long x = 0; x < n; ++x) out[x] = f(std::get<I>(in)[x]...);
    } else {
      for (long x = 0; x < n; ++x) out[x * step] = f(std::get<I>(in)[x * e.strides[I + 1][3]]...);
    }
  });
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
