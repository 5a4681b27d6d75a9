// Random numbers by counting, Philox4x32-10: word j of counter i depends on (seed, i, block, purpose) alone.
//
// Source: Salmon et al. (2011), "Parallel Random Numbers: As Easy as 1, 2, 3". core/base/counter.py says what is made of
// the words, and makes the same of them on other devices.
#pragma once

#include <cstdint>

#include "level.h"

namespace surefoot {

/// What is made of the words: themselves, or numbers of one or two words each.
enum class Counted { words = 0, uniform32 = 1, uniform64 = 2, integers = 3, normal = 4, exponential = 5 };
constexpr int counted_kinds = 6;

/// A place in the stream of one seed.
struct Place {
  std::uint64_t seed;
  std::uint32_t counter, low_block, high_block, purpose;
};

/// Whole numbers in [low, low + span).
struct Range {
  std::int64_t low, span;
};

}  // namespace surefoot

/// `count` numbers from a place on: int64 words and integers, double of uniform64, else float.
SUREFOOT_DECLARE(void counted(Counted kind, const Place&, long count, const Range&, void* out))
/// 0 to count - 1, fewer than 2^32, in the order of `count` keys of two words each.
SUREFOOT_DECLARE(void permutation(const Place&, long count, std::int64_t* out))
