// Memory for what a call computes on its way.
#pragma once

namespace surefoot {

/// Memory of this thread, of at least `size` floats, aligned for vectors: it grows to the largest call's need and stays,
/// since fresh pages cost more than the arithmetic.
float* scratch(long size);

}  // namespace surefoot
