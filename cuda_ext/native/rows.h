// One system applied to rows one at a time, in float or double: what tests compare with the torch twin.
#pragma once

#include "system.h"

namespace surefoot {

enum class Call { reset, observe, step, margin, state_of };  // the last two: of systems that have them

/// Row-major arrays of `count` rows; a call reads and writes those that it needs.
template <class T>
struct Rows {
  int count;
  Sizes sizes;
  const T *matrices, *parameters, *uniforms, *actions, *normals;
  T *states, *observations, *rewards, *margins, *terminated;
};

}  // namespace surefoot
