// Philox's words of many counters at once, and what becomes of them; pieces of words stay in the first cache in between.
#include "../counter.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "../maths.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

constexpr int rounds = 10;
constexpr std::uint64_t factor0 = 0xD2511F53u, factor2 = 0xCD9E8D57u;
constexpr std::uint32_t step0 = 0x9E3779B9u, step1 = 0xBB67AE85u;
constexpr std::uint64_t word = 0xFFFFFFFFu;

typedef std::uint64_t Lanes __attribute__((vector_size(register_bytes)));
constexpr int per_register = register_bytes / 8;
constexpr int chains = register_bytes == 64 ? 4 : 2;  // registers of counters at once, which hide a product's latency
constexpr int counters = chains * per_register;
constexpr int piece = 512;  // words
static_assert(piece % (4 * counters) == 0);

constexpr std::uint64_t numbers[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
static_assert(sizeof numbers >= counters * sizeof(std::uint64_t));

/// Products of the lower 32 bits of each lane: what lies above them does not matter.
inline Lanes product(Lanes a, Lanes b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Lanes>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & word) * (b & word);
#endif
}

/// 4 * counters words from a counter on. A lane holds a word of one counter; above it is what the products left there.
inline void philox(const Place& place, std::uint32_t first, std::uint32_t* out) {
  Lanes c0[chains], c1[chains], c2[chains], c3[chains];
#pragma GCC unroll 4
  for (int chain = 0; chain < chains; ++chain) {
    Lanes offsets;
    std::memcpy(&offsets, numbers + chain * per_register, sizeof offsets);
    c0[chain] = offsets + first;
    c1[chain] = Lanes{} + place.low_block;
    c2[chain] = Lanes{} + place.high_block;
    c3[chain] = Lanes{} + place.purpose;
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(place.seed), k1 = static_cast<std::uint32_t>(place.seed >> 32);
  const Lanes f0 = Lanes{} + factor0, f2 = Lanes{} + factor2;
  for (int round = 0; round < rounds; ++round) {
    const Lanes key0 = Lanes{} + k0, key1 = Lanes{} + k1;
#pragma GCC unroll 4
    for (int chain = 0; chain < chains; ++chain) {
      const Lanes one = product(c0[chain], f0), two = product(c2[chain], f2);
      c0[chain] = (two >> 32) ^ c1[chain] ^ key0;
      c2[chain] = (one >> 32) ^ c3[chain] ^ key1;
      c1[chain] = two;
      c3[chain] = one;
    }
    k0 += step0;
    k1 += step1;
  }
  std::uint64_t pairs[2][counters], both[2 * counters];
#pragma GCC unroll 4
  for (int chain = 0; chain < chains; ++chain) {
    const Lanes low = (c0[chain] & word) | (c1[chain] << 32), high = (c2[chain] & word) | (c3[chain] << 32);
    std::memcpy(&pairs[0][chain * per_register], &low, sizeof low);
    std::memcpy(&pairs[1][chain * per_register], &high, sizeof high);
  }
  for (int i = 0; i < counters; ++i) {
    both[2 * i] = pairs[0][i];
    both[2 * i + 1] = pairs[1][i];
  }
  std::memcpy(out, both, sizeof both);
}

/// Call f(words, number of the first, how many) for pieces of the stream from a place on.
template <class F>
inline void pieces(const Place& place, long count, const F& f) {
  alignas(64) std::uint32_t words[piece];
  for (long done = 0; done < count; done += piece) {
    const long now = std::min<long>(piece, count - done);
    for (long w = 0; w < now; w += 4 * counters)
      philox(place, place.counter + static_cast<std::uint32_t>((done + w) / 4), words + w);
    f(words, done, now);
  }
}

// A word as a signed number where it fits one: all instruction sets turn those into floats.
SF_INLINE float whole(std::uint32_t w) { return static_cast<float>(static_cast<int>(w)); }

/// AS 241 (Wichura, 1988): the inverse of the normal distribution at a word, whose uppermost bit is the sign. The
/// branch for tails below 1.4e-11 is of no use: 31 bits are 1.2e-10 at least.
SF_INLINE float normal_at(std::uint32_t w) {
  const float p = (whole(w & 0x7FFFFFFFu) + 0.5f) * 2.32830643653869629e-10f;
  const float below = p - 0.5f, squared = 0.180625f - below * below;
  const float root = surefoot::sqrt(-surefoot::log(p)), t = root - 1.6f;
  const bool central = squared >= 0.0f;
  const float c_above =
      -below * (((59.109374720f * squared + 159.29113202f) * squared + 50.434271938f) * squared + 3.3871327179f);
  const float c_below = ((67.187563600f * squared + 78.757757664f) * squared + 17.895169469f) * squared + 1.0f;
  const float t_above = ((0.17023821103f * t + 1.3067284816f) * t + 2.7568153900f) * t + 1.4234372777f;
  const float t_below = (0.12021132975f * t + 0.73700164250f) * t + 1.0f;
  const float size = select(central, c_above, t_above) / select(central, c_below, t_below);
  return float_of(bits_of(size) ^ (~w & 0x80000000u));
}

/// -log of (w + 1/2) / 2^32; the word is rounded to a float once, as a sum of two halves that are exact.
SF_INLINE float exponential_at(std::uint32_t w) {
  const float rounded = whole(w >> 16) * 65536.0f + whole(w & 0xFFFFu);
  return 0.0f - surefoot::log((rounded + 0.5f) * 2.32830643653869629e-10f);
}

/// Of two words 53 bits, in [0, 1).
SF_INLINE double uniform_at(std::uint32_t upper, std::uint32_t lower) {
  const double high = static_cast<int>(upper >> 5), low = static_cast<int>(lower >> 6);
  return (high * 67108864.0 + low) * 1.1102230246251565404e-16;
}

template <class T, class F>
inline void map(const Place& place, long count, void* out, const F& f) {
  T* const to = static_cast<T*>(out);
  pieces(place, count, [&](const std::uint32_t* words, long done, long now) {
    T* const here = to + done;
    for (long i = 0; i < now; ++i) here[i] = f(words[i]);
  });
}

template <class T, class F>
inline void map_pairs(const Place& place, long count, void* out, const F& f) {
  T* const to = static_cast<T*>(out);
  pieces(place, 2 * count, [&](const std::uint32_t* words, long done, long now) {
    T* const here = to + done / 2;
    for (long i = 0; i < now / 2; ++i) here[i] = f(words[2 * i], words[2 * i + 1]);
  });
}

// A permutation sorts 63-bit keys, the upper 31 bits of one word and all of the next, equal ones by their place. An item
// holds the first 31 bits and, below them, the place: what they leave equal, about n^2 / 2^32 pairs, is settled at the end.

constexpr int small_bits = 14;  // of so many items the counts of parts, and the items of a part, stay in the cache

inline int bits_of_length(long count) {
  int bits = 0;
  while (count >> (bits + 1)) ++bits;
  return bits;
}

/// Parts by `bits` bits of items below their `skipped` uppermost: `take(f)` calls f(item) for all of them, twice.
template <class Take>
inline void scatter(const Take& take, int skipped, int bits, std::vector<std::uint32_t>& ends, std::uint64_t* to) {
  const int shift = 63 - skipped - bits;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  ends.assign((std::size_t{1} << bits) + 1, 0);
  take([&](std::uint64_t item) { ++ends[(item >> shift & mask) + 1]; });
  for (std::size_t part = 1; part < ends.size(); ++part) ends[part] += ends[part - 1];
  take([&](std::uint64_t item) { to[ends[item >> shift & mask]++] = item; });
}

/// Sort items that lie in their parts of a few already.
inline void insertion_sort(std::uint64_t* items, long count) {
  for (long i = 1; i < count; ++i) {
    const std::uint64_t item = items[i];
    long j = i;
    for (; j > 0 && items[j - 1] > item; --j) items[j] = items[j - 1];
    items[j] = item;
  }
}

}  // namespace

void permutation(const Place& place, long count, std::int64_t* out) {
  if (count == 0) return;
  const auto room = [&](long n) { return std::unique_ptr<std::uint64_t[]>(new std::uint64_t[n]); };
  const std::unique_ptr<std::uint64_t[]> keys = room(count + piece), first = room(count);
  auto* const words = reinterpret_cast<std::uint32_t*>(keys.get());
  for (long w = 0; w < 2 * count; w += 4 * counters)
    philox(place, place.counter + static_cast<std::uint32_t>(w / 4), words + w);
  const auto from_words = [&](const auto& f) {
    for (long i = 0; i < count; ++i) f(static_cast<std::uint64_t>(words[2 * i] >> 1) << 32 | static_cast<std::uint64_t>(i));
  };
  std::vector<std::uint32_t> ends, inner;
  const int bits = bits_of_length(count);
  std::uint64_t* sorted = first.get();
  std::unique_ptr<std::uint64_t[]> second;
  if (bits <= small_bits) {
    scatter(from_words, 0, bits, ends, sorted);
    insertion_sort(sorted, count);
  } else {
    const int upper = bits - small_bits + 2;
    second = room(count);
    scatter(from_words, 0, upper, ends, first.get());
    sorted = second.get();
    long begin = 0;
    for (std::size_t part = 0; part + 1 < ends.size(); ++part) {  // `scatter` has moved each end to its part's
      const long size = ends[part] - begin;
      const auto of_part = [&](const auto& f) {
        for (long i = 0; i < size; ++i) f(first[begin + i]);
      };
      scatter(of_part, upper, std::max(bits_of_length(size), 1), inner, sorted + begin);
      insertion_sort(sorted + begin, size);
      begin = ends[part];
    }
  }
  const auto lower = [&](std::uint64_t item) { return words[2 * (item & word) + 1]; };
  for (long i = 0; i < count; ++i) {
    for (long j = i; j > 0 && sorted[j] >> 32 == sorted[j - 1] >> 32 && lower(sorted[j]) < lower(sorted[j - 1]); --j) {
      std::swap(sorted[j], sorted[j - 1]);
    }
  }
  for (long i = 0; i < count; ++i) out[i] = static_cast<std::int64_t>(sorted[i] & word);
}

void counted(Counted kind, const Place& place, long count, const Range& range, void* out) {
  switch (kind) {
    case Counted::words:
      map<std::int64_t>(place, count, out, [](std::uint32_t w) { return static_cast<std::int64_t>(w); });
      return;
    case Counted::uniform32:
      map<float>(place, count, out, [](std::uint32_t w) { return whole(w >> 8) * 5.9604644775390625e-8f; });
      return;
    case Counted::uniform64:
      map_pairs<double>(place, count, out, [](std::uint32_t upper, std::uint32_t lower) { return uniform_at(upper, lower); });
      return;
    case Counted::integers: {
      const double span = static_cast<double>(range.span);
      const std::int64_t low = range.low, last = range.span - 1;
      if (last < 0x7FFFFFFF) {  // 32 bits hold the result: a conversion that every instruction set has in its registers
        const int most = static_cast<int>(last);
        map_pairs<std::int64_t>(place, count, out, [=](std::uint32_t upper, std::uint32_t lower) {
          return low + std::min(static_cast<int>(uniform_at(upper, lower) * span), most);
        });
      } else {
        map_pairs<std::int64_t>(place, count, out, [=](std::uint32_t upper, std::uint32_t lower) {
          return low + std::min(static_cast<std::int64_t>(uniform_at(upper, lower) * span), last);
        });
      }
      return;
    }
    case Counted::normal:
      map<float>(place, count, out, [](std::uint32_t w) { return normal_at(w); });
      return;
    case Counted::exponential:
      map<float>(place, count, out, [](std::uint32_t w) { return exponential_at(w); });
      return;
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
