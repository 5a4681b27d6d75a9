// Threads that wait for work between calls: starting one costs as much as a hundred thousand steps of a pendulum.
#pragma once

#include <functional>

namespace surefoot {

/// Call `work(0)` here and `work(1)` to `work(count - 1)` in threads of their own at the same time; return when all have
/// returned. `work` must not throw. Calls from several threads at once, and from a forked process, are fine.
void together(int count, const std::function<void(int)>& work);

}  // namespace surefoot
