"""Means with intervals over runs that differ in their seeds alone, as if one run had trained all of these seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import SurefootError
from surefoot.evaluation.curves import CurvePoint, curve_of
from surefoot.evaluation.names import setting_key
from surefoot.evaluation.results import Results, groups, last_evaluation
from surefoot.evaluation.rollout import Episodes
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.statistics import (
    ANY,
    Interval,
    Statistic,
    bounded_interval,
    cost_interval,
    stratified_bootstrap_interval,
)
from surefoot.evaluation.success import success_rate

OF_THE_RUN = {"per_seed_returns": "returns", "per_seed_costs": "cost", "per_seed_success": "success"}
"""Field of `RunData` with a number per seed -> the one with their mean and its interval."""
EPISODES, STATES, SEEDS, TASKS = "episodes of one seed", "seeds and initial states", "seeds alone", "seeds and tasks"
"""What an interval is over."""
Unit = tuple[str, int]
"""A policy that was trained: what its setting is, and its seed."""


@dataclasses.dataclass(frozen=True)
class Pooled:
    """A mean and its 95 % interval."""

    bounds: Mapping[str, Any] | None
    """As `Interval.to_json`; None where no seed has the number."""
    seeds_alone: bool = False
    """Whether the interval says nothing of new initial states: the episodes are not there."""
    over: str | None = dataclasses.field(default=None, compare=False)
    """What the interval is over; None where there is none."""


def units(runs: Sequence[RunData]) -> dict[Unit, RunData]:
    """What runs of one task have trained -> the first of them that holds it: what several hold counts once."""
    found: dict[Unit, RunData] = {}
    for run in runs:
        key = setting_key(run)
        for seed in run.seeds:
            found.setdefault((key, seed), run)
    return found


def pooled(runs: Sequence[RunData], field: str) -> dict[Unit, float]:
    """Scores of what runs of one task have trained; a seed that several have counts once, as the first has it."""
    found: dict[Unit, float] = {}
    for run in runs:
        key = setting_key(run)
        for seed, score in zip(run.seeds, getattr(run, field), strict=False):
            found.setdefault((key, seed), float(score))
    return found


def pooled_curve(runs: Sequence[RunData], metric: str) -> list[CurvePoint]:
    """The curve of evaluations while runs of one task trained, as if one run had all of their seeds.

    Args:
        runs: at least one; a seed that several hold counts once, as in the first of them.
        metric: of `evaluation.curves.LOGGED`.
    """
    found: dict[Unit, Mapping[int, Mapping[str, Any]]] = {}
    for run in runs:
        key = setting_key(run)
        for seed, points in run.logged(metric).items():
            found.setdefault((key, seed), points)
    return curve_of(found, metric, runs[0].bounds)


def repeated(runs: Sequence[RunData]) -> list[str]:
    """Of runs of one task, a sentence for each set of folders that hold the same seeds: whose scores count."""
    holders: dict[Unit, list[str]] = {}
    for run in runs:
        key = setting_key(run)
        for seed in run.seeds:
            holders.setdefault((key, seed), []).append(str(run.folder or run.name))
    shared: dict[tuple[str, ...], list[int]] = {}
    for (_, seed), folders in holders.items():
        if len(folders) > 1:
            shared.setdefault(tuple(folders), []).append(seed)
    return [
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, sorted(seeds)))} "
        f"occur{'' if len(seeds) > 1 else 's'} in {', '.join(folders)}: counted once, as in {folders[0]}"
        for folders, seeds in sorted(shared.items(), key=lambda item: min(item[1]))
    ]


def repeated_seeds(results: Results) -> list[str]:
    """A sentence for each setting's seeds that several folders hold, with its task."""
    return [
        f"{task}, {label}: {given}"
        for task, settings in groups(results).items()
        for label, runs in settings.items()
        for given in repeated(runs)
    ]


def pooled_interval(runs: Sequence[RunData], field: str) -> Pooled:
    """The mean of a field over runs of one task, for new seeds and new initial states where that can be known.

    Args:
        runs: that differ in nothing but their seeds, or whose settings are to be one.
        field: of `RunData`, with a number per seed.
    """
    holders = list({id(run): run for run in units(runs).values()}.values())
    scores = np.array(list(pooled(runs, field).values()))
    if field in OF_THE_RUN:
        if len(holders) == 1 and (given := getattr(holders[0], OF_THE_RUN[field])) is not None:
            within = holders[0].bounds if field == "per_seed_returns" else ANY
            return Pooled(_cut(given, within), over=_over(given, EPISODES if len(scores) == 1 else STATES))
        if len(holders) > 1 and (found := _of_episodes(runs, field)) is not None:
            return Pooled(found.to_json(), over=_over(found.to_json(), STATES))
    if len(scores) == 0:
        return Pooled(None)
    bounds = {
        "per_seed_returns": runs[0].bounds,
        "per_seed_success": (0.0, 1.0),
        "per_seed_pass_k": (0.0, 1.0),
        "per_seed_costs": (0.0, math.inf),
    }
    columns = [np.array([one]) for one in scores]
    interval = bounded_interval(columns, bounds.get(field, ANY), shared_episodes=False).to_json()
    return Pooled(interval, seeds_alone=True, over=_over(interval, SEEDS))


def over_tasks(
    tasks: Sequence[Sequence[float]], statistic: Statistic, generator: np.random.Generator, repetitions: int = 2000
) -> Pooled:
    """A statistic of scores on a common scale over several tasks, with a stratified bootstrap's interval.

    There is an interval where each task has the same number of seeds, and more than one; else the statistic alone, of
    the mean of each task.

    Args:
        tasks: for each task a score for each seed; at least one.
        statistic: of (runs, tasks) scores.
        generator: of the bootstrap.
        repetitions: of it.
    """
    counts = {len(scores) for scores in tasks}
    if len(counts) > 1 or counts == {1}:
        alone = statistic(np.array([[float(np.mean(scores)) for scores in tasks]]))
        return Pooled({"mean": alone, "low": None, "high": None})
    matrix = np.array(tasks, dtype=np.float64).T
    interval = stratified_bootstrap_interval(matrix, statistic, generator, repetitions).to_json()
    return Pooled(interval, over=_over(interval, TASKS))


def _over(bounds: Mapping[str, Any], what: str) -> str | None:
    return None if bounds.get("low") is None or bounds.get("high") is None else what


def _cut(bounds: Mapping[str, Any], within: tuple[float, float]) -> Mapping[str, Any]:
    """An interval that ends where its number can; as it is where the mean is beyond that."""
    low, high = bounds.get("low"), bounds.get("high")
    if low is None or high is None or not within[0] <= bounds["mean"] <= within[1]:
        return bounds
    return {**bounds, "low": max(low, within[0]), "high": min(high, within[1])}


def _of_episodes(runs: Sequence[RunData], field: str) -> Interval | None:
    """The interval over all episodes; None where a seed has none, or another number than the others."""
    episodes: dict[Unit, Episodes] = {}
    try:
        for unit, run in units(runs).items():
            if run.folder is None or run.environment is None:
                continue
            given = last_evaluation(run.folder, unit[1])
            if given is not None:
                episodes[unit] = Episodes.from_json(given)
    except SurefootError:  # damaged; the page is of what the summaries say
        return None
    found = list(episodes.values())
    if not found or episodes.keys() != pooled(runs, field).keys() or len({len(one.returns) for one in found}) > 1:
        return None
    if field == "per_seed_success":
        return success_rate(found)
    if field == "per_seed_returns":
        return bounded_interval([one.returns for one in found], runs[0].bounds)
    costs = [one.costs for one in found if one.costs is not None]
    return cost_interval(costs) if len(costs) == len(found) else None
