#include "workers.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace surefoot {
namespace {

#ifdef _WIN32
int process() { return 0; }  // it does not fork
#else
int process() { return static_cast<int>(getpid()); }
#endif

/// How long to look for work, or for the end of it, before going to sleep: waking up takes about as long. The processor
/// is offered to others meanwhile.
constexpr std::chrono::microseconds patience{200};

template <class Condition>
bool soon(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class Workers {
 public:
  explicit Workers(int owner) : owner(owner) {}

  const int owner;  // the process whose threads these are: a forked one has none
  std::mutex taken;  // by the call that has work

  void run(int count, const std::function<void(int)>& work) {
    for (; started_ < count - 1; ++started_) std::thread(&Workers::wait_for_work, this, started_ + 1).detach();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      count_ = count;
      unfinished_ = count - 1;
      ++call_;
    }
    begun_.notify_all();
    work(0);
    const auto finished = [this] { return unfinished_ == 0; };
    if (soon(finished)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, finished);
  }

 private:
  /// The life of thread `number`: 1, 2, ...
  void wait_for_work(int number) {
    unsigned seen = 0;  // threads start within the first call that wants them, or look at past ones in vain
    for (;;) {
      const auto called = [this, &seen] { return call_ != seen; };
      soon(called);
      const std::function<void(int)>* work = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        begun_.wait(lock, called);
        seen = call_;
        if (number < count_ && unfinished_ > 0) work = work_;
      }
      if (work == nullptr) continue;
      (*work)(number);
      if (--unfinished_ == 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_.notify_one();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable begun_, finished_;
  std::atomic<unsigned> call_{0};
  std::atomic<int> unfinished_{0};
  const std::function<void(int)>* work_ = nullptr;
  int count_ = 0, started_ = 0;
};

/// Those of this process. Never destroyed: their threads wait until the process ends.
Workers& workers() {
  static std::atomic<Workers*> present{nullptr};
  Workers* found = present.load();
  while (found == nullptr || found->owner != process()) {
    auto fresh = std::make_unique<Workers>(process());
    if (present.compare_exchange_strong(found, fresh.get())) return *fresh.release();
  }
  return *found;
}

}  // namespace

void together(int count, const std::function<void(int)>& work) {
  if (count <= 1) return work(0);
  Workers& all = workers();
  const std::unique_lock<std::mutex> lock(all.taken, std::try_to_lock);
  if (lock.owns_lock()) return all.run(count, work);
  std::vector<std::thread> others;  // another call has them
  for (int k = 1; k < count; ++k) others.emplace_back(work, k);
  work(0);
  for (std::thread& other : others) other.join();
}

}  // namespace surefoot
