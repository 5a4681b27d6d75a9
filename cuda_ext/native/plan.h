// A plan for each of many states: candidates drawn, rolled out and fitted to, again and again, by one thread a state.
#pragma once

#include "rollout.h"

namespace surefoot {

/// Candidates of an iteration are `populations[i]` new samples around the mean, then `kept` elites of the iteration before
/// (and in the last iteration the mean, where elites are kept). Arrays are row-major; null pointers are not wanted.
/// Everything is as in world_models/planners/{mppi,cem,icem}.py, which are its twins.
struct PlanJob {
  Sizes sizes;
  const float* matrices;             // constants of a system with widths chosen at run time
  const float *low, *high;           // (actions)
  const float* parameters;           // (futures, parameters), of all rows
  int futures, tail;                 // a candidate is worth the mean of its `tail` worst futures, likewise its cost
  bool noisy;                        // futures have process noise, which all candidates share
  int rows, horizon, iterations;
  const int* populations;            // (iterations)
  int elites, kept;
  bool average;                      // MPPI: weights instead of elites, the first candidate without noise
  bool limited;                      // `cost_limit` counts
  bool truncated;                    // samples of a normal distribution cut at two deviations
  float sigma, temperature, momentum, discount, cost_limit;
  const float* colouring;            // (horizon, horizon) lower triangle
  const long long* draws;            // (rows, 2) seeds and counts
  const float* states;               // (rows, states)
  float* mean;                       // (rows, horizon, actions): where the plan begins, then the mean
  float* best;                       // (rows, horizon, actions): the best candidate seen
  float* keep;                       // (rows, kept, horizon, actions): elites to begin with, then those of the last iteration
};

}  // namespace surefoot
