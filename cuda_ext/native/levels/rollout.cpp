// The loop over time of a block of lanes, the same for every system.
#include "../level.h"
#include "block.h"
#include "systems.inc"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

const Operations table[] = {
#define SUREFOOT_OPERATIONS(name) operations<::surefoot::name>(),
    SUREFOOT_SYSTEMS(SUREFOOT_OPERATIONS)
#undef SUREFOOT_OPERATIONS
};

/// Rows of (envs, width), one per environment, to lanes; the lanes past the last environment repeat it.
void to_lanes(const Block& b, const float* rows, int width, float* to) {
  for (int l = 0; l < lanes; ++l) {
    const long row = b.first + (l < b.valid ? l : b.valid - 1);
    for (int k = 0; k < width; ++k) to[k * lanes + l] = rows[row * width + k];
  }
}

/// Lanes to rows of (envs, width); `mask` null or 0 where a row is left as it is.
void to_rows(const Block& b, const float* from, int width, const float* mask, float* rows) {
  for (int l = 0; l < b.valid; ++l) {
    if (mask != nullptr && mask[l] == 0.0f) continue;
    float* const row = rows + static_cast<long>(b.first + l) * width;
    for (int k = 0; k < width; ++k) row[k] = from[k * lanes + l];
  }
}

void keys(Block& b) {
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    const uint32 episode = static_cast<uint32>(b.episode[l]);
    b.process_key[l] = episode_key(b.seed[l], episode, process_stream);
    b.policy_key[l] = episode_key(b.seed[l], episode, policy_stream);
    b.action_key[l] = episode_key(b.seed[l], episode, action_stream);
  }
}

void random_actions(Block& b, int t) {
  const Job& job = *b.job;
  for (int k = 0; k < job.sizes.actions; ++k) {
    const float low = job.low[k], width = job.high[k] - job.low[k];
    float* const a = b.actions + k * lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l)  // vectorised
      a[l] = low + width * uniform<float>(b.action_key[l], static_cast<uint32>(t - b.start[l]), static_cast<uint32>(k));
  }
}

void given_actions(Block& b, int t) {
  const Job& job = *b.job;
  const int width = job.sizes.actions;
  to_lanes(b, job.given + static_cast<long>(t) * job.envs * width, width, b.actions);
  for (int k = 0; k < width; ++k) {
    const float low = job.low[k], high = job.high[k];
    float* const a = b.actions + k * lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) a[l] = clip(a[l], low, high);  // vectorised
  }
}

/// `count` standard normal numbers a lane, rounded up to whole pairs.
void draw_normals(const Block& b, const uint32* key, int t, int count, float* to) {
  for (int pair = 0; 2 * pair < count; ++pair) {
    float *const first = to + 2 * pair * lanes, *const second = first + lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) {  // vectorised
      float x, y;
      normals(key[l], static_cast<uint32>(t - b.start[l]), static_cast<uint32>(pair), x, y);
      first[l] = x;
      second[l] = y;
    }
  }
}

void choose_actions(Block& b, int t) {
  const Job& job = *b.job;
  switch (job.source) {
    case Source::random: random_actions(b, t); break;
    case Source::given: given_actions(b, t); break;
    case Source::policy:
      if (job.policy.sampling != Sampling::none) draw_normals(b, b.policy_key, t, job.policy.actions, b.noise);
      policy_actions<lanes>(job.policy, b.observations, b.noise, b.one, b.two, b.actions);
      break;
  }
}

void record_before(Block& b, int t) {
  const Job& job = *b.job;
  const long row = static_cast<long>(t) * job.envs;
  const Sizes& n = job.sizes;
  if (job.record_observations != nullptr)
    to_rows(b, b.observations, n.observations, b.running, job.record_observations + row * n.observations);
  if (job.record_actions != nullptr) to_rows(b, b.actions, n.actions, b.running, job.record_actions + row * n.actions);
}

void record_after(Block& b, int t, const Operations& operations) {
  const Job& job = *b.job;
  const long row = static_cast<long>(t) * job.envs;
  if (job.record_next_observations != nullptr) {
    operations.observe(b);
    to_rows(b, b.observations, job.sizes.observations, b.running,
            job.record_next_observations + row * job.sizes.observations);
  }
  if (job.record_rewards != nullptr) to_rows(b, b.reward, 1, b.running, job.record_rewards + row);
  if (job.record_margins != nullptr) to_rows(b, b.margin, 1, b.running, job.record_margins + row);
  for (int l = 0; l < b.valid; ++l) {
    if (b.running[l] == 0.0f) continue;
    const long at = row + b.first + l;
    if (job.record_costs != nullptr) job.record_costs[at] = b.margin[l] < 0.0f ? 1.0f : 0.0f;
    if (job.record_terminated != nullptr) job.record_terminated[at] = (b.ended[l] & terminated) != 0;
    if (job.record_truncated != nullptr) job.record_truncated[at] = (b.ended[l] & truncated) != 0;
    if (job.record_diverged != nullptr) job.record_diverged[at] = (b.ended[l] & diverged) != 0;
  }
}

/// Book the episodes that ended at step t; begin others or let their lanes wait. Returns how many lanes wait since.
int finish(Block& b, int t, const Operations& operations) {
  int waiting = 0;
  for (int l = 0; l < lanes; ++l) {
    if (b.ended[l] == 0) continue;
    b.terminated[l] += (b.ended[l] & terminated) != 0;
    b.truncated[l] += (b.ended[l] & truncated) != 0;
    b.diverged[l] += (b.ended[l] & diverged) != 0;
    b.finished[l] += 1;
    b.finished_return[l] += b.total[l] - b.from_total[l];
    b.finished_cost[l] += b.cost[l] - b.from_cost[l];
    b.finished_length[l] += t + 1 - (b.start[l] > 0 ? b.start[l] : 0);
    b.from_total[l] = b.total[l];
    b.from_cost[l] = b.cost[l];
    b.episode[l] += 1;
    b.start[l] = t + 1;
    if (!b.job->many) {
      b.running[l] = 0.0f;
      b.length[l] = t + 1;
      waiting += l < b.valid;
    }
  }
  if (b.job->many) {
    operations.reset(b);
    keys(b);
  }
  return waiting;
}

void enter(Block& b, const Job& job, int first) {
  b.job = &job;
  b.first = first;
  b.valid = job.envs - first < lanes ? job.envs - first : lanes;
  b.shared = job.parameters;
  to_lanes(b, job.states, job.sizes.states, b.states);
  if (!job.shared) to_lanes(b, job.parameters, job.sizes.parameters, b.parameters);
  for (int k = 0; job.shared && k < job.sizes.parameters; ++k)
    for (int l = 0; l < lanes; ++l) b.parameters[k * lanes + l] = job.parameters[k];
  for (int l = 0; l < lanes; ++l) {
    const long row = first + (l < b.valid ? l : b.valid - 1);
    b.seed[l] = static_cast<uint32>(job.seeds[row]);
    b.episode[l] = job.episodes[row];
    b.start[l] = -job.elapsed[row];
    b.running[l] = 1.0f;
    b.length[l] = job.horizon;
    b.total[l] = b.cost[l] = b.from_total[l] = b.from_cost[l] = b.finished_return[l] = b.finished_cost[l] = 0.0f;
    b.lowest[l] = 3.4e38f;
    b.terminated[l] = b.truncated[l] = b.diverged[l] = b.finished[l] = b.finished_length[l] = 0;
  }
  for (int k = 0; k < (job.sizes.normals + 1) * lanes; ++k) b.normals[k] = 0.0f;
  keys(b);
}

void leave(Block& b, const Operations& operations) {
  const Job& job = *b.job;
  to_rows(b, b.states, job.sizes.states, nullptr, job.states);
  if (job.last_observations != nullptr) {
    operations.observe(b);
    to_rows(b, b.observations, job.sizes.observations, nullptr, job.last_observations);
  }
  for (int l = 0; l < b.valid; ++l) {
    const int row = b.first + l;
    job.episodes[row] = b.episode[l];
    job.elapsed[row] = b.running[l] != 0.0f ? job.horizon - b.start[l] : 0;
    job.returns[row] = b.total[l];
    job.costs[row] = b.cost[l];
    job.margins[row] = b.lowest[l];
    job.lengths[row] = b.length[l];
    job.terminated[row] = b.terminated[l];
    job.truncated[row] = b.truncated[l];
    job.diverged[row] = b.diverged[l];
    job.finished[row] = b.finished[l];
    job.finished_lengths[row] = b.finished_length[l];
    job.finished_returns[row] = b.finished_return[l];
    job.finished_costs[row] = b.finished_cost[l];
  }
}

void run(Block& b, const Operations& operations) {
  const Job& job = *b.job;
  const bool sees = job.source == Source::policy || job.record_observations != nullptr;
  const bool records = job.record_next_observations != nullptr || job.record_rewards != nullptr ||
                       job.record_costs != nullptr || job.record_margins != nullptr ||
                       job.record_terminated != nullptr || job.record_truncated != nullptr ||
                       job.record_diverged != nullptr;
  int running = b.valid;
  for (int t = 0; t < job.horizon && running > 0; ++t) {
    if (sees) operations.observe(b);
    choose_actions(b, t);
    record_before(b, t);
    if (job.noisy) draw_normals(b, b.process_key, t, job.sizes.normals, b.normals);
    operations.step(b, t);
    if (records) record_after(b, t, operations);
    if (b.any_ended != 0) running -= finish(b, t, operations);
  }
}

/// Lays a block's arrays out in `scratch`, or counts the floats they need where it is null.
long lay_out(Block& b, const Job& job, float* scratch) {
  const Sizes& n = job.sizes;
  const int width = job.source == Source::policy ? job.policy.width : 0;
  float** const arrays[] = {&b.states,  &b.fresh, &b.actions,  &b.observations, &b.parameters,
                            &b.normals, &b.noise, &b.uniforms, &b.one,          &b.two};
  const int widths[] = {n.states,      n.states,      n.actions,  n.observations, n.parameters,
                        n.normals + 2, n.actions + 2, n.uniforms, width,          width};
  long used = 0;
  for (int k = 0; k < 10; ++k) {
    if (scratch != nullptr) *arrays[k] = scratch + used;
    used += static_cast<long>(widths[k]) * lanes;
  }
  return used;
}

}  // namespace

int block_lanes() { return lanes; }

long block_bytes(const Job& job) {
  Block b;
  return static_cast<long>(sizeof(Block)) + static_cast<long>(sizeof(float)) * lay_out(b, job, nullptr);
}

/// Roll out the block that begins with environment `first`. `memory`: block_bytes, aligned to 64.
void run_block(int system, const Job& job, int first, char* memory) {
  Block& b = *reinterpret_cast<Block*>(memory);
  lay_out(b, job, reinterpret_cast<float*>(memory + sizeof(Block)));
  enter(b, job, first);
  run(b, table[system]);
  leave(b, table[system]);
}

/// Begin an episode in the environments of a block whose `mask` is not 0 (all where it is null).
void reset_block(int system, const Job& job, int first, const unsigned char* mask, char* memory) {
  Block& b = *reinterpret_cast<Block*>(memory);
  lay_out(b, job, reinterpret_cast<float*>(memory + sizeof(Block)));
  enter(b, job, first);
  for (int l = 0; l < lanes; ++l) b.ended[l] = l < b.valid && (mask == nullptr || mask[first + l] != 0);
  table[system].reset(b);
  to_rows(b, b.states, job.sizes.states, nullptr, job.states);
  if (job.last_observations != nullptr) {
    table[system].observe(b);
    to_rows(b, b.observations, job.sizes.observations, nullptr, job.last_observations);
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
