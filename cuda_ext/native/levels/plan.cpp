// Plans of a state in a native system: what native/plan.h describes.
#include "../plan.h"

#include "../level.h"
#include "../plan_lane.h"
#include "strides.h"
#include "systems.inc"

namespace surefoot {
namespace SUREFOOT_NAMESPACE {
namespace {

/// What `tile` candidates come to.
struct Ahead {
  alignas(64) float total[tile], cost[tile], last[tile], alive[tile], wild[tile];
  alignas(64) float reward[tile], margin[tile], ends[tile], size[tile];
};

template <int n, int k = 0>
SF_INLINE void scaled(float (&to)[n], const float* actions, const float (&middle)[n], const float (&half)[n], int l) {
  if constexpr (k < n) {
    to[k] = middle[k] + half[k] * actions[k * tile + l];
    scaled<n, k + 1>(to, actions, middle, half, l);
  }
}

SF_INLINE void count(Ahead& x, float reward, float margin, float ended, float size, float scale, int l) {
  count_step(x.total[l], x.cost[l], x.last[l], x.alive[l], x.wild[l], reward, margin, ended, size, scale);
}

/// Candidates of a system with widths known to the compiler: states stay in registers or the first cache.
template <class System, bool noisy>
struct LaneLook {
  static constexpr int draws = System::normals > 0 ? int(System::normals) : 1;

  SF_INLINE static void step_lane(Ahead& x, float* states, const float* actions, const float (&middle)[System::actions],
                                  const float (&half)[System::actions], const float (&p)[System::parameters],
                                  const float (&z)[draws], float scale, int l) {
    float s[System::states], a[System::actions];
    load<tile>(s, states, l);
    scaled(a, actions, middle, half, l);
    const Outcome<float> outcome = System::template step<float>(s, a, p, z);
    store<tile>(states, s, l);
    count(x, outcome.reward, outcome.margin, outcome.terminated, size_after(s, outcome), scale, l);
  }

  static void look(const PlanJob& job, const float* given, const float* start, const float* actions, const float* noise,
                   float*, Ahead& x) {
    float z[draws] = {};
    float p[System::parameters], middle[System::actions], half[System::actions];
    copy(p, given);
    for (int k = 0; k < System::actions; ++k) {
      middle[k] = 0.5f * (job.high[k] + job.low[k]);
      half[k] = 0.5f * (job.high[k] - job.low[k]);
    }
    alignas(64) float states[System::states * tile];
    for (int k = 0; k < System::states; ++k)
      for (int l = 0; l < tile; ++l) states[k * tile + l] = start[k];
    float scale = 1.0f;
    for (int t = 0; t < job.horizon; ++t, scale *= job.discount) {
      const float* const now = actions + static_cast<long>(t) * System::actions * tile;
      if constexpr (noisy) copy(z, noise + static_cast<long>(t) * System::normals);
#pragma omp simd
      for (int l = 0; l < tile; ++l) step_lane(x, states, now, middle, half, p, z, scale, l);  // vectorised
    }
  }
};

/// Candidates of a system with widths chosen at run time.
template <class System>
struct BlockLook {
  static void look(const PlanJob& job, const float* given, const float* start, const float* actions, const float* noise,
                   float* scratch, Ahead& x) {
    const Sizes& n = job.sizes;
    float *const states = scratch, *const now = states + n.states * tile, *const p = now + n.actions * tile;
    float* const z = p + n.parameters * tile;
    for (int k = 0; k < n.states; ++k)
      for (int l = 0; l < tile; ++l) states[k * tile + l] = start[k];
    for (int k = 0; k < n.parameters; ++k)
      for (int l = 0; l < tile; ++l) p[k * tile + l] = given[k];
    for (int k = 0; k < (n.normals + 1) * tile; ++k) z[k] = 0.0f;
    float scale = 1.0f;
    for (int t = 0; t < job.horizon; ++t, scale *= job.discount) {
      for (int k = 0; k < n.actions; ++k) {
        const float middle = 0.5f * (job.high[k] + job.low[k]), half = 0.5f * (job.high[k] - job.low[k]);
        const float* const from = actions + (static_cast<long>(t) * n.actions + k) * tile;
        for (int l = 0; l < tile; ++l) now[k * tile + l] = middle + half * from[l];
      }
      if (noise != nullptr)
        for (int k = 0; k < n.normals; ++k)
          for (int l = 0; l < tile; ++l) z[k * tile + l] = noise[t * n.normals + k];
      System::template step<float, tile>(n, job.matrices, states, now, p, z, x.reward, x.margin, x.ends);
      for (int l = 0; l < tile; ++l) x.size[l] = 1e-20f * (abs(x.reward[l]) + abs(x.margin[l]));
      for (int k = 0; k < n.states; ++k)
        for (int l = 0; l < tile; ++l) x.size[l] += abs(states[k * tile + l]);
      for (int l = 0; l < tile; ++l)
        count(x, x.reward[l], x.margin[l], x.ends[l] > 0.5f ? 1.0f : 0.0f, x.size[l], scale, l);
    }
  }
};

using Look = void (*)(const PlanJob&, const float*, const float*, const float*, const float*, float*, Ahead&);

/// Where there is no noise the compiler leaves its terms out.
template <class System, bool noisy>
constexpr Look look_of() {
  if constexpr (block_style<System>) {
    return &BlockLook<System>::look;
  } else {
    return &LaneLook<System, noisy && System::normals != 0>::look;
  }
}

const Look looks[][2] = {
#define SUREFOOT_LOOK(name) {look_of<::surefoot::name, false>(), look_of<::surefoot::name, true>()},
    SUREFOOT_SYSTEMS(SUREFOOT_LOOK)
#undef SUREFOOT_LOOK
};

/// Scratch of one thread. Element e = t * actions + k of candidate n is actions[(n / tile * elements + e) * tile + n % tile].
struct Scratch {
  int elements, blocks, most;
  float *actions, *white, *sums, *mean, *deviation, *value, *spent, *weight, *extra, *totals, *costs, *noise;
  int* order;
};

/// Lays the arrays out, or counts the floats they need where `memory` is null.
long lay_out(Scratch& s, const PlanJob& job, float* memory) {
  const Sizes& n = job.sizes;
  s.most = 0;
  for (int i = 0; i < job.iterations; ++i) s.most = job.populations[i] > s.most ? job.populations[i] : s.most;
  s.most += job.kept + 1;
  s.elements = job.horizon * n.actions;
  s.blocks = (s.most + tile - 1) / tile;
  const long wide = static_cast<long>(s.elements + 1) * tile, all = static_cast<long>(s.blocks) * tile;
  const long extra = static_cast<long>(n.states + n.actions + n.parameters + n.normals + 1) * tile;
  const long futures = static_cast<long>(job.futures) * tile;
  const long noise = job.noisy ? static_cast<long>(job.futures) * job.horizon * n.normals : 0;
  float* spare;
  float** const arrays[] = {&s.actions, &s.white, &s.sums, &s.mean,   &s.deviation, &s.value, &s.weight,
                            &s.extra,   &s.spent, &spare,  &s.totals, &s.costs,     &s.noise};
  const long counts[] = {s.blocks * static_cast<long>(s.elements) * tile, wide, wide, s.elements, s.elements, all, all,
                         extra, all, all, futures, futures, noise};
  long used = 0;
  for (int k = 0; k < 13; ++k) {
    if (memory != nullptr) *arrays[k] = memory + used;
    used += (counts[k] + 15) / 16 * 16;
  }
  if (memory != nullptr) s.order = reinterpret_cast<int*>(spare);
  return used;
}

SF_INLINE float& at(Scratch& s, int candidate, int e) {
  return s.actions[(static_cast<long>(candidate / tile) * s.elements + e) * tile + candidate % tile];
}

/// Standard normal numbers of the candidates of a block, candidate `number` of the plan first.
void draw_block(Scratch& s, uint32 key, int number) {
  alignas(64) uint32 keys[tile];
  for (int l = 0; l < tile; ++l) keys[l] = numbered(key, number + l);
  for (int pair = 0; 2 * pair < s.elements; ++pair) {
    float *const first = s.white + 2 * pair * tile, *const second = first + tile;
#pragma omp simd
    for (int l = 0; l < tile; ++l) {  // vectorised
      float x, y;
      normals(keys[l], 0u, static_cast<uint32>(pair), x, y);
      first[l] = x;
      second[l] = y;
    }
  }
}

/// Noise whose spectrum over time is coloured: rows of the lower triangle, the last first, so that it is done in place.
void colour_block(Scratch& s, const PlanJob& job) {
  const int width = job.sizes.actions;
  for (int t = job.horizon - 1; t >= 0; --t) {
    for (int k = 0; k < width; ++k) {
      float* const to = s.white + (t * width + k) * tile;
      alignas(64) float sum[tile] = {};
      for (int past = 0; past <= t; ++past) {
        const float c = job.colouring[t * job.horizon + past];
        const float* const from = s.white + (past * width + k) * tile;
#pragma omp simd
        for (int l = 0; l < tile; ++l) sum[l] += c * from[l];  // vectorised
      }
      for (int l = 0; l < tile; ++l) to[l] = sum[l];
    }
  }
}

/// Candidates of a block, around the mean.
template <bool truncated>
void place(const Scratch& s, float* to) {
  for (int e = 0; e < s.elements; ++e) {
    const float mean = s.mean[e], deviation = s.deviation[e];
    const float* const white = s.white + e * tile;
    float* const row = to + e * tile;
#pragma omp simd
    for (int l = 0; l < tile; ++l) row[l] = action_of<truncated>(mean, deviation, white[l]);  // vectorised
  }
}

/// New samples of one iteration.
void sample(Scratch& s, const PlanJob& job, uint32 key, int first, int count) {
  for (int block = 0; block * tile < count; ++block) {
    draw_block(s, key, first + block * tile);
    if (job.colouring != nullptr) colour_block(s, job);
    if (job.average && block == 0)
      for (int e = 0; e < s.elements; ++e) s.white[e * tile] = 0.0f;
    float* const to = s.actions + static_cast<long>(block) * s.elements * tile;
    job.truncated ? place<true>(s, to) : place<false>(s, to);
  }
}

/// Rolls candidates out, and judges them.
void look(Scratch& s, const PlanJob& job, Look system, const float* start, int count) {
  for (int block = 0; block * tile < count; ++block) {
    Ahead x;
    for (int l = 0; l < tile; ++l) x.wild[l] = 0.0f;
    for (int m = 0; m < job.futures; ++m) {
      for (int l = 0; l < tile; ++l) {
        x.total[l] = x.cost[l] = x.last[l] = 0.0f;
        x.alive[l] = 1.0f;
      }
      system(job, job.parameters + static_cast<long>(m) * job.sizes.parameters, start,
             s.actions + static_cast<long>(block) * s.elements * tile,
             job.noisy ? s.noise + static_cast<long>(m) * job.horizon * job.sizes.normals : nullptr, s.extra, x);
      for (int l = 0; l < tile; ++l) {
        x.wild[l] += abs(x.total[l]) < infinity() ? 0.0f : 1.0f;
        s.totals[m * tile + l] = x.total[l];
        s.costs[m * tile + l] = -x.cost[l];
      }
    }
    for (int l = 0; l < tile; ++l) {
      const float total = of_worst(s.totals + l, tile, job.futures, job.tail);
      const float cost = -of_worst(s.costs + l, tile, job.futures, job.tail);
      judge(job, total, cost, x.wild[l], s.spent[block * tile + l], s.value[block * tile + l]);
    }
  }
}

SF_INLINE bool better(const Scratch& s, int a, int b) {
  return surefoot::better(s.spent[a], s.value[a], s.spent[b], s.value[b]);
}

/// The best `wanted` of the candidates in `order`, the best first, of equal ones the first first; returns how many.
int choose(Scratch& s, int count, int wanted) {
  int chosen = 0;
  for (int n = 0; n < count; ++n) {
    if (chosen == wanted && !better(s, n, s.order[chosen - 1])) continue;
    int place = chosen < wanted ? chosen++ : chosen - 1;
    for (; place > 0 && better(s, n, s.order[place - 1]); --place) s.order[place] = s.order[place - 1];
    s.order[place] = n;
  }
  return chosen;
}

/// The weighted average of the feasible candidates, else of those that cost least, where one is a number.
void average(Scratch& s, const PlanJob& job, int count) {
  float least = infinity(), best = -infinity();
  for (int n = 0; n < count; ++n)
    if (s.spent[n] < least) least = s.spent[n];
  for (int n = 0; n < count; ++n)
    if (s.spent[n] == least && s.value[n] > best) best = s.value[n];
  if (!(best > -infinity())) return;
  const int blocks = (count + tile - 1) / tile;
  const float scale = 1.0f / job.temperature;
  float total = 0.0f;
  for (int n = 0; n < blocks * tile; ++n) {
    s.weight[n] = n < count && s.spent[n] == least ? exp((s.value[n] - best) * scale) : 0.0f;
    total += s.weight[n];
  }
  for (int k = 0; k < s.elements * tile; ++k) s.sums[k] = 0.0f;
  for (int block = 0; block < blocks; ++block) {
    const float* const weight = s.weight + block * tile;
    const float* const from = s.actions + static_cast<long>(block) * s.elements * tile;
    for (int e = 0; e < s.elements; ++e) {
      float* const sum = s.sums + e * tile;
      const float* const row = from + e * tile;
#pragma omp simd
      for (int l = 0; l < tile; ++l) sum[l] += weight[l] * row[l];  // vectorised
    }
  }
  for (int e = 0; e < s.elements; ++e) {
    float sum = 0.0f;
    for (int l = 0; l < tile; ++l) sum += s.sums[e * tile + l];
    s.mean[e] = sum / total;
  }
}

/// Mean and deviation of the elites, those in `order` that are numbers, less a share of the step there.
void fit(Scratch& s, const PlanJob& job, int chosen) {
  while (chosen > 0 && s.spent[s.order[chosen - 1]] == infinity()) --chosen;
  if (chosen == 0) return;
  for (int e = 0; e < s.elements; ++e) {
    float middle = 0.0f, square = 0.0f;
    for (int k = 0; k < chosen; ++k) middle += at(s, s.order[k], e);
    middle /= static_cast<float>(chosen);
    for (int k = 0; k < chosen; ++k) {
      const float away = at(s, s.order[k], e) - middle;
      square += away * away;
    }
    s.mean[e] = job.momentum * s.mean[e] + (1.0f - job.momentum) * middle;
    s.deviation[e] = job.momentum * s.deviation[e] + (1.0f - job.momentum) * sqrt(square / static_cast<float>(chosen));
  }
}

}  // namespace

long plan_bytes(const PlanJob& job) {
  Scratch s;
  return static_cast<long>(sizeof(float)) * lay_out(s, job, nullptr);
}

/// The plan of one row. `memory`: plan_bytes, aligned to 64.
void plan_row(int system, const PlanJob& job, int row, char* memory) {
  Scratch s;
  lay_out(s, job, reinterpret_cast<float*>(memory));
  const long size = s.elements;
  float *const mean = job.mean + row * size, *const best = job.best + row * size;
  float* const keep = job.kept > 0 ? job.keep + row * job.kept * size : nullptr;
  for (int e = 0; e < s.elements; ++e) {
    s.mean[e] = best[e] = mean[e];
    s.deviation[e] = job.sigma;
  }
  const uint32 key = plan_key(job, row, candidate_stream), futures = plan_key(job, row, future_stream);
  if (job.noisy)
    for (int m = 0; m < job.futures; ++m)
      for (int t = 0; t < job.horizon; ++t) draw_future(s.noise, job, futures, m, t);
  const float* const start = job.states + static_cast<long>(row) * job.sizes.states;
  float best_spent = infinity(), best_value = -infinity();
  int first = 0;
  for (int i = 0; i < job.iterations; ++i) {
    int count = job.populations[i];
    sample(s, job, key, first, count);
    first += count;
    for (int k = 0; k < job.kept; ++k, ++count)
      for (int e = 0; e < s.elements; ++e) at(s, count, e) = keep[k * size + e];
    if (job.kept > 0 && i + 1 == job.iterations) {
      for (int e = 0; e < s.elements; ++e) at(s, count, e) = s.mean[e];
      ++count;
    }
    look(s, job, looks[system][job.noisy ? 1 : 0], start, count);
    if (job.average) {
      average(s, job, count);
      continue;
    }
    const int chosen = choose(s, count, job.elites);
    const int top = s.order[0];
    if (surefoot::better(s.spent[top], s.value[top], best_spent, best_value)) {
      best_spent = s.spent[top];
      best_value = s.value[top];
      for (int e = 0; e < s.elements; ++e) best[e] = at(s, top, e);
    }
    for (int k = 0; k < job.kept; ++k)
      for (int e = 0; e < s.elements; ++e) keep[k * size + e] = at(s, s.order[k], e);
    fit(s, job, chosen);
  }
  for (int e = 0; e < s.elements; ++e) mean[e] = s.mean[e];
}

}  // namespace SUREFOOT_NAMESPACE
}  // namespace surefoot
