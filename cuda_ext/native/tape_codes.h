// The codes of tape.h's instructions, and their names.
#pragma once

#include "tape.h"

namespace surefoot {

enum class Code {
#define X(kind, name, expression) name,
  SUREFOOT_ELEMENTS(X)
#undef X
  where,
  to_float,
  logical_not,
  sum,
  amin,
  amax,
  count
};

constexpr const char* code_names[] = {
#define X(kind, name, expression) #name,
    SUREFOOT_ELEMENTS(X)
#undef X
        "where",
    "to_float", "logical_not", "sum", "amin", "amax"};

}  // namespace surefoot
