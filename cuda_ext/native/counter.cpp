// Binds levels/counter.cpp: python passes addresses of memory of the right size, seeds as (S,) uint64.
#include "counter.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace surefoot {
namespace {

constexpr long numbers_of_32_bits = 0xFFFFFFFFL;

Place place_of(std::uint64_t counter, std::uint64_t block, std::uint32_t purpose) {
  if (counter > static_cast<std::uint64_t>(numbers_of_32_bits)) throw nb::value_error("a counter has 32 bits");
  return {0, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(block),
          static_cast<std::uint32_t>(block >> 32), purpose};
}

void draw(int kind, std::uintptr_t seeds, long streams, std::uint64_t counter, std::uint64_t block,
          std::uint32_t purpose, long count, std::uintptr_t out, std::int64_t low, std::int64_t span) {
  if (kind < 0 || kind >= counted_kinds || streams < 0 || count < 0 || span < 1)
    throw nb::value_error("numbers are of the kinds 0 to 5, and as many as 0 or more, from a range of 1 or more");
  Place place = place_of(counter, block, purpose);
  const auto which = static_cast<Counted>(kind);
  const long bytes = which == Counted::uniform32 || which == Counted::normal || which == Counted::exponential ? 4 : 8;
  const nb::gil_scoped_release release;
  for (long stream = 0; stream < streams; ++stream) {
    place.seed = reinterpret_cast<const std::uint64_t*>(seeds)[stream];
    SUREFOOT_CALL(counted, which, place, count, Range{low, span}, reinterpret_cast<char*>(out) + stream * count * bytes);
  }
}

void permutations(std::uintptr_t seeds, long streams, std::uint64_t counter, std::uint64_t block,
                  std::uint32_t purpose, long count, std::uintptr_t out) {
  if (streams < 0 || count < 0 || count > numbers_of_32_bits)
    throw nb::value_error("a permutation is of 0 to 2^32 - 1 numbers");
  Place place = place_of(counter, block, purpose);
  const nb::gil_scoped_release release;
  for (long stream = 0; stream < streams; ++stream) {
    place.seed = reinterpret_cast<const std::uint64_t*>(seeds)[stream];
    SUREFOOT_CALL(permutation, place, count, reinterpret_cast<std::int64_t*>(out) + stream * count);
  }
}

}  // namespace

void bind_counter(nb::module_& m) {
  m.def("counted", &draw, nb::arg("kind"), nb::arg("seeds"), nb::arg("streams"), nb::arg("counter"), nb::arg("block"),
        nb::arg("purpose"), nb::arg("count"), nb::arg("out"), nb::arg("low") = 0, nb::arg("span") = 1,
        "(streams, count) numbers of Philox4x32-10 from a counter on: words (0, int64), uniform in float (1) and double "
        "(2), int64 of [low, low + span) (3), normal (4) and exponential (5) in float.");
  m.def("counted_permutations", &permutations, nb::arg("seeds"), nb::arg("streams"), nb::arg("counter"),
        nb::arg("block"), nb::arg("purpose"), nb::arg("count"), nb::arg("out"),
        "(streams, count) int64 permutations by keys of two words each.");
}

}  // namespace surefoot
