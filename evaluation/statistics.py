"""Scores with intervals: pure functions, each random one given its generator.

Definitions of the aggregates: Agarwal et al., "Deep reinforcement learning at the edge of the statistical
precipice", 2021 (rliable). `scores` is a matrix (runs, tasks): one row per independently trained seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError

Array = np.ndarray[Any, Any]
Statistic = Callable[[Array], float]
ENOUGH = 10
"""Runs below which a percentile bootstrap's intervals are noticeably too narrow."""
ROUNDING = 1e-14
"""Of equal numbers the mean may differ from them by this share of them."""
ANY = (-math.inf, math.inf)
"""Bounds of what is not known to have any."""
SLACK = 1e-4
"""What a sum of float32 rewards may be beyond a bound by, as a share of it, and the bound still be believed."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, in the units of the scores."""

    estimate: float
    low: float  # nan where the data can't give one (a single episode)
    high: float
    method: str  # how it was made, in words, for captions

    @property
    def half_width(self) -> float:
        """Half the interval's length."""
        return (self.high - self.low) / 2

    def to_json(self) -> dict[str, Any]:
        """Keys `mean`, `low`, `high` (None where there is no interval) and `method`."""
        low, high = (None if math.isnan(bound) else bound for bound in (self.low, self.high))
        return {"mean": self.estimate, "low": low, "high": high, "method": self.method}


def mean(scores: Array) -> float:
    """Mean over tasks of the mean over runs; `scores` (runs, tasks)."""
    return float(np.mean(_matrix(scores)))


def median(scores: Array) -> float:
    """Median over tasks of the mean over runs; `scores` (runs, tasks)."""
    return float(np.median(_matrix(scores).mean(axis=0)))


def interquartile_mean(scores: Array) -> float:
    """Mean of the middle half of all run-task scores: floor(N / 4) of N are dropped at each end."""
    flat = np.sort(_matrix(scores), axis=None)
    dropped = len(flat) // 4
    return float(flat[dropped : len(flat) - dropped].mean())


def optimality_gap(scores: Array, target: float = 1.0) -> float:
    """How far scores fall short of `target` on average, scores above it counting as `target`."""
    return target - float(np.minimum(_matrix(scores), target).mean())


def stratified_bootstrap_interval(
    scores: Array,
    statistic: Statistic,
    generator: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap of `statistic`, runs resampled independently within each task.

    Percentile intervals over a handful of runs are too narrow (3 normal runs of one task: 69 % and not 95 %,
    simulated): use them for aggregates over many run-task scores, and `hierarchical_interval` for a mean.

    Args:
        scores: (runs, tasks).
        statistic: (runs, tasks) -> number; one of the functions above.
        generator: the only source of randomness.
        repetitions: resamples; 50,000 for numbers in a paper.
        confidence: in (0, 1).

    Raises:
        ConfigError: scores empty, not finite, or a setting out of range; a single run, which says nothing of others.
    """
    matrix = _matrix(scores)
    _check(repetitions, confidence)
    _need_several(matrix)
    draws = np.array([statistic(_resample(matrix, generator)) for _ in range(repetitions)])
    low, high = _percentiles(draws, confidence)
    runs, tasks = matrix.shape
    method = f"stratified bootstrap, {repetitions} resamples of {runs} runs x {tasks} tasks"
    return Interval(statistic(matrix), float(low), float(high), method)


def probability_of_improvement(first: Array, second: Array) -> float:
    """P(a run of `first` beats a run of `second`), averaged over tasks; ties count one half.

    Per task the Mann-Whitney U of the two sets of runs over the number of pairs; (runs, tasks) each, the
    numbers of runs may differ. Raises ConfigError where the numbers of tasks differ.
    """
    x, y = _matrix(first), _matrix(second)
    if x.shape[1] != y.shape[1]:
        raise ConfigError(f"scores of {x.shape[1]} and {y.shape[1]} tasks: compare runs on the same tasks")
    above = x[:, None, :] > y[None, :, :]
    equal = x[:, None, :] == y[None, :, :]
    return float((above + 0.5 * equal).mean())


def probability_of_improvement_interval(
    first: Array,
    second: Array,
    generator: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """`probability_of_improvement` with a stratified percentile bootstrap that resamples both sides.

    Raises:
        ConfigError: as there; a side of a single run, which says nothing of others.
    """
    x, y = _matrix(first), _matrix(second)
    _check(repetitions, confidence)
    _need_several(x, y)
    draws = [probability_of_improvement(_resample(x, generator), _resample(y, generator)) for _ in range(repetitions)]
    low, high = _percentiles(np.array(draws), confidence)
    method = f"stratified bootstrap, {repetitions} resamples of {len(x)} and {len(y)} runs"
    return Interval(probability_of_improvement(x, y), float(low), float(high), method)


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """(T,) fraction of run-task scores strictly above each of the (T,) thresholds."""
    ordered = np.sort(_matrix(scores), axis=None)  # sorted once: hundreds of runs take no (scores, T) table
    return np.asarray(1 - np.searchsorted(ordered, np.asarray(thresholds), side="right") / len(ordered))


def performance_profile_interval(
    scores: Array,
    thresholds: Array,
    generator: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> tuple[Array, Array, Array]:
    """(profile, low, high), (T,) each: `performance_profile` with pointwise stratified bootstrap bands.

    Bands are nan of one run, which says nothing of others.
    """
    matrix = _matrix(scores)
    _check(repetitions, confidence)
    if len(matrix) == 1:
        return performance_profile(matrix, thresholds), *np.full((2, len(thresholds)), math.nan)
    draws = [performance_profile(_resample(matrix, generator), thresholds) for _ in range(repetitions)]
    low, high = _percentiles(np.array(draws), confidence)
    return performance_profile(matrix, thresholds), low, high


def hierarchical_interval(
    returns: Sequence[Array],
    confidence: float = 0.95,
    shared_episodes: bool = True,
    bounds: tuple[float, float] = ANY,
) -> Interval:
    """Interval of the mean return over new training seeds and new initial states: the one printed in tables.

    `evaluate` lets every policy meet the same initial states, so the seed means share the luck of those
    states, and a t interval over seed means alone leaves it out. The variance of the mean has two parts,

        Var = s^2(seed means) / S + max(s^2(episode means) / E - s^2(residual) / (S E), 0),

    between seeds and between initial states (two-way random effects, Searle, Casella and McCulloch, "Variance
    components", 1992, chapter 4); Student's t with Satterthwaite's degrees of freedom gives the interval. A
    bootstrap over few seeds is not used: it under-covers.

    Args:
        returns: S arrays of per-episode returns, one per training seed.
        confidence: in (0, 1).
        shared_episodes: episode e has the same initial state in every array, as `evaluate` makes it. If not,
            the second part is left out: independent episodes already vary the seed means.
        bounds: what the mean can't be below or above, such as (0, 1) of a share: the interval is cut off there,
            and covers no less often.

    Returns:
        The interval; over episodes alone for one seed, as `method` says; nan bounds for a single episode.

    Raises:
        ConfigError: nothing given, values not finite or out of `bounds`, or shared episodes of unequal number.
    """
    _check(1, confidence)
    groups = _groups(returns, shared_episodes)
    if any(group.min() < bounds[0] or group.max() > bounds[1] for group in groups):
        raise ConfigError(f"values are out of their bounds, {bounds[0]:g} to {bounds[1]:g}")
    found = _t_interval([(1.0, groups)], confidence, shared_episodes)
    if math.isnan(found.low):
        return found
    return dataclasses.replace(found, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))


def bounded_interval(
    values: Sequence[Array], bounds: tuple[float, float], confidence: float = 0.95, shared_episodes: bool = True
) -> Interval:
    """`hierarchical_interval` of values that are reported to lie within `bounds`, such as those of an episode's return.

    A bound that some value is beyond, by more than rounding, is wrong, and is not used.

    Args:
        values: as there.
        bounds: lowest and highest value, infinite where there is none.
        confidence: as there.
        shared_episodes: as there.

    Raises:
        ConfigError: as there, but for the bounds.
    """
    seen = [float(one) for group in values if np.size(group) for one in (np.min(group), np.max(group))]
    if not seen:
        return hierarchical_interval(values, confidence, shared_episodes)
    low, high = bounds
    least = min(low, min(seen)) if min(seen) >= low - SLACK * max(1.0, abs(low)) else -math.inf
    most = max(high, max(seen)) if max(seen) <= high + SLACK * max(1.0, abs(high)) else math.inf
    return hierarchical_interval(values, confidence, shared_episodes, (least, most))


def cost_interval(costs: Sequence[Array], shared_episodes: bool = True) -> Interval:
    """`hierarchical_interval` of what episodes cost: not below 0, as costs are, unless some of these are."""
    return bounded_interval(costs, (0.0, math.inf), shared_episodes=shared_episodes)


def difference_interval(
    first: Sequence[Array],
    second: Sequence[Array],
    confidence: float = 0.95,
    shared_episodes: bool = True,
) -> Interval:
    """Interval of mean return of `first` minus that of `second`: Welch's t over seed means, unpaired.

    With shared episodes (both evaluated with the same evaluation seed) the variance between initial states
    is that of the difference, as in `hierarchical_interval`. Where one side has several seeds and the other a single
    one, whose spread between seeds no one knows, there are no bounds. Arguments and errors as there.
    """
    _check(1, confidence)
    sides = [(1.0, _groups(first, shared_episodes)), (-1.0, _groups(second, shared_episodes))]
    if shared_episodes and len(sides[0][1][0]) != len(sides[1][1][0]):
        raise ConfigError("the two sides have different numbers of episodes; pass shared_episodes=False")
    return _t_interval(sides, confidence, shared_episodes)


def _t_interval(sides: list[tuple[float, list[Array]]], confidence: float, shared: bool) -> Interval:
    """t interval of the signed sum of the sides' means; each side is (sign, one array per seed)."""
    estimate = math.fsum(sign * float(np.mean([group.mean() for group in groups])) for sign, groups in sides)
    method, seeds = _method(sides, shared), [len(groups) for _, groups in sides]
    if min(seeds) == 1 < max(seeds):
        return Interval(estimate, math.nan, math.nan, f"{method}; one side has one seed, so there is no interval")
    parts: list[tuple[float, float]] = []  # (variance, degrees of freedom) of independent components
    residual = 0.0
    for _, groups in sides:
        if len(groups) > 1:
            means = np.array([group.mean() for group in groups])
            parts.append((float(means.var(ddof=1)) / len(means), len(means) - 1.0))
            residual += _residual_variance(groups) if shared else 0.0
        elif not shared and len(groups[0]) > 1:
            parts.append((float(groups[0].var(ddof=1)) / len(groups[0]), len(groups[0]) - 1.0))
    episodes = len(sides[0][1][0])
    if shared and episodes > 1:
        profile = sum(sign * np.mean(groups, axis=0) for sign, groups in sides)
        between = float(np.var(profile, ddof=1)) / episodes
        parts.append((max(between - residual, 0.0), episodes - 1.0))
    if not parts:
        return Interval(estimate, math.nan, math.nan, method)
    variance = math.fsum(part for part, _ in parts)
    if math.sqrt(variance) <= ROUNDING * max(float(np.abs(group).max()) for _, groups in sides for group in groups):
        alone = max(seeds) < 2  # equal episodes of one seed say nothing of others
        return Interval(estimate, *((math.nan, math.nan) if alone else (estimate, estimate)), method)
    from scipy.special import stdtrit  # slow to import, which training workers spare; scipy.stats thrice as slow

    degrees = variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)
    half = float(stdtrit(degrees, 0.5 + confidence / 2)) * math.sqrt(variance)
    return Interval(estimate, estimate - half, estimate + half, method)


def _residual_variance(groups: list[Array]) -> float:
    """s^2(residual) / (S E) of the two-way layout (seeds, episodes) without repetition; 0 where E is 1."""
    table = np.stack(groups)
    seeds, episodes = table.shape
    if episodes == 1:
        return 0.0
    residual = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    return float((residual**2).sum()) / ((seeds - 1) * (episodes - 1)) / (seeds * episodes)


def _method(sides: list[tuple[float, list[Array]]], shared: bool) -> str:
    counts = " and ".join(str(len(groups)) for _, groups in sides)
    episodes = sum(len(group) for _, groups in sides for group in groups)
    if all(len(groups) == 1 for _, groups in sides):
        return f"Student t over {episodes} episodes; one seed, so nothing is known of other seeds"
    return f"Student t over {counts} seeds" + (" and their shared initial states" if shared else "")


def _groups(returns: Sequence[Array], shared: bool) -> list[Array]:
    groups = [np.asarray(group, dtype=np.float64).reshape(-1) for group in returns]
    if not groups or any(len(group) == 0 for group in groups):
        raise ConfigError("an interval needs at least one seed, and at least one episode of each")
    for seed, group in enumerate(groups):
        odd = np.flatnonzero(~np.isfinite(group))
        if len(odd):
            raise ConfigError(f"returns[{seed}][{odd[0]}] is {group[odd[0]]}: an interval needs finite numbers")
    if shared and len({len(group) for group in groups}) > 1:
        raise ConfigError("seeds have different numbers of episodes; pass shared_episodes=False")
    return groups


def _resample(matrix: Array, generator: np.random.Generator) -> Array:
    """Runs drawn with replacement, independently in each task (column)."""
    runs, tasks = matrix.shape
    return np.asarray(matrix[generator.integers(runs, size=(runs, tasks)), np.arange(tasks)])


def _need_several(*sides: Array) -> None:
    """Refuse single runs: resampling one gives itself each time, an interval without width that means nothing."""
    if min(map(len, sides)) < 2:
        of = "a side of one run" if len(sides) > 1 else "one run"
        raise ConfigError(
            f"{of} gives no interval over runs, whatever the number of tasks: train further seeds, give the estimate "
            "alone, or use hierarchical_interval, whose interval of one seed is over its episodes"
        )


def _percentiles(draws: Array, confidence: float) -> tuple[Array, Array]:
    low, high = np.quantile(draws, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
    return low, high


def _matrix(scores: Array) -> Array:
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ConfigError(f"scores must be a (runs, tasks) matrix that is not empty; they have shape {matrix.shape}")
    odd = np.argwhere(~np.isfinite(matrix))
    if len(odd):
        run, task = odd[0]
        raise ConfigError(
            f"scores[{run}, {task}] is {matrix[run, task]}: leave run {run} out, or give its finite score"
        )
    return matrix


def _check(repetitions: int, confidence: float) -> None:
    if repetitions < 1 or not 0 < confidence < 1:
        raise ConfigError(f"repetitions is {repetitions}, at least 1; confidence {confidence}, in (0, 1)")
