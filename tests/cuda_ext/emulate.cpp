// rollout.cuh or plan.cuh as plain C++: what the kernels use of CUDA, with every thread of a block as a fibre on one processor.
// A fibre runs until a barrier; when all have come to it, the next round begins. Threads of a warp at different barriers
// are an error, and running the fibres in the opposite order must not change a result (it would where one is missing).
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct Index { unsigned x; };
Index threadIdx, blockIdx;

#define __global__
#define __shared__
#define __launch_bounds__(...)

enum Barrier { warp_barrier = 1, vote_barrier, block_barrier, finished };

void wait_at(Barrier kind);
void __syncwarp() { wait_at(warp_barrier); }
void __syncthreads() { wait_at(block_barrier); }
bool __any_sync(unsigned, bool mine);

void touched(const void* pointer, unsigned bytes);
#define SF_TOUCHED(pointer, bytes) touched(pointer, bytes);

#include SF_HEADER
#ifdef SF_PLAN
#include "plan.cuh"
#else
#include "rollout.cuh"
#endif

namespace surefoot::gpu { float4 shared_memory[256 * 1024 / 16]; }

namespace {

// ---- banks of shared memory ----

struct Access {
  long word;  // of shared memory
  unsigned bytes;
};

/// How often shared memory is read or written for one instruction of a warp: the most different words that threads which
/// are served together want of one of the 32 banks. 32 threads are served together that want 4 bytes each, 16 that want 8
/// and 8 that want 16.
int ways_of(const std::vector<Access>& threads) {
  int worst = 1;
  for (std::size_t first = 0; first < threads.size();) {
    const std::size_t served = first + 128 / threads[first].bytes;
    std::vector<std::vector<long>> banks(32);
    for (; first < std::min(served, threads.size()); ++first)
      for (unsigned k = 0; k < threads[first].bytes / 4; ++k) {
        const long word = threads[first].word + static_cast<long>(k);
        std::vector<long>& wanted = banks[static_cast<std::size_t>(word % 32)];
        if (std::find(wanted.begin(), wanted.end(), word) == wanted.end()) wanted.push_back(word);
      }
    for (const std::vector<long>& wanted : banks) worst = std::max(worst, static_cast<int>(wanted.size()));
  }
  return worst;
}

bool counts_banks;
int worst_ways;
long accesses;

struct Fibre {
  std::vector<Access> touched;  // since the last barrier
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Barrier at;
  bool vote;
};

ucontext_t scheduler;
std::vector<Fibre> fibres;
void (*body)(void*);
void* body_arguments;

void enter_fibre() {
  body(body_arguments);
  fibres[threadIdx.x].at = finished;
  swapcontext(&fibres[threadIdx.x].context, &scheduler);
}

bool warps_agree() {
  for (std::size_t k = 0; k < fibres.size(); ++k)
    if (fibres[k].at != fibres[k / 32 * 32].at) return false;
  return true;
}

/// Threads of a warp do the same between two barriers: the n-th access of each is one instruction.
void count_accesses() {
  for (std::size_t first = 0; first < fibres.size(); first += 32) {
    for (std::size_t n = 0;; ++n) {
      std::vector<Access> threads;
      for (std::size_t k = first; k < std::min(first + 32, fibres.size()); ++k)
        if (n < fibres[k].touched.size()) threads.push_back(fibres[k].touched[n]);
      if (threads.empty()) break;
      worst_ways = std::max(worst_ways, ways_of(threads));
      ++accesses;
    }
    for (std::size_t k = first; k < std::min(first + 32, fibres.size()); ++k) fibres[k].touched.clear();
  }
}

/// One block; false where threads of a warp came to different barriers.
bool run_block(int threads, bool backwards) {
  constexpr std::size_t bytes = 256 * 1024;
  std::memset(surefoot::gpu::shared_memory, 0xff, sizeof(surefoot::gpu::shared_memory));  // not numbers
  fibres.resize(static_cast<std::size_t>(threads));
  for (Fibre& fibre : fibres) {
    if (!fibre.stack) fibre.stack.reset(new char[bytes]);
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = bytes;
    fibre.context.uc_link = nullptr;
    fibre.at = warp_barrier;
    makecontext(&fibre.context, enter_fibre, 0);
  }
  for (bool going = true; going;) {
    going = false;
    for (int k = 0; k < threads; ++k) {
      const unsigned index = static_cast<unsigned>(backwards ? threads - 1 - k : k);
      if (fibres[index].at == finished) continue;
      threadIdx.x = index;
      swapcontext(&scheduler, &fibres[index].context);
      going = true;
    }
    if (!warps_agree()) return false;
    if (counts_banks) count_accesses();
  }
  return true;
}

template <class... Types>
struct Call {
  void (*kernel)(Types...);
  void** arguments;
  template <std::size_t... k>
  void make(std::index_sequence<k...>) {
    kernel(*static_cast<std::remove_cv_t<Types>*>(arguments[k])...);
  }
  static void body(void* self) { static_cast<Call*>(self)->make(std::index_sequence_for<Types...>()); }
};

/// As cuLaunchKernel: `arguments` point to the values.
template <class... Types>
int launch(void (*kernel)(Types...), int blocks, int threads, void** arguments, bool backwards) {
  Call<Types...> call{kernel, arguments};
  body = &Call<Types...>::body;
  body_arguments = &call;  // read by run_block only
  for (int k = 0; k < blocks; ++k) {
    blockIdx.x = static_cast<unsigned>(backwards ? blocks - 1 - k : k);
    if (!run_block(threads, backwards)) return 1;
  }
  return 0;
}

}  // namespace

void touched(const void* pointer, unsigned bytes) {
  const long byte = static_cast<const char*>(pointer) - reinterpret_cast<const char*>(surefoot::gpu::shared_memory);
  if (counts_banks && byte >= 0 && byte < static_cast<long>(sizeof(surefoot::gpu::shared_memory)))
    fibres[threadIdx.x].touched.push_back({byte / 4, bytes});
}

extern "C" void count_banks(int on) {
  counts_banks = on != 0;
  worst_ways = 0;
  accesses = 0;
}
/// Of all accesses since `count_banks`; 0 where there was none.
extern "C" int bank_ways() { return worst_ways; }
extern "C" long bank_accesses() { return accesses; }
/// As `ways_of` the words that `threads` threads touch, `bytes` each.
extern "C" int ways(const long* words, int threads, unsigned bytes) {
  std::vector<Access> found;
  for (int k = 0; k < threads; ++k) found.push_back({words[k], bytes});
  return ways_of(found);
}

void wait_at(Barrier kind) {
  Fibre& self = fibres[threadIdx.x];
  self.at = kind;
  swapcontext(&self.context, &scheduler);
}

bool __any_sync(unsigned, bool mine) {
  fibres[threadIdx.x].vote = mine;
  wait_at(vote_barrier);
  const std::size_t first = threadIdx.x / 32 * 32;
  bool any = false;
  for (std::size_t k = first; k < first + 32; ++k) any |= fibres[k].vote;
  wait_at(vote_barrier);  // no one votes again before all have read
  return any;
}

#ifdef SF_PLAN
extern "C" int emulate_plan(int blocks, int threads, void** arguments, int backwards) {
  return launch(&surefoot_plan, blocks, threads, arguments, backwards != 0);
}
#else
extern "C" int emulate_rollout(int blocks, int threads, void** arguments, int backwards) {
  return launch(&surefoot_rollout, blocks, threads, arguments, backwards != 0);
}
extern "C" int emulate_reset(int blocks, int threads, void** arguments, int backwards) {
  return launch(&surefoot_reset, blocks, threads, arguments, backwards != 0);
}
#endif
