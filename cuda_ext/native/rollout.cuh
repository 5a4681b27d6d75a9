// The rollout on a GPU: the whole loop over time in one launch, weights and hidden activations in shared memory. A warp
// has 32 / SF_LANES environments, each simulated by SF_LANES threads alike, and multiplies their activations by a layer's
// weights together: a thread holds the sums of 8 outputs of 8, 4 or 2 environments. Compiled by NVRTC for one system and
// one policy shape (cuda_ext/cubin.py gives the macros); tests/cuda_ext/emulate.cpp compiles the same text with g++.
//
// Macros: SF_SYSTEM, SF_SIZES, SF_SOURCE, SF_LANES, SF_THREADS, SF_BLOCKS (of threads that a multiprocessor must hold);
// for a policy SF_WIDTHS, SF_ACTIVATION, SF_NORM, SF_SQUASH, SF_SAMPLING, SF_WEIGHTS (how many), SF_ROWS (of activations),
// SF_WEIGHTS_SHARED.
#pragma once

#include "environment.cuh"
#include "rollout.h"

#ifndef SF_TOUCHED
#define SF_TOUCHED(pointer, bytes)  // an emulation counts here how many banks of shared memory a warp reads or writes
#endif

namespace surefoot {
namespace gpu {

constexpr Source source = static_cast<Source>(SF_SOURCE);
constexpr int lanes = SF_LANES;       // threads that share an environment
constexpr int together = 32 / lanes;  // environments of a warp

// ---- the policy ----

#ifdef SF_WIDTHS
constexpr int widths[] = {SF_WIDTHS};
constexpr int layers = sizeof(widths) / sizeof(widths[0]) - 1;
constexpr Activation activation = static_cast<Activation>(SF_ACTIVATION);
constexpr Sampling sampling = static_cast<Sampling>(SF_SAMPLING);

constexpr int mean_at = 0, scale_at = sizes.observations, middle_at = 2 * sizes.observations;
constexpr int half_at = middle_at + sizes.actions, deviation_at = half_at + sizes.actions;
constexpr int head = (deviation_at + (sizes.actions > 2 ? sizes.actions : 2) + 3) / 4 * 4;

/// Layer k: a row of biases, a row for each input, then layer norm's gain and shift. Rows of a hidden layer are padded to
/// whole passes of a warp, in which 8 groups of threads have `tile` outputs each, in quads that alternate between them;
/// rows of the last layer to whole quads.
template <int k>
struct Layout {
  static constexpr int inputs = widths[k], outputs = widths[k + 1];
  static constexpr bool last = k + 1 == layers;
  static constexpr bool norm = SF_NORM && !last;
  static constexpr int tile = outputs > 32 ? 8 : 4;
  static constexpr int passes = (outputs + 8 * tile - 1) / (8 * tile);
  static constexpr int padded = last ? (outputs + 3) / 4 * 4 : passes * 8 * tile;
  static constexpr int begin = Layout<k - 1>::end;
  static constexpr int end = begin + (inputs + 1 + (norm ? 2 : 0)) * padded;
  static constexpr int whole = (inputs + 3) / 4 * 4;
  static constexpr int rows = whole > Layout<k - 1>::rows ? whole : Layout<k - 1>::rows;  // of activations so far
  static constexpr bool in_place = Layout<k - 1>::in_place && (last || passes == 1);
};
template <>
struct Layout<-1> {
  static constexpr int end = head, rows = 0;
  static constexpr bool in_place = true;
};
using Whole = Layout<layers - 1>;
constexpr int activation_rows = Whole::rows * (Whole::in_place ? 1 : 2);
static_assert(Whole::end == SF_WEIGHTS, "cuda_ext/launch.py lays the weights out in another way");
static_assert(activation_rows == SF_ROWS, "cuda_ext/launch.py counts the activations in another way");

SF_INLINE void unpack_quad(float (&to)[4], const float* from) {
  SF_TOUCHED(from, 16)
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// Activations of a warp are rows of `together` numbers, in quads of 16 bytes. Threads of `dense` write to rows that are
// multiples of 4 apart, which would lie in the same banks: so rows 4 b to 4 b + 3 (a block) have their quads in another
// order, that of an exclusive or with b % 8. A quarter of a warp then writes to all 32 banks at once.

/// Where the quad is of row 4 * block + r, r from 0 to 3; `mixed` is its number in the row, exclusive or block % 8.
SF_INLINE int quad_at(int block, int r, int mixed) {
  const int step = r * (together / 4);
  return 4 * (block * together + step / 8 * 8 + (step % 8 ^ mixed));
}

/// Where the activation of an environment is in a row.
SF_INLINE int activation_at(int row, int environment) {
  const unsigned block = static_cast<unsigned>(row) / 4, r = static_cast<unsigned>(row) % 4;
  const unsigned e = static_cast<unsigned>(environment);
  return quad_at(static_cast<int>(block), static_cast<int>(r), static_cast<int>(e / 4 ^ block % 8)) +
         static_cast<int>(e % 4);
}

SF_INLINE float read_activation(const float* x) {
  SF_TOUCHED(x, 4)
  return *x;
}
SF_INLINE void write_activation(float* x, float value) {
  SF_TOUCHED(x, 4)
  *x = value;
}

/// Environments of a warp whose sums one thread holds: a pair, a quad or two of them. Group 0 to 3 has the quad of its
/// number and the one 4 after it; of pairs, two groups share a quad.
constexpr int held = together / 4;
SF_INLINE int quad_of(int group) { return held == 2 ? group / 2 : group; }

/// The activations held in row 4 * block + r.
SF_INLINE void read_held(float (&v)[held], const float* x, int block, int r, int mixed, int group) {
  if constexpr (held == 2) {
    const float* const from = x + quad_at(block, r, mixed) + group % 2 * 2;
    SF_TOUCHED(from, 8)
    const float2 pair = *reinterpret_cast<const float2*>(from);
    v[0] = pair.x, v[1] = pair.y;
  } else {
#pragma unroll
    for (int j = 0; j < held; j += 4) {
      float quad[4];
      unpack_quad(quad, x + quad_at(block, r, mixed ^ j));
      v[j] = quad[0], v[j + 1] = quad[1], v[j + 2] = quad[2], v[j + 3] = quad[3];
    }
  }
}

SF_INLINE void write_held(const float (&v)[held], float* y, int block, int r, int mixed, int group) {
  if constexpr (held == 2) {
    float* const to = y + quad_at(block, r, mixed) + group % 2 * 2;
    SF_TOUCHED(to, 8)
    *reinterpret_cast<float2*>(to) = {v[0], v[1]};
  } else {
#pragma unroll
    for (int j = 0; j < held; j += 4) {
      float* const to = y + quad_at(block, r, mixed ^ j);
      SF_TOUCHED(to, 16)
      *reinterpret_cast<float4*>(to) = {v[j], v[j + 1], v[j + 2], v[j + 3]};
    }
  }
}

/// Add to the sums of a thread what `rows` inputs from 4 * block on give. `w` points to the weights of the first of them.
template <int k, int rows>
SF_INLINE void add_inputs(float (&sum)[Layout<k>::tile][held], const float* w, const float* x, int block, int group) {
  using D = Layout<k>;
  const int mixed = quad_of(group) ^ block % 8;
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    float v[held];
    read_held(v, x, block, i, mixed, group);
#pragma unroll
    for (int q = 0; q < D::tile; q += 4) {
      float weight[4];
      unpack_quad(weight, w + i * D::padded + 8 * q);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int j = 0; j < held; ++j) sum[q + r][j] += weight[r] * v[j];
    }
  }
}

/// A hidden layer for all environments of the warp: rows of `x` to rows of `y`, which may be the same.
template <int k>
SF_INLINE void dense(const float* weights, const float* x, float* y) {
  using D = Layout<k>;
  const int part = threadIdx.x % 8, group = threadIdx.x % 32 / 8;
  for (int pass = 0; pass < D::passes; ++pass) {
    const int first = pass * 8 * D::tile + 4 * part;  // output
    const float* const w = weights + D::begin + first;
    float sum[D::tile][held];
#pragma unroll
    for (int q = 0; q < D::tile; q += 4) {
      float bias[4];
      unpack_quad(bias, w + 8 * q);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int j = 0; j < held; ++j) sum[q + r][j] = bias[r];
    }
    const float* inputs = w + D::padded;
#pragma unroll 1
    for (int block = 0; block < D::inputs / 4; ++block, inputs += 4 * D::padded)
      add_inputs<k, 4>(sum, inputs, x, block, group);
    if constexpr (D::inputs % 4 > 0) add_inputs<k, D::inputs % 4>(sum, inputs, x, D::inputs / 4, group);
    if constexpr (D::passes == 1) __syncwarp();  // `x` has been read
#pragma unroll
    for (int r = 0; r < D::tile; ++r) {
      const int output = first + r / 4 * 32 + r % 4;
      if (D::outputs == D::padded || output < D::outputs) {
        float v[held];
#pragma unroll
        for (int j = 0; j < held; ++j) v[j] = D::norm ? sum[r][j] : activate<activation>(sum[r][j]);
        write_held(v, y, pass * 2 * D::tile + part + r / 4 * 8, r % 4, quad_of(group) ^ part, group);
      }
    }
  }
  __syncwarp();
}

/// Layer norm over the outputs (variance + 1e-5, as torch's), then the activation, in place, of the environment `mine`.
template <int k>
SF_INLINE void normalise(const float* weights, float* y, int mine, int lane) {
  using D = Layout<k>;
  const float* const gain = weights + D::begin + (D::inputs + 1) * D::padded;
  const float share = 1.0f / D::outputs;
  float sum = 0, squares = 0;
#pragma unroll 4
  for (int i = 0; i < D::outputs; ++i) sum += read_activation(y + activation_at(i, mine));
  const float mean = sum * share;
#pragma unroll 4
  for (int i = 0; i < D::outputs; ++i) {
    const float d = read_activation(y + activation_at(i, mine)) - mean;
    squares += d * d;
  }
  const float scale = 1.0f / sqrt(squares * share + 1e-5f);
  __syncwarp();  // every thread of this environment has its sums
#pragma unroll 4
  for (int i = lane; i < D::outputs; i += lanes) {
    float* const own = y + activation_at(i, mine);
    write_activation(own, activate<activation>((read_activation(own) - mean) * scale * gain[i] + gain[D::padded + i]));
  }
  __syncwarp();
}

/// Add to the outputs of an environment what `rows` inputs of the last layer from 4 * block on give.
template <int rows>
SF_INLINE void add_last(float (&out)[widths[layers]], const float* weights, const float* x, int block, int mine) {
  const int mixed = mine / 4 ^ block % 8;
  const float* row = weights + Whole::begin + (4 * block + 1) * Whole::padded;
#pragma unroll
  for (int i = 0; i < rows; ++i, row += Whole::padded) {
    const float v = read_activation(x + quad_at(block, i, mixed) + mine % 4);
#pragma unroll
    for (int k = 0; k < Whole::outputs; ++k) out[k] += row[k] * v;
  }
}

/// The last layer, for the environment `mine` of the warp.
SF_INLINE void last_layer(float (&out)[widths[layers]], const float* weights, const float* x, int mine) {
#pragma unroll
  for (int k = 0; k < Whole::outputs; ++k) out[k] = weights[Whole::begin + k];
#pragma unroll 1
  for (int block = 0; block < Whole::inputs / 4; ++block) add_last<4>(out, weights, x, block, mine);
  if constexpr (Whole::inputs % 4 > 0) add_last<Whole::inputs % 4>(out, weights, x, Whole::inputs / 4, mine);
}

/// Layers k and after, of the warp; `mine` is this thread's environment in it.
template <int k>
SF_INLINE void network(float (&out)[widths[layers]], const float* weights, float* x, float* y, int mine, int lane) {
  if constexpr (k + 1 == layers) {
    last_layer(out, weights, x, mine);
  } else {
    dense<k>(weights, x, y);
    if constexpr (Layout<k>::norm) normalise<k>(weights, y, mine, lane);
    network<k + 1>(out, weights, y, x, mine, lane);
  }
}

/// As `policy_actions` of mlp.h, for the environments of a warp. `memory`: activations of the warp.
SF_INLINE void act(Environment& e, const float* weights, float* memory, uint32 key, uint32 time) {
  const int mine = threadIdx.x % together, lane = threadIdx.x % 32 / together;
  __syncwarp();  // the activations of the step before have been read
#pragma unroll
  for (int k = 0; k < sizes.observations; ++k)
    if (k % lanes == lane)
      write_activation(memory + activation_at(k, mine), (e.o[k] - weights[mean_at + k]) * weights[scale_at + k]);
  __syncwarp();
  float out[widths[layers]];
  network<0>(out, weights, memory, Whole::in_place ? memory : memory + Whole::rows * together, mine, lane);
  float noise[sizes.actions] = {};
  if constexpr (sampling != Sampling::none) draw_normals(noise, key, time);
#pragma unroll
  for (int k = 0; k < sizes.actions; ++k) {
    float v = out[k];
    if constexpr (sampling == Sampling::before_squash)
      v += exp(clip(out[sizes.actions + k], weights[deviation_at], weights[deviation_at + 1])) * noise[k];
    if constexpr (SF_SQUASH) v = tanh(v);
    if constexpr (sampling == Sampling::after_squash) v += weights[deviation_at + k] * noise[k];
    e.a[k] = weights[middle_at + k] + weights[half_at + k] * clip(v, -1.0f, 1.0f);
  }
}

/// Shared memory has the weights, if there is room for them, then the activations of each warp.
SF_INLINE const float* gather(const float* weights) {
  if constexpr (!SF_WEIGHTS_SHARED) return weights;
  for (int k = threadIdx.x; k < SF_WEIGHTS / 4; k += SF_THREADS)
    shared_memory[k] = reinterpret_cast<const float4*>(weights)[k];
  __syncthreads();
  return reinterpret_cast<const float*>(shared_memory);
}
SF_INLINE float* warp_memory() {
  float* const first = reinterpret_cast<float*>(shared_memory) + (SF_WEIGHTS_SHARED ? SF_WEIGHTS : 0);
  return first + threadIdx.x / 32 * (activation_rows * together);
}
#endif

// ---- the loop over time ----

SF_INLINE void read_parameters(const Job& job, Environment& e, int row) {
  read(e.p, job.parameters, job.shared ? 0 : row);
}

SF_INLINE Environment enter(const Job& job, int row) {
  Environment e{};
  read(e.s, job.states, row);
  read_parameters(job, e, row);
  return e;
}

/// Sums that change at every step; those that change when an episode ends are kept in global memory, not in registers.
struct Account {
  float total, cost, lowest;
};

SF_INLINE Account open_account(const Job& job, int row, bool writes) {
  if (writes) {
    job.lengths[row] = job.horizon;
    job.terminated[row] = job.truncated[row] = job.diverged[row] = 0;
    job.finished[row] = job.finished_lengths[row] = 0;
    job.finished_returns[row] = job.finished_costs[row] = 0.0f;
  }
  return {0.0f, 0.0f, 3.4e38f};
}

SF_INLINE void close_episode(const Job& job, int row, bool writes, const Account& sums, int ended, int steps) {
  if (writes) {
    job.terminated[row] += (ended & terminated) != 0;
    job.truncated[row] += (ended & truncated) != 0;
    job.diverged[row] += (ended & diverged) != 0;
    job.finished[row] += 1;
    job.finished_lengths[row] += steps;
    job.finished_returns[row] = sums.total;  // all episodes so far have ended
    job.finished_costs[row] = sums.cost;
  }
}

SF_INLINE void record_outcome(const Job& job, long at, float reward, float margin, int ended) {
  if (job.record_rewards != nullptr) job.record_rewards[at] = reward;
  if (job.record_margins != nullptr) job.record_margins[at] = margin;
  if (job.record_costs != nullptr) job.record_costs[at] = margin < 0.0f ? 1.0f : 0.0f;
  if (job.record_terminated != nullptr) job.record_terminated[at] = (ended & terminated) != 0;
  if (job.record_truncated != nullptr) job.record_truncated[at] = (ended & truncated) != 0;
  if (job.record_diverged != nullptr) job.record_diverged[at] = (ended & diverged) != 0;
}

SF_INLINE void leave(const Job& job, int row, Environment& e, const Account& sums, uint32 episode, int elapsed) {
  write(job.states, e.s, row);
  if (job.last_observations != nullptr) {
    observe(e, job.matrices);
    write(job.last_observations, e.o, row);
  }
  job.episodes[row] = static_cast<int>(episode);
  job.elapsed[row] = elapsed;
  job.returns[row] = sums.total;
  job.costs[row] = sums.cost;
  job.margins[row] = sums.lowest;
}

/// Read where it is needed rather than kept in a register.
SF_INLINE uint32 seed_of(const Job& job, int row) { return static_cast<uint32>(job.seeds[row]); }

SF_INLINE void choose_action(const Job& job, Environment& e, const float* weights, int row, uint32 episode, uint32 time,
                             long at) {
  if constexpr (source == Source::random) {
    const uint32 key = episode_key(seed_of(job, row), episode, action_stream);
#pragma unroll
    for (int k = 0; k < sizes.actions; ++k)
      e.a[k] = job.low[k] + (job.high[k] - job.low[k]) * uniform<float>(key, time, static_cast<uint32>(k));
  } else if constexpr (source == Source::given) {
    read(e.a, job.given, at);
#pragma unroll
    for (int k = 0; k < sizes.actions; ++k) e.a[k] = clip(e.a[k], job.low[k], job.high[k]);
  } else {
#ifdef SF_WIDTHS
    const uint32 key = sampling == Sampling::none ? 0 : episode_key(seed_of(job, row), episode, policy_stream);
    act(e, weights, warp_memory(), key, time);
#endif
  }
}

/// Roll out the environment of this thread, as levels/rollout.cpp does a block of them. Threads stay together until every
/// environment of their warp has ended; those past the last environment repeat it and write nothing. `group` environments
/// that follow each other have a policy of their own, and so blocks of their own.
SF_INLINE void roll(const Job& job, const float* weights, int group) {
  const int blocks = (group * lanes + SF_THREADS - 1) / SF_THREADS;  // of a policy
  const int block = static_cast<int>(blockIdx.x) % blocks, member = static_cast<int>(blockIdx.x) / blocks;
#ifdef SF_WIDTHS
  weights = gather(weights + static_cast<long>(member) * SF_WEIGHTS);
#endif
  const int wanted = (block * (SF_THREADS / 32) + static_cast<int>(threadIdx.x) / 32) * together +
                     static_cast<int>(threadIdx.x) % together;
  const int row = member * group + (wanted < group ? wanted : group - 1);
  const bool writes = wanted < group && threadIdx.x % 32 < together;
  Environment e = enter(job, row);
  uint32 episode = static_cast<uint32>(job.episodes[row]);
  int start = -job.elapsed[row];
  bool running = true;
  Account sums = open_account(job, row, writes);
  for (int t = 0; t < job.horizon && __any_sync(~0u, running); ++t) {
    const uint32 time = static_cast<uint32>(t - start);
    const long at = static_cast<long>(t) * job.envs + row;
    const bool records = writes && running;
    if (source == Source::policy || job.record_observations != nullptr) observe(e, job.matrices);
    if (records && job.record_observations != nullptr) write(job.record_observations, e.o, at);  // not kept in registers
    choose_action(job, e, weights, row, episode, time, at);
    // read again rather than kept in registers, which the policy needs
    if constexpr (source == Source::policy) read_parameters(job, e, row);
    if (records && job.record_actions != nullptr) write(job.record_actions, e.a, at);
    float z[drawn_normals] = {};
    if (sizes.normals > 0 && job.noisy) draw_normals(z, episode_key(seed_of(job, row), episode, process_stream), time);

    float before[sizes.states];
#pragma unroll
    for (int k = 0; k < sizes.states; ++k) before[k] = e.s[k];
    const Outcome<float> outcome = step(e, z, job.matrices);
    const float last = t + 1 - start >= job.limit ? 1.0f : 0.0f;
    float reward = outcome.reward, margin = outcome.margin, kept;
    const int ended = settle(running ? 1.0f : 0.0f, size_of(e, outcome), outcome.terminated, last, reward, margin,
                             sums.total, sums.cost, sums.lowest, kept);
#pragma unroll
    for (int k = 0; k < sizes.states; ++k) e.s[k] = kept > 0.5f ? e.s[k] : before[k];
    if (records && job.record_next_observations != nullptr) {
      observe(e, job.matrices);
      write(job.record_next_observations, e.o, at);
    }
    if (records) record_outcome(job, at, reward, margin, ended);
    if (ended == going) continue;
    close_episode(job, row, writes, sums, ended, t + 1 - (start > 0 ? start : 0));
    episode += 1;
    start = t + 1;
    if (job.many) {
      reset(e, seed_of(job, row), episode, job.matrices);
    } else {
      running = false;
      if (writes) job.lengths[row] = t + 1;
    }
  }
  if (writes) leave(job, row, e, sums, episode, running ? job.horizon - start : 0);
}

}  // namespace gpu
}  // namespace surefoot

/// Arguments are those of `Job`, in the order of ARGUMENTS in cuda_ext/gpu.py.
extern "C" __global__ void __launch_bounds__(SF_THREADS, SF_BLOCKS) surefoot_rollout(
    int envs, int group, int horizon, int limit, int many, int shared, int noisy, const float* matrices,
    const float* low, const float* high, const long long* seeds, const float* parameters, const float* given,
    const float* weights, float* states, int* episodes, int* elapsed, float* returns, float* costs, float* margins,
    int* lengths, int* terminated, int* truncated, int* diverged, int* finished, int* finished_lengths, float* finished_returns,
    float* finished_costs, float* last_observations, float* record_observations, float* record_actions,
    float* record_rewards, float* record_next_observations, float* record_costs, float* record_margins,
    unsigned char* record_terminated, unsigned char* record_truncated, unsigned char* record_diverged) {
  surefoot::Job job;
  job.envs = envs, job.horizon = horizon, job.limit = limit;
  job.many = many != 0, job.shared = shared != 0, job.noisy = noisy != 0;
  job.matrices = matrices, job.low = low, job.high = high, job.seeds = seeds, job.parameters = parameters;
  job.given = given, job.states = states, job.episodes = episodes, job.elapsed = elapsed;
  job.returns = returns, job.costs = costs, job.margins = margins, job.lengths = lengths;
  job.terminated = terminated, job.truncated = truncated, job.diverged = diverged, job.finished = finished;
  job.finished_lengths = finished_lengths, job.finished_returns = finished_returns;
  job.finished_costs = finished_costs, job.last_observations = last_observations;
  job.record_observations = record_observations, job.record_actions = record_actions;
  job.record_rewards = record_rewards, job.record_next_observations = record_next_observations;
  job.record_costs = record_costs, job.record_margins = record_margins;
  job.record_terminated = record_terminated, job.record_truncated = record_truncated;
  job.record_diverged = record_diverged;
  surefoot::gpu::roll(job, weights, group);
}

/// Begin an episode in the environments whose `mask` is not 0 (all where it is null): one thread each.
extern "C" __global__ void surefoot_reset(int envs, int shared, const unsigned char* mask, const float* matrices,
                                          const long long* seeds, const float* parameters, const int* episodes,
                                          float* states, float* last_observations) {
  const int row = static_cast<int>(blockIdx.x * SF_THREADS + threadIdx.x);
  if (row >= envs) return;
  surefoot::Job job;
  job.states = states, job.parameters = parameters, job.shared = shared != 0;
  surefoot::gpu::Environment e = surefoot::gpu::enter(job, row);
  if (mask == nullptr || mask[row] != 0) {
    surefoot::gpu::reset(e, static_cast<surefoot::uint32>(seeds[row]), static_cast<surefoot::uint32>(episodes[row]),
                         matrices);
    surefoot::gpu::write(states, e.s, row);
  }
  if (last_observations != nullptr) {
    surefoot::gpu::observe(e, matrices);
    surefoot::gpu::write(last_observations, e.o, row);
  }
}
