// Plans on a GPU: one block of threads a plan, all iterations in one launch. A thread draws a candidate, rolls it out in its
// registers and judges it; then the threads together average the candidates (MPPI), or rank them by counting the better ones and
// fit the elites (CEM, iCEM). Candidates of other blocks are never needed, so nothing waits for the whole grid. The arithmetic
// is plan_lane.h's, as on a processor. Compiled by NVRTC for one system (cuda_ext/cubin.py gives the macros);
// tests/cuda_ext/emulate.cpp compiles the same text with g++.
//
// Macros: those of environment.cuh; SF_THREADS.
#pragma once

#include "environment.cuh"
#include "plan_lane.h"

namespace surefoot {
namespace gpu {

constexpr int warps = SF_THREADS / 32;

/// Global memory of a block. Element e = t * actions + k of candidate n is actions[e * most + n], so that neighbouring threads
/// read neighbouring numbers.
struct Bench {
  int elements, most;
  float *actions, *mean, *deviation, *value, *totals, *costs, *spent, *noise;
  int* order;
};

/// `scratch`: as many floats a row as cuda_ext/gpu_plan.py counts.
SF_INLINE Bench bench_of(const PlanJob& job, float* scratch, int most) {
  Bench b;
  b.elements = job.horizon * sizes.actions, b.most = most;
  const long futures = job.futures, wide = most;
  b.actions = scratch;
  b.mean = b.actions + wide * b.elements;
  b.deviation = b.mean + b.elements;
  b.value = b.deviation + b.elements;
  b.totals = b.value + wide;
  b.costs = b.totals + futures * wide;
  b.spent = b.costs + futures * wide;
  b.order = reinterpret_cast<int*>(b.spent + wide);
  b.noise = reinterpret_cast<float*>(b.order + wide);
  return b;
}

// ---- sums over threads ----

/// The sum, or the largest, of the first `count` numbers (a power of 2) of shared memory from `first` on is left in the first. All
/// threads of the block come here, or of the warp where it has the numbers to itself.
template <bool largest, int count, bool of_warp>
SF_INLINE void fold(float* first, int place) {
  for (int width = count / 2; width > 0; width /= 2) {
    if (place < width) first[place] = largest ? max(first[place], first[place + width]) : first[place] + first[place + width];
    of_warp ? __syncwarp() : __syncthreads();
  }
}

/// The sum or the largest of x over the block.
template <bool largest>
SF_INLINE float over_block(float x) {
  float* const all = reinterpret_cast<float*>(shared_memory);
  const int place = static_cast<int>(threadIdx.x);
  __syncthreads();  // what it held has been read
  all[place] = x;
  __syncthreads();
  fold<largest, SF_THREADS, false>(all, place);
  return all[0];
}

// ---- an iteration ----

/// Candidates `first` on of the plan become this iteration's first `count`.
template <bool truncated>
SF_INLINE void sample(const PlanJob& job, const Bench& b, uint32 key, int first, int count) {
  for (int n = static_cast<int>(threadIdx.x); n < count; n += SF_THREADS) {
    const uint32 mine = numbered(key, first + n);
    float* const row = b.actions + n;  // elements are `most` apart
    for (int e = 0; e < b.elements; e += 2) {
      float x, y;
      normals(mine, 0u, static_cast<uint32>(e / 2), x, y);
      row[static_cast<long>(e) * b.most] = x;
      if (e + 1 < b.elements) row[static_cast<long>(e + 1) * b.most] = y;
    }
    if (job.colouring != nullptr) {  // rows of the lower triangle, the last first, so that it is done in place
      for (int t = job.horizon - 1; t >= 0; --t) {
        for (int k = 0; k < sizes.actions; ++k) {
          float sum = 0.0f;
          for (int past = 0; past <= t; ++past)
            sum += job.colouring[t * job.horizon + past] * row[static_cast<long>(past * sizes.actions + k) * b.most];
          row[static_cast<long>(t * sizes.actions + k) * b.most] = sum;
        }
      }
    }
    const bool middle = job.average && n == 0;
    for (int e = 0; e < b.elements; ++e) {
      float& action = row[static_cast<long>(e) * b.most];
      action = action_of<truncated>(b.mean[e], b.deviation[e], middle ? 0.0f : action);
    }
  }
}

/// One future of a candidate.
SF_INLINE void roll_out(const PlanJob& job, const Bench& b, const float* start, int n, int future, float& total, float& cost,
                        float& wild) {
  Environment e{};
  read(e.s, start, 0);
  read(e.p, job.parameters, future);
  float last = 0.0f, alive = 1.0f, scale = 1.0f;
  total = cost = 0.0f;
  for (int t = 0; t < job.horizon; ++t, scale *= job.discount) {
    float z[drawn_normals] = {};
    if (sizes.normals > 0 && job.noisy) read(z, b.noise, static_cast<long>(future) * job.horizon + t);
#pragma unroll
    for (int k = 0; k < sizes.actions; ++k) {
      const float middle = 0.5f * (job.high[k] + job.low[k]), half = 0.5f * (job.high[k] - job.low[k]);
      e.a[k] = middle + half * b.actions[static_cast<long>(t * sizes.actions + k) * b.most + n];
    }
    const Outcome<float> outcome = step(e, z, job.matrices);
    count_step(total, cost, last, alive, wild, outcome.reward, outcome.margin, outcome.terminated > 0.5f ? 1.0f : 0.0f,
               size_of(e, outcome), scale);
  }
  wild += abs(total) < infinity() ? 0.0f : 1.0f;
}

SF_INLINE void look(const PlanJob& job, const Bench& b, const float* start, int count) {
  for (int n = static_cast<int>(threadIdx.x); n < count; n += SF_THREADS) {
    float wild = 0.0f;
    for (int m = 0; m < job.futures; ++m) {
      float total, cost;
      roll_out(job, b, start, n, m, total, cost, wild);
      b.totals[static_cast<long>(m) * b.most + n] = total;
      b.costs[static_cast<long>(m) * b.most + n] = -cost;
    }
    const float total = of_worst(b.totals + n, b.most, job.futures, job.tail);
    judge(job, total, -of_worst(b.costs + n, b.most, job.futures, job.tail), wild, b.spent[n], b.value[n]);
  }
}

/// The weighted average of the feasible candidates, else of those that cost least, where one is a number. All threads take the same
/// way.
SF_INLINE void average(const PlanJob& job, const Bench& b, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  float least = infinity(), best = -infinity();
  for (int n = thread; n < count; n += SF_THREADS) least = min(least, b.spent[n]);
  least = -over_block<true>(-least);
  for (int n = thread; n < count; n += SF_THREADS) best = b.spent[n] == least ? max(best, b.value[n]) : best;
  best = over_block<true>(best);
  if (!(best > -infinity())) return;
  float sum = 0.0f;
  for (int n = thread; n < count; n += SF_THREADS) {
    const float weight = b.spent[n] == least ? exp((b.value[n] - best) * (1.0f / job.temperature)) : 0.0f;
    b.value[n] = weight;
    sum += weight;
  }
  const float total = over_block<false>(sum);
  __syncthreads();  // it has been read
  float* const mine = reinterpret_cast<float*>(shared_memory) + thread / 32 * 32;
  for (int from = 0; from < b.elements; from += warps) {  // an element a warp
    const int e = from + thread / 32;
    float part = 0.0f;
    if (e < b.elements)
      for (int n = thread % 32; n < count; n += 32) part += b.value[n] * b.actions[static_cast<long>(e) * b.most + n];
    mine[thread % 32] = part;
    __syncwarp();
    fold<false, 32, true>(mine, thread % 32);
    if (e < b.elements && thread % 32 == 0) b.mean[e] = mine[0] / total;
    __syncwarp();
  }
}

/// The best `wanted` of the candidates, the best first, of equal ones the first first: a candidate's place is the number of those
/// before it.
SF_INLINE void choose(const Bench& b, int count, int wanted) {
  for (int n = static_cast<int>(threadIdx.x); n < count; n += SF_THREADS) {
    const float spent = b.spent[n], value = b.value[n];
    int place = 0;
    for (int m = 0; m < count; ++m) {
      const bool equal = b.spent[m] == spent && b.value[m] == value;
      place += better(b.spent[m], b.value[m], spent, value) || (equal && m < n) ? 1 : 0;
    }
    if (place < wanted) b.order[place] = n;
  }
}

/// Mean and deviation of the elites that are numbers, less a share of the step there; threads share the elements.
SF_INLINE void fit(const PlanJob& job, const Bench& b, int chosen) {
  while (chosen > 0 && b.spent[b.order[chosen - 1]] == infinity()) --chosen;
  if (chosen == 0) return;
  const float share = 1.0f / static_cast<float>(chosen);
  for (int e = static_cast<int>(threadIdx.x); e < b.elements; e += SF_THREADS) {
    const float* const row = b.actions + static_cast<long>(e) * b.most;
    float middle = 0.0f, square = 0.0f;
    for (int k = 0; k < chosen; ++k) middle += row[b.order[k]];
    middle *= share;
    for (int k = 0; k < chosen; ++k) square += (row[b.order[k]] - middle) * (row[b.order[k]] - middle);
    b.mean[e] = job.momentum * b.mean[e] + (1.0f - job.momentum) * middle;
    b.deviation[e] = job.momentum * b.deviation[e] + (1.0f - job.momentum) * sqrt(square * share);
  }
}

/// The best candidate seen: every thread knows how good it is.
struct Record {
  float spent, value;
};

SF_INLINE void remember(const Bench& b, float* best, Record& record) {
  const int top = b.order[0];
  if (!better(b.spent[top], b.value[top], record.spent, record.value)) return;
  record = {b.spent[top], b.value[top]};
  for (int e = static_cast<int>(threadIdx.x); e < b.elements; e += SF_THREADS)
    best[e] = b.actions[static_cast<long>(e) * b.most + top];
}

/// `count` candidates are followed by the kept elites and, where these are and it is the last iteration, the mean.
SF_INLINE int add_kept(const PlanJob& job, const Bench& b, const float* keep, int count, bool last) {
  const int more = job.kept + (job.kept > 0 && last ? 1 : 0);
  for (int k = 0; k < more; ++k)
    for (int e = static_cast<int>(threadIdx.x); e < b.elements; e += SF_THREADS)
      b.actions[static_cast<long>(e) * b.most + count + k] = k < job.kept ? keep[k * b.elements + e] : b.mean[e];
  return count + more;
}

// ---- the plan of this block ----

SF_INLINE void plan_row(const PlanJob& job, float* scratch, int most) {
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const Bench b = bench_of(job, scratch, most);
  const long size = b.elements;
  float *const mean = job.mean + row * size, *const best = job.best + row * size;
  float* const keep = job.kept > 0 ? job.keep + row * job.kept * size : nullptr;
  const float* const start = job.states + static_cast<long>(row) * sizes.states;
  for (int e = thread; e < b.elements; e += SF_THREADS) {
    b.mean[e] = best[e] = mean[e];
    b.deviation[e] = job.sigma;
  }
  const uint32 key = plan_key(job, row, candidate_stream), futures = plan_key(job, row, future_stream);
  if (sizes.normals > 0 && job.noisy)
    for (int k = thread; k < job.futures * job.horizon; k += SF_THREADS)
      draw_future(b.noise, job, futures, k / job.horizon, k % job.horizon);
  Record record = {infinity(), -infinity()};
  int first = 0;
  for (int i = 0; i < job.iterations; ++i) {
    __syncthreads();  // mean, deviation, noise and elites are there
    const int fresh = job.populations[i];
    job.truncated ? sample<true>(job, b, key, first, fresh) : sample<false>(job, b, key, first, fresh);
    first += fresh;
    const int count = add_kept(job, b, keep, fresh, i + 1 == job.iterations);
    __syncthreads();
    look(job, b, start, count);
    __syncthreads();
    if (job.average) {
      average(job, b, count);
      continue;
    }
    choose(b, count, job.elites);
    __syncthreads();
    remember(b, best, record);
    for (int k = 0; k < job.kept; ++k)
      for (int e = thread; e < b.elements; e += SF_THREADS)
        keep[k * size + e] = b.actions[static_cast<long>(e) * b.most + b.order[k]];
    fit(job, b, job.elites);
  }
  __syncthreads();
  for (int e = thread; e < b.elements; e += SF_THREADS) mean[e] = b.mean[e];
}

}  // namespace gpu
}  // namespace surefoot

/// Arguments are those of `PlanJob` and `scratch`, in the order of ARGUMENTS in cuda_ext/gpu_plan.py.
extern "C" __global__ void __launch_bounds__(SF_THREADS) surefoot_plan(
    int horizon, int iterations, int elites, int kept, int average, int limited, int truncated, int noisy, int futures,
    int tail, int most, int floats, float sigma, float temperature, float momentum, float discount, float cost_limit,
    const int* populations, const float* matrices, const float* low, const float* high, const float* parameters,
    const float* colouring, const long long* draws, const float* states, float* mean, float* best, float* keep,
    float* scratch) {
  surefoot::PlanJob job;
  job.sizes = {SF_SIZES};
  job.horizon = horizon, job.iterations = iterations, job.elites = elites, job.kept = kept;
  job.average = average != 0, job.limited = limited != 0, job.truncated = truncated != 0, job.noisy = noisy != 0;
  job.futures = futures, job.tail = tail, job.sigma = sigma, job.temperature = temperature;
  job.momentum = momentum, job.discount = discount, job.cost_limit = cost_limit, job.populations = populations;
  job.matrices = matrices, job.low = low, job.high = high, job.parameters = parameters, job.colouring = colouring;
  job.draws = draws, job.states = states, job.mean = mean, job.best = best, job.keep = keep;
  surefoot::gpu::plan_row(job, scratch + static_cast<long>(blockIdx.x) * floats, most);
}
