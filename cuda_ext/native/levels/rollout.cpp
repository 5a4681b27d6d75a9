// The loop over time of a block of lanes, the same for every system.
#include "../level.h"
#include "operations.h"
#include "systems.inc"

#include <limits.h>

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

const Operations table[] = {
#define SUREFOOT_OPERATIONS(name) operations<::surefoot::name>(),
    SUREFOOT_SYSTEMS(SUREFOOT_OPERATIONS)
#undef SUREFOOT_OPERATIONS
};

/// `valid` rows of (envs, width), one per environment, to lanes; the lanes past the last environment repeat it.
template <class T, class From>
void to_lanes(const Block& b, const From* rows, int width, T* to) {
  const From* const first = rows + static_cast<long>(b.first) * width;
  const int valid = b.valid;
  for (int k = 0; k < width; ++k) {
    T* const lane = to + k * lanes;
#pragma omp simd
    for (int l = 0; l < valid; ++l) lane[l] = static_cast<T>(first[l * width + k]);
    for (int l = valid; l < lanes; ++l) lane[l] = lane[valid - 1];
  }
}

/// A value of each lane to the environments' rows: `to[l]` is what `value` returns for lane l.
template <class T, class Value>
SF_INLINE void to_row(const Block& b, T* rows, const Value& value) {
  T* const to = rows + b.first;
  const int valid = b.valid;
#pragma omp simd
  for (int l = 0; l < valid; ++l) to[l] = value(l);  // vectorised
}

/// Lanes to rows of (envs, width); `mask` null or 0 where a row is left as it is.
void to_rows(const Block& b, const float* from, int width, const float* mask, float* rows) {
  for (int l = 0; l < b.valid; ++l) {
    if (mask != nullptr && mask[l] == 0.0f) continue;
    float* const row = rows + static_cast<long>(b.first + l) * width;
    for (int k = 0; k < width; ++k) row[k] = from[k * lanes + l];
  }
}

bool any_running(const Block& b, int from, int to) {
  float any = 0.0f;
  for (int l = from; l < to; ++l) any = b.running[l] > any ? b.running[l] : any;
  return any > 0.0f;
}

/// Keys of the lanes from .. to - 1, whole groups, for the episode that is `ahead` of the present one, of the streams that
/// this job draws from.
void make_keys(Block& b, int ahead, uint32 (*keys)[lanes], int from, int to) {
  const uint32 streams[3] = {process_stream, policy_stream, action_stream};
  for (int k = 0; k < 3; ++k) {
    for (int first = from; b.draws[k] && first < to; first += group) {
      uint32* const key = keys[k];
      const uint32 stream = streams[k];
#pragma omp simd
      for (int l = first; l < first + group; ++l)  // vectorised
        key[l] = episode_key(b.seed[l], static_cast<uint32>(b.episode[l] + ahead), stream);
    }
  }
}

void random_actions(Block& b, int t) {
  const Job& job = *b.job;
  for (int k = 0; k < job.sizes.actions; ++k) {
    const float low = job.low[k], high = job.high[k];
    float* const a = b.actions + k * lanes;
    const uint32* const key = b.key[action_key];
#pragma omp simd
    for (int l = 0; l < lanes; ++l)  // vectorised
      a[l] = uniform_between(low, high, key[l], static_cast<uint32>(t), static_cast<uint32>(k));
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
void draw_normals(const uint32* key, int t, int count, float* to) {
  for (int pair = 0; 2 * pair < count; ++pair) {
    float *const first = to + 2 * pair * lanes, *const second = first + lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) {  // vectorised
      float x, y;
      normals(key[l], static_cast<uint32>(t), static_cast<uint32>(pair), x, y);
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
      if (job.policy.sampling != Sampling::none) draw_normals(b.key[policy_key], t, job.policy.actions, b.noise);
      for (int l = 0; l < b.valid; l += policy_lanes)
        if (any_running(b, l, l + policy_lanes))
          policy_actions<policy_lanes, lanes>(job.policy, b.observations + l, b.noise + l, b.one, b.two, b.actions + l);
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

bool any_of(const int* lane, int from, int to) {
  int any = 0;
  for (int l = from; l < to; ++l) any |= lane[l];
  return any != 0;
}

/// Begin the prepared episodes, at time t, in the lanes that have ended.
void begin(Block& b, int t) {
  const int* const ended = b.ended;
  const auto exchange = [ended](auto* to, const auto* value) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) to[l] = ended[l] != 0 ? value[l] : to[l];  // vectorised
  };
  for (int k = 0; k < b.job->sizes.states; ++k) exchange(b.states + k * lanes, b.fresh + k * lanes);
  const uint32 past = static_cast<uint32>(-t);
  for (int k = 0; k < 3; ++k) {
    if (!b.draws[k]) continue;
    uint32* const key = b.key[k];
    const uint32* const fresh = b.next_key[k];
#pragma omp simd
    for (int l = 0; l < lanes; ++l) key[l] = ended[l] != 0 ? later(fresh[l], past) : key[l];  // vectorised
  }
}

/// Book the episodes that ended at step t. (What few steps change is written by those alone: a store takes the processor
/// as long as four sums.)
void book(Block& b, int t) {
  const Sums& sums = *b.sums;
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    const int ended = b.ended[l];
    b.from_total[l] = ended != 0 ? sums.total[l] : b.from_total[l];
    b.from_cost[l] = ended != 0 ? sums.cost[l] : b.from_cost[l];
    b.start[l] = ended != 0 ? t + 1 : b.start[l];
    b.episode[l] += ended != 0 ? 1 : 0;
  }
  if (b.any_truncated) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) {  // vectorised
      b.truncated[l] += (b.ended[l] >> 1) & 1;
      b.diverged[l] += (b.ended[l] >> 2) & 1;
    }
  }
  if (!b.job->many) {
#pragma omp simd
    for (int l = 0; l < lanes; ++l) b.running[l] = b.ended[l] != 0 ? 0.0f : b.running[l];  // vectorised
  }
}

void set_deadline(Block& b) {
  int first = b.start[0];
  for (int l = 0; l < lanes; ++l) first = b.start[l] < first ? b.start[l] : first;
  b.deadline = b.job->limit > INT_MAX / 2 ? INT_MAX : first + b.job->limit;
}

/// The next episodes of the lanes from .. to - 1, whole groups.
void prepare_next(Block& b, int from, int to, const Operations& operations) {
  operations.prepare(b, 1, from, to);
  make_keys(b, 1, b.next_key, from, to);
  for (int l = from; l < to; ++l) b.prepared[l] = b.episode[l] + 1;
}

/// See to it that the lanes which have ended have another episode prepared. One group is prepared at each such step,
/// whether it need be or not, so that it is seldom that a lane's next episode is missing and all are.
void prepare_ahead(Block& b, const Operations& operations) {
  int missing = 0;
  for (int l = 0; l < lanes; ++l) missing |= b.ended[l] != 0 ? b.prepared[l] ^ (b.episode[l] + 1) : 0;
  if (missing != 0) {
    prepare_next(b, 0, lanes, operations);
  } else {
    prepare_next(b, b.turn, b.turn + group, operations);
    b.turn = (b.turn + group) % lanes;
  }
}

/// Book the episodes that ended at step t; begin others or let their lanes wait.
void finish(Block& b, int t, const Operations& operations) {
  if (b.job->many) {
    prepare_ahead(b, operations);
    begin(b, t + 1);
  }
  book(b, t);
  b.all_running = b.job->many;
  if (t + 1 >= b.deadline) set_deadline(b);
}

/// The environments' present to lanes. `fresh`: episodes begin, in states drawn here.
void enter(Block& b, const Job& job, int first, const Operations* fresh) {
  b.job = &job;
  b.first = first;
  b.valid = job.envs - first < lanes ? job.envs - first : lanes;
  b.shared = job.parameters;
  b.all_running = true;
  b.turn = 0;
  b.draws[process_key] = job.noisy;
  b.draws[policy_key] = job.source == Source::policy && job.policy.sampling != Sampling::none;
  b.draws[action_key] = job.source == Source::random;
  b.sums = b.both_sums;
  b.next_sums = b.both_sums + 1;
  if (!job.shared) to_lanes(b, job.parameters, job.sizes.parameters, b.parameters);
  for (int k = 0; job.shared && k < job.sizes.parameters; ++k)
    for (int l = 0; l < lanes; ++l) b.parameters[k * lanes + l] = job.parameters[k];
  to_lanes(b, job.seeds, 1, b.seed);
  to_lanes(b, job.episodes, 1, b.episode);
  to_lanes(b, job.elapsed, 1, b.start);
  Sums& sums = *b.sums;
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    b.start[l] = -b.start[l];
    b.running[l] = 1.0f;
    b.prepared[l] = b.episode[l];
    sums.total[l] = sums.cost[l] = b.from_total[l] = b.from_cost[l] = 0.0f;
    sums.lowest[l] = 3.4e38f;
    b.ended[l] = b.truncated[l] = b.diverged[l] = 0;
  }
  for (int l = 0; l < lanes; ++l) b.ends[l] = 0;
  for (int k = 0; k < (job.sizes.normals + 1) * lanes; ++k) b.normals[k] = 0.0f;
  for (int k = 0; k < job.sizes.actions * lanes; ++k) b.actions[k] = 0.0f;
  if (fresh != nullptr) {
    fresh->prepare(b, 0, 0, lanes);
    float* const states = b.states;
    b.states = b.fresh;
    b.fresh = states;
  } else {
    to_lanes(b, job.states, job.sizes.states, b.states);
  }
  set_deadline(b);
  make_keys(b, 0, b.key, 0, lanes);
  for (int k = 0; k < 3; ++k)
    for (int l = 0; b.draws[k] && l < lanes; ++l) b.key[k][l] = later(b.key[k][l], static_cast<uint32>(-b.start[l]));
}

void leave(Block& b, const Operations& operations) {
  const Job& job = *b.job;
  to_rows(b, b.states, job.sizes.states, nullptr, job.states);
  if (job.last_observations != nullptr) {
    operations.observe(b);
    to_rows(b, b.observations, job.sizes.observations, nullptr, job.last_observations);
  }
  const Sums& sums = *b.sums;
  const int horizon = job.horizon;
  const auto waits = [&b](int l) { return b.running[l] == 0.0f; };
  const int* const before = job.episodes + b.first;
  alignas(64) int finished[lanes];
  for (int l = 0; l < b.valid; ++l) finished[l] = b.episode[l] - before[l];
  to_row(b, job.episodes, [&b](int l) { return b.episode[l]; });
  to_row(b, job.elapsed, [&](int l) { return waits(l) ? 0 : horizon - b.start[l]; });
  to_row(b, job.returns, [&sums](int l) { return sums.total[l]; });
  to_row(b, job.costs, [&sums](int l) { return sums.cost[l]; });
  to_row(b, job.margins, [&sums](int l) { return sums.lowest[l]; });
  to_row(b, job.lengths, [&](int l) { return waits(l) ? b.start[l] : horizon; });
  to_row(b, job.terminated, [&](int l) { return finished[l] - b.truncated[l]; });
  to_row(b, job.truncated, [&b](int l) { return b.truncated[l]; });
  to_row(b, job.diverged, [&b](int l) { return b.diverged[l]; });
  to_row(b, job.finished, [&](int l) { return finished[l]; });
  // the step that the last of them ended before
  to_row(b, job.finished_lengths, [&](int l) { return finished[l] > 0 ? b.start[l] : 0; });
  to_row(b, job.finished_returns, [&b](int l) { return b.from_total[l]; });
  to_row(b, job.finished_costs, [&b](int l) { return b.from_cost[l]; });
}

/// Which of the things that a step may do this job asks for.
struct Wishes {
  bool sees, records, strides;
};

Wishes wishes_of(const Job& job, const Operations& operations) {
  const bool sees = job.source == Source::policy || job.record_observations != nullptr;
  const bool records = job.record_next_observations != nullptr || job.record_rewards != nullptr ||
                       job.record_costs != nullptr || job.record_margins != nullptr ||
                       job.record_terminated != nullptr || job.record_truncated != nullptr ||
                       job.record_diverged != nullptr;
  const bool plain = !sees && !records && job.record_actions == nullptr && !job.noisy && job.shared;
  return {sees, records, plain && job.source == Source::random && operations.stride != nullptr};
}

/// The step at time t, whatever the job asks for.
void any_step(Block& b, int t, const Operations& operations, const Wishes& wishes) {
  if (wishes.sees) operations.observe(b);
  choose_actions(b, t);
  record_before(b, t);
  if (b.job->noisy) draw_normals(b.key[process_key], t, b.job->sizes.normals, b.normals);
  operations.step(b, t);
  if (wishes.records) record_after(b, t, operations);
}

void run(Block& b, const Operations& operations) {
  const Job& job = *b.job;
  const Wishes wishes = wishes_of(job, operations);
  bool going_on = true, strides = wishes.strides;
  for (int t = 0; t < job.horizon && going_on;) {
    const int before = t;
    if (strides && b.all_running) t = operations.stride(b, t);
    if (t == before) {
      any_step(b, t++, operations, wishes);
      strides = false;  // perhaps a lane is about to diverge, which ends its episode
    }
    if (b.any_ended) {
      strides = wishes.strides;
      finish(b, t - 1, operations);
      going_on = job.many || any_running(b, 0, b.valid);
    }
  }
}

/// Lays a block's arrays out in `scratch`, or counts the floats they need where it is null.
long lay_out(Block& b, const Job& job, float* scratch) {
  const Sizes& n = job.sizes;
  const int width = job.source == Source::policy ? job.policy.width : 0;
  float** const arrays[] = {&b.states,  &b.next, &b.fresh, &b.actions,  &b.observations, &b.parameters,
                            &b.normals, &b.noise, &b.uniforms, &b.one,          &b.two};
  const int widths[] = {n.states,      n.states,      n.states,     n.actions,  n.observations, n.parameters,
                        n.normals + 2, n.actions + 2, n.uniforms, width,          width};
  long used = 0;
  for (int k = 0; k < 11; ++k) {
    if (scratch != nullptr) *arrays[k] = scratch + used;
    used += static_cast<long>(widths[k]) * lanes;
  }
  return used;
}

}  // namespace

/// Some lane waits, or has diverged.
static void settle_with_care(Block& b, int steps) {
  const int states = b.job->sizes.states, limit = b.job->limit;
  alignas(64) float size[lanes], kept[lanes];
#pragma omp simd
  for (int l = 0; l < lanes; ++l) size[l] = 1e-20f * (abs(b.reward[l]) + abs(b.margin[l]));  // vectorised
  for (int k = 0; k < states; ++k) {
    const float* const value = b.next + k * lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) size[l] += abs(value[l]);  // vectorised
  }
  const Sums& sums = *b.sums;
  Sums& next = *b.next_sums;
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    const float last = steps - b.start[l] >= limit ? 1.0f : 0.0f;
    next.total[l] = sums.total[l], next.cost[l] = sums.cost[l], next.lowest[l] = sums.lowest[l];
    const float ends = b.ends[l];
    b.ended[l] = settle(b.running[l], size[l], ends, last, b.reward[l], b.margin[l], next.total[l], next.cost[l],
                        next.lowest[l], kept[l]);
  }
  for (int k = 0; k < states; ++k) {
    float* const value = b.next + k * lanes;
    const float* const old = b.states + k * lanes;
#pragma omp simd
    for (int l = 0; l < lanes; ++l) value[l] = kept[l] > 0.5f ? value[l] : old[l];  // vectorised
  }
}

static void settle_plainly(Block& b) {
  const Sums& sums = *b.sums;
  Sums& next = *b.next_sums;
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    next.total[l] = sums.total[l] + b.reward[l];
    next.cost[l] = sums.cost[l] + (b.margin[l] < 0.0f ? 1.0f : 0.0f);
    next.lowest[l] = b.margin[l] < sums.lowest[l] ? b.margin[l] : sums.lowest[l];
  }
}

void end_block(Block& b, int steps) {
  const int limit = b.job->limit;
#pragma omp simd
  for (int l = 0; l < lanes; ++l) {  // vectorised
    const int late = steps - b.start[l] >= limit ? truncated : going;
    b.ended[l] = b.ends[l] != 0 ? terminated : late;
  }
  b.any_truncated = steps >= b.deadline;
  b.any_ended = any_of(b.ended, 0, lanes);
}

void settle_block(Block& b, int steps, bool any_diverged, bool any_terminated) {
  b.any_ended = false;
  if (b.all_running && !any_diverged) {
    settle_plainly(b);
    if (any_terminated || steps >= b.deadline) {
      end_block(b, steps);
    } else {
      for (int l = 0; l < lanes; ++l) b.ended[l] = going;
    }
  } else {
    settle_with_care(b, steps);
    b.any_truncated = true;
    b.any_ended = any_of(b.ended, 0, lanes);
  }
  turn_over(b);
}

int block_lanes() { return lanes; }

long block_bytes(const Job& job) {
  Block b;
  return static_cast<long>(sizeof(Block)) + static_cast<long>(sizeof(float)) * lay_out(b, job, nullptr);
}

/// Roll out the block that begins with environment `first`, from the states it is in or, `fresh`, from such as episodes
/// begin in. `memory`: block_bytes, aligned to 64.
void run_block(int system, const Job& job, int first, bool fresh, char* memory) {
  Block& b = *reinterpret_cast<Block*>(memory);
  lay_out(b, job, reinterpret_cast<float*>(memory + sizeof(Block)));
  enter(b, job, first, fresh ? &table[system] : nullptr);
  run(b, table[system]);
  leave(b, table[system]);
}

/// Begin an episode in the environments of a block whose `mask` is not 0 (all where it is null).
void reset_block(int system, const Job& job, int first, const unsigned char* mask, char* memory) {
  Block& b = *reinterpret_cast<Block*>(memory);
  lay_out(b, job, reinterpret_cast<float*>(memory + sizeof(Block)));
  enter(b, job, first, nullptr);
  for (int l = 0; l < b.valid; ++l) b.ended[l] = mask == nullptr || mask[first + l] != 0;
  table[system].prepare(b, 0, 0, lanes);
  begin(b, 0);
  to_rows(b, b.states, job.sizes.states, nullptr, job.states);
  if (job.last_observations != nullptr) {
    table[system].observe(b);
    to_rows(b, b.observations, job.sizes.observations, nullptr, job.last_observations);
  }
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
