// Elementary functions for lanes: without branches, tables or library calls in float, so that loops over lanes
// vectorise. Device-clean: no std or CUDA headers, read by g++, nvcc and NVRTC alike.
// (Not math.h: that name on an include path hides the C library's.)
//
// float: polynomials and rationals fitted to the function by weighted least squares with Lawson's iteration; the
// errors stated are the largest ones over the range, without rounding. double: the library's own.
#pragma once

#if defined(__CUDACC__)
#define SF_INLINE __host__ __device__ __forceinline__
#define SF_LIBRARY(name) ::name
#elif defined(_MSC_VER)
#define SF_INLINE __forceinline
#define SF_LIBRARY(name) __builtin_##name
#else
#define SF_INLINE inline __attribute__((always_inline))
#define SF_LIBRARY(name) __builtin_##name
#endif

// A function template that may be too large to inline. Its linkage is internal: the builds for two instruction sets
// must never share one copy.
#if defined(__CUDACC__)
#define SF_FUNCTION static __host__ __device__
#else
#define SF_FUNCTION static
#endif

namespace surefoot {

using uint32 = unsigned int;

// ---- selects: every argument is computed beforehand, so that no branch is left ----

template <class T>
SF_INLINE T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}
template <class T>
SF_INLINE T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
SF_INLINE T max(T a, T b) {
  return a > b ? a : b;
}
/// A value that is not a number stays one.
template <class T>
SF_INLINE T clip(T x, T low, T high) {
  const T above = x < low ? low : x;
  return above > high ? high : above;
}
SF_INLINE float abs(float x) { return SF_LIBRARY(fabsf)(x); }
SF_INLINE double abs(double x) { return SF_LIBRARY(fabs)(x); }
SF_INLINE float floor(float x) { return SF_LIBRARY(floorf)(x); }
SF_INLINE double floor(double x) { return SF_LIBRARY(floor)(x); }
SF_INLINE float sqrt(float x) { return SF_LIBRARY(sqrtf)(x); }
SF_INLINE double sqrt(double x) { return SF_LIBRARY(sqrt)(x); }
/// -1, 0 or 1.
template <class T>
SF_INLINE T sign(T x) {
  return (x > T(0) ? T(1) : T(0)) - (x < T(0) ? T(1) : T(0));
}

/// x, rounded before it is used: a product does not become part of a fused multiply-add.
SF_INLINE float rounded(float x) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(x);
#else
  return x;
#endif
}

// ---- bits ----

SF_INLINE uint32 bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32, x);
#endif
}
SF_INLINE float float_of(uint32 bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// ---- sine and cosine ----

/// x = rest + turns * pi with |rest| <= pi / 2 and a whole number of half turns, at odd ones of which sine and cosine
/// change their sign.
SF_INLINE void half_turns(float x, float& turns, float& rest) {
  turns = floor(x * 0.318309886f + 0.5f);
#if defined(__FMA__) || defined(__CUDACC__)
  rest = x - turns * 3.14159274f;  // a fused multiply-add rounds once, so two parts of pi are enough
  rest = rest + turns * 8.74227766e-8f;
#else
  rest = x - turns * 3.140625f;  // the first two parts have few bits: their products are exact
  rest = rest - turns * 9.67502593994140625e-4f;
  rest = rest - turns * 1.509957990978376432e-7f;
#endif
}
/// Of |r| <= pi / 2; `flip` is 0 or the bit of the sign.
SF_INLINE void half_turn_sine_cosine(float r, uint32 flip, float& sine, float& cosine) {
  const float q = r * r;
  const float s = -0.166666567f + q * (8.33301712e-3f + q * (-1.98066147e-4f + q * 2.60005481e-6f));
  const float c = -0.5f + q * (4.16654386e-2f + q * (-1.38652313e-3f + q * 2.33793853e-5f));
  sine = float_of(bits_of(r + r * q * s) ^ flip);
  cosine = float_of(bits_of(1.0f + q * c) ^ flip);
}
/// Absolute error 2e-7 for |x| < 1e3, growing with the rounding of x beyond.
SF_INLINE void sine_cosine(float x, float& sine, float& cosine) {
  float turns, rest;
  half_turns(x, turns, rest);
  half_turn_sine_cosine(rest, static_cast<uint32>(static_cast<int>(turns)) << 31, sine, cosine);
}
SF_INLINE void sine_cosine(double x, double& sine, double& cosine) {
  sine = SF_LIBRARY(sin)(x);
  cosine = SF_LIBRARY(cos)(x);
}
template <class T>
SF_INLINE T sin(T x) {
  T sine, cosine;
  sine_cosine(x, sine, cosine);
  return sine;
}
template <class T>
SF_INLINE T cos(T x) {
  T sine, cosine;
  sine_cosine(x, sine, cosine);
  return cosine;
}
template <class T>
SF_INLINE T tan(T x) {
  T sine, cosine;
  sine_cosine(x, sine, cosine);
  return sine / cosine;
}

/// The angle in [-pi, pi) that is x up to whole turns.
template <class T>
SF_INLINE T wrap(T x) {
  return x - T(6.28318530717958648) * floor(x * T(0.159154943091895336) + T(0.5));
}

/// Sine and cosine of x, and the angle in [-pi, pi] that is x up to whole turns. Absolute errors 4e-7 and 3e-7 for
/// |x| < 1e3; a caller that leaves one of the two unused does not pay for it. The roots at pi and pi / 2 are factors: the
/// rest of the polynomials is as well-conditioned over the whole turn as those of `sine_cosine` over half of one, and no
/// sign need be put back.
SF_INLINE void wrapped_sine_cosine(float x, float& angle, float& sine, float& cosine) {
  const float turns = floor(x * 0.159154943f + 0.5f);
#if defined(__FMA__) || defined(__CUDACC__)
  angle = x - turns * 6.28318548f;  // as in `half_turns`
  angle = angle + turns * 1.74845553e-7f;
#else
  angle = x - turns * 6.28125f;
  angle = angle - turns * 1.93500518798828125e-3f;
  angle = angle - turns * 3.019915981956752864e-7f;
#endif
  const float q = angle * angle;
  const float s = 1.73420398e-4f + q * (-2.49787377e-6f + q * 2.03032311e-8f);
  const float c = 1.32928777e-3f + q * (-2.41128673e-5f + q * (2.66606150e-7f + q * -1.72719294e-9f));
  sine = angle * (9.86960440f - q) * (0.101321138f + q * (-6.62076287e-3f + q * s));
  cosine = (2.46740110f - q) * (0.405284733f + q * (-3.83866094e-2f + q * c));
}
SF_INLINE void wrapped_sine_cosine(double x, double& angle, double& sine, double& cosine) {
  angle = wrap(x);
  sine_cosine(x, sine, cosine);
}

// ---- inverse tangent ----

/// Absolute error 2e-7; atan2(0, 0) is 0.
SF_INLINE float atan2(float y, float x) {
  const float ax = abs(x), ay = abs(y);
  const float small = min(ax, ay), large = max(ax, ay);
  const float t = small / (large > 0.0f ? large : 1.0f);
  const float q = t * t;
  float a = -0.0753370076f + q * (0.0430396385f + q * (-0.0162831657f + q * 2.90358998e-3f));
  a = 1.0f + q * (-0.333330929f + q * (0.199930549f + q * (-0.142071381f + q * (0.106546901f + q * a))));
  a = a * t;
  a = ay > ax ? 1.57079633f - a : a;
  a = x < 0.0f ? 3.14159265f - a : a;
  return y < 0.0f ? -a : a;
}
SF_INLINE double atan2(double y, double x) { return SF_LIBRARY(atan2)(y, x); }
template <class T>
SF_INLINE T atan(T x) {
  return atan2(x, T(1));
}

// ---- exponential, logarithm, hyperbolic tangent ----

/// Relative error 2e-7 over [-87, 88]; clipped to that range.
SF_INLINE float exp(float x) {
  x = clip(x, -87.0f, 88.0f);
  const float n = floor(x * 1.44269504f + 0.5f);
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  const float p = 0.5f + r * (0.166665196f + r * (4.16662060e-2f + r * (8.36888235e-3f + r * 1.39504788e-3f)));
  return (1.0f + r + r * r * p) * float_of(static_cast<uint32>(static_cast<int>(n) + 127) << 23);
}
SF_INLINE double exp(double x) { return SF_LIBRARY(exp)(x); }

/// Of a positive, normal x: absolute error 2e-7 beside rounding.
SF_INLINE float log(float x) {
  const uint32 shifted = bits_of(x) - 0x3f3504f3u;  // bits of sqrt(1/2): the mantissa is in [sqrt(1/2), sqrt 2)
  const float exponent = static_cast<float>(static_cast<int>(shifted) >> 23);
  const float z = float_of((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 0.142186552f + z * (-0.123843685f + z * (0.118730128f + z * (-0.117897049f + z * 0.0691516548f)));
  p = 0.333333105f + z * (-0.249999866f + z * (0.200022265f + z * (-0.166692495f + z * p)));
  return exponent * 0.693147181f + (z - 0.5f * z * z + z * z * z * p);
}
SF_INLINE double log(double x) { return SF_LIBRARY(log)(x); }

/// x with its magnitude clipped to `most`, by whole-number operations: no comparison, so that no branch can come of it
/// before an outer loop is vectorised. What is no number becomes +-`most`.
SF_INLINE float limited(float x, float most) {
  const uint32 sign = bits_of(x) & 0x80000000u, magnitude = bits_of(x) & 0x7fffffffu, bound = bits_of(most);
  return float_of((magnitude < bound ? magnitude : bound) | sign);
}

/// Absolute error 4e-7 for |x| <= 8.5.
SF_INLINE float tanh_of_limited(float x) {
  const float q = x * x;
  const float p = 0.126540750f + q * (2.63874838e-3f + q * (6.75165847e-6f + q * -5.45105738e-9f));
  const float d = 1.0f + q * (0.459868729f + q * (0.0226005372f + q * 1.89512502e-4f));
  return x * (0.999998450f + q * p) / d;
}

/// Absolute error 4e-7.
SF_INLINE float tanh(float x) { return tanh_of_limited(clip(x, -8.5f, 8.5f)); }
SF_INLINE double tanh(double x) { return SF_LIBRARY(tanh)(x); }

}  // namespace surefoot
