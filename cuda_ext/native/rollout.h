// What a rollout adds to the systems: when an episode ends, and what a step adds to its sums. Device-clean.
#pragma once

#include "mlp.h"
#include "system.h"

namespace surefoot {

/// How a step ended its episode; `diverged` comes with `truncated`.
enum Ended : int { going = 0, terminated = 1, truncated = 2, diverged = 4 };

/// A state whose absolute values add up to more, or to no number, has diverged. Its step is undone, earns 0, costs 1 and has this margin.
#define SUREFOOT_LARGEST_STATE 1e6f
#define SUREFOOT_DIVERGED_MARGIN -1e6f

/// Where the actions come from.
enum class Source { policy = 0, given = 1, random = 2 };

/// Take one step of a lane into its sums. `running`, `ends` (the system says) and `last` (the time limit is reached)
/// are 0 or 1; `size` is the sum of the absolute values of the state, reward and margin. Changes reward and margin to
/// those that count, and returns how the episode ended; `kept` is 1 where the new state is, 0 where the old one stays.
/// (Conditions are numbers here: the compiler makes branches of chains of selects, and those do not vectorise.)
SF_INLINE int settle(float running, float size, float ends, float last, float& reward, float& margin, float& total,
                     float& cost, float& lowest, float& kept) {
  const float finite = size <= SUREFOOT_LARGEST_STATE ? 1.0f : 0.0f;
  kept = running * finite;
  reward = kept > 0.5f ? reward : 0.0f;
  margin = finite > 0.5f ? margin : SUREFOOT_DIVERGED_MARGIN;
  total = total + reward;
  cost = cost + running * (margin < 0.0f ? 1.0f : 0.0f);
  const float seen = running > 0.5f ? margin : lowest;
  lowest = seen < lowest ? seen : lowest;
  const float ended = terminated * ends + truncated * (1.0f - ends) * last;
  return static_cast<int>(running * (finite * ended + (1.0f - finite) * (diverged | truncated)));
}

/// One rollout of `envs` environments over at most `horizon` steps. Arrays are row-major with one row per
/// environment, records (horizon, envs, width); null pointers are not wanted.
struct Job {
  Sizes sizes;
  const float* matrices;  // constants of a system with widths chosen at run time
  int envs, horizon, limit;  // limit: steps after which an episode is truncated
  bool many;               // begin another episode after the first
  bool shared;             // one row of parameters for all
  bool noisy;              // some parameter that scales normal draws is not 0
  Source source;
  const float *low, *high;  // (actions)
  const long long* seeds;
  const float* parameters;
  const float* given;  // (horizon, envs, actions)
  Policy policy;
  // state between calls: read and written
  float* states;
  int *episodes, *elapsed;
  // sums over the call
  float *returns, *costs, *margins;
  int *lengths, *terminated, *truncated, *diverged;
  int *finished, *finished_lengths;  // episodes that ended, and their steps
  float *finished_returns, *finished_costs;
  float* last_observations;
  // records
  float *record_observations, *record_actions, *record_rewards, *record_next_observations, *record_costs,
      *record_margins;
  unsigned char *record_terminated, *record_truncated, *record_diverged;
};

}  // namespace surefoot
