// Rows of a table by their numbers: a batch's rows lie all over memory, so they are asked for well before they are read.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>

namespace nb = nanobind;

namespace surefoot {
namespace {

constexpr long line = 64;
constexpr long ahead = 32;  // rows; the first ones of a batch are asked for together

void gather_rows(std::uintptr_t table, long rows, long row_bytes, std::uintptr_t indices, long count,
                 std::uintptr_t out) {
  const auto* from = reinterpret_cast<const char*>(table);
  const auto* at = reinterpret_cast<const std::int64_t*>(indices);
  auto* to = reinterpret_cast<char*>(out);
  for (long i = 0; i < count; ++i) {
    if (at[i] < 0 || at[i] >= rows) throw nb::index_error("a row's index is out of range");
  }
  const auto ask = [&](long i) {
    for (long byte = 0; byte < row_bytes; byte += line) __builtin_prefetch(from + at[i] * row_bytes + byte);
  };
  const nb::gil_scoped_release release;
  for (long i = 0; i < ahead && i < count; ++i) ask(i);
  for (long i = 0; i < count; ++i) {
    if (i + ahead < count) ask(i + ahead);
    std::memcpy(to + i * row_bytes, from + at[i] * row_bytes, row_bytes);
  }
}

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("gather_rows", &gather_rows, nb::arg("table"), nb::arg("rows"), nb::arg("row_bytes"), nb::arg("indices"),
        nb::arg("count"), nb::arg("out"), "Copy rows of a contiguous table by int64 indices; raises IndexError.");
}

}  // namespace surefoot
