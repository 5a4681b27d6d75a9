"""Learning curves: evaluations of several seeds beside each other, over the same seeds at all of a curve's points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from surefoot.evaluation.statistics import ANY, bounded_interval

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve, averaged over seeds; nan bounds where one return is all there is."""

    step: int
    mean: float
    low: float
    high: float


def side_by_side(by_seed: Mapping[Any, Mapping[int, T]]) -> list[tuple[int, list[T]]]:
    """(step, what each seed had then), in the order of steps; what only some seeds have is left out.

    Seeds are evaluated at the same steps, but for those of agents that decide in chunks: episodes end within a chunk,
    so that each seed takes a number of steps of its own between two evaluations. Where fewer than half of the steps are
    shared, each evaluation of the seed that has fewest stands beside the nearest one of every other seed, at the mean
    of their steps, unless they are half as far apart as that seed's own evaluations.

    Args:
        by_seed: seed -> step -> what was measured.
    """
    if not by_seed:
        return []
    fewest = min((sorted(mine) for mine in by_seed.values()), key=len)
    shared = [step for step in fewest if all(step in mine for mine in by_seed.values())]
    if 2 * len(shared) >= len(fewest):
        return [(step, [mine[step] for mine in by_seed.values()]) for step in shared]
    apart = min(np.diff([0, *fewest] if fewest[0] > 0 else fewest), default=0)
    found = []
    for step in fewest:
        near = [min(mine, key=lambda other: abs(other - step)) for mine in by_seed.values()]
        if 2 * max(abs(other - step) for other in near) < apart:
            values = [mine[at] for mine, at in zip(by_seed.values(), near, strict=True)]
            found.append((round(sum(near) / len(near)), values))
    return found


def grouped(by_seed: Mapping[int, Mapping[int, T]]) -> list[tuple[int, list[T]]]:
    """(step, what the seeds that have something then had), in the order of steps; else as `side_by_side`.

    Where at least half of the steps of the seed that has fewest are shared, a seed that lacks a step is left out of it.

    Args:
        by_seed: seed -> step -> what was measured.
    """
    steps = [set(mine) for mine in by_seed.values()]
    if steps and 2 * len(set.intersection(*steps)) < min(map(len, steps)):
        return side_by_side(by_seed)
    return [
        (step, [mine[step] for mine in by_seed.values() if step in mine]) for step in sorted(set[int]().union(*steps))
    ]


class Logged(NamedTuple):
    """What lines of metrics.jsonl say of a metric."""

    mean: str
    """Key of an evaluation's mean."""
    episodes: str
    """Key of what each of its episodes gave."""
    bounds: tuple[float, float] = ANY
    """What it lies within wherever it is measured."""


LOGGED: Mapping[str, Logged] = {
    "return": Logged("return_mean", "returns"),
    "success": Logged("success_mean", "successes", (0.0, 1.0)),
    "cost": Logged("cost_mean", "costs", (0.0, math.inf)),
    "pass_k": Logged("pass_k_mean", "passes", (0.0, 1.0)),
}
"""Metric -> how it is logged."""


def curve_of(
    by_seed: Mapping[Any, Mapping[int, Mapping[str, Any]]], metric: str, returns: tuple[float, float] = ANY
) -> list[CurvePoint]:
    """Mean over seeds at each step that was evaluated, with its 95 % interval.

    Where every seed logged what each episode gave, the interval is `bounded_interval`'s; else Student's t over the
    means of seeds.

    Args:
        by_seed: seed -> step -> values of the evaluation.
        metric: of `LOGGED`.
        returns: what an episode's return lies within.
    """
    logged = LOGGED[metric]
    bounds = returns if metric == "return" else logged.bounds
    return [_point(step, rows, logged, bounds) for step, rows in side_by_side(by_seed)]


def _point(step: int, rows: Sequence[Mapping[str, Any]], logged: Logged, bounds: tuple[float, float]) -> CurvePoint:
    """The point of what each seed had at a step: its episodes, or where those are not alike its mean alone.

    It is nan, a gap in a picture, where an evaluation of some seed is not finite.
    """
    found = [np.asarray(row.get(logged.episodes) or (), dtype=np.float64) for row in rows]
    if not all(np.isfinite(values).all() and np.isfinite(row[logged.mean]) for values, row in zip(found, rows)):
        return CurvePoint(step, math.nan, math.nan, math.nan)
    if len({len(values) for values in found}) == 1 and len(found[0]) > 0:
        interval = bounded_interval(found, bounds)
    else:
        means = [np.array([row[logged.mean]], dtype=np.float64) for row in rows]
        interval = bounded_interval(means, bounds, shared_episodes=False)
    return CurvePoint(step, interval.estimate, interval.low, interval.high)
