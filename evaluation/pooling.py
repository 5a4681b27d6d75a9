"""Means with intervals over runs that differ in their seeds alone, as if one run had trained all of these seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import SurefootError
from surefoot.evaluation.results import Results, groups, last_evaluation
from surefoot.evaluation.rollout import Episodes
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.statistics import Interval, cost_interval, hierarchical_interval
from surefoot.evaluation.success import success_rate

OF_THE_RUN = {"per_seed_returns": "returns", "per_seed_costs": "cost", "per_seed_success": "success"}
"""Field of `RunData` with a number per seed -> the one with their mean and its interval."""


@dataclasses.dataclass(frozen=True)
class Pooled:
    """A mean and its 95 % interval."""

    bounds: Mapping[str, Any] | None
    """As `Interval.to_json`; None where no seed has the number."""
    seeds_alone: bool = False
    """Whether the interval says nothing of new initial states: the episodes are not there."""


def pooled(runs: Sequence[RunData], field: str) -> dict[int, float]:
    """Seed -> score over runs of one setting; a seed that several have counts once, as the first of them has it."""
    found: dict[int, float] = {}
    for run in runs:
        for seed, score in zip(run.seeds, getattr(run, field), strict=False):
            found.setdefault(seed, float(score))
    return found


def repeated(runs: Sequence[RunData]) -> list[str]:
    """Of runs of one setting, a sentence for each set of folders that hold the same seeds: whose scores count."""
    holders: dict[int, list[str]] = {}
    for run in runs:
        for seed in run.seeds:
            holders.setdefault(seed, []).append(str(run.folder or run.name))
    shared: dict[tuple[str, ...], list[str]] = {}
    for seed, folders in sorted(holders.items()):
        if len(folders) > 1:
            shared.setdefault(tuple(folders), []).append(str(seed))
    return [
        f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)} occur{'' if len(seeds) > 1 else 's'} in "
        f"{', '.join(folders)}: counted once, as in {folders[0]}"
        for folders, seeds in shared.items()
    ]


def repeated_seeds(results: Results) -> list[str]:
    """A sentence for each setting's seeds that several folders hold, with its task."""
    return [
        f"{task}, {label}: {said}"
        for task, settings in groups(results).items()
        for label, runs in settings.items()
        for said in repeated(runs)
    ]


def pooled_interval(runs: Sequence[RunData], field: str) -> Pooled:
    """The mean of a field over runs of one setting, for new seeds and new initial states where that can be known.

    Args:
        runs: that differ in nothing but their seeds.
        field: of `RunData`, with a number per seed.
    """
    if field in OF_THE_RUN:
        if len(runs) == 1 and (said := getattr(runs[0], OF_THE_RUN[field])) is not None:
            return Pooled(said)
        if len(runs) > 1 and (found := _of_episodes(runs, field)) is not None:
            return Pooled(found.to_json())
    scores = np.array(list(pooled(runs, field).values()))
    if len(scores) == 0:
        return Pooled(None)
    share = field in ("per_seed_success", "per_seed_pass_k")
    least = 0.0 if share or (field == "per_seed_costs" and np.all(scores >= 0)) else -math.inf
    bounds = (least, 1.0 if share else math.inf)
    interval = hierarchical_interval([np.array([one]) for one in scores], shared_episodes=False, bounds=bounds)
    return Pooled(interval.to_json(), seeds_alone=True)


def _of_episodes(runs: Sequence[RunData], field: str) -> Interval | None:
    """The interval over all episodes; None where a seed has none, or another number than the others."""
    episodes: dict[int, Episodes] = {}
    try:
        for run in runs:
            if run.folder is None or run.environment is None:
                continue
            for seed in run.seeds:
                said = None if seed in episodes else last_evaluation(run.folder, seed)
                if said is not None:
                    episodes[seed] = Episodes.from_json(said)
    except SurefootError:  # damaged; the page is of what the summaries say
        return None
    found = list(episodes.values())
    if not found or episodes.keys() != pooled(runs, field).keys() or len({len(one.returns) for one in found}) > 1:
        return None
    if field == "per_seed_success":
        return success_rate(found)
    if field == "per_seed_returns":
        return hierarchical_interval([one.returns for one in found])
    costs = [one.costs for one in found if one.costs is not None]
    return cost_interval(costs) if len(costs) == len(found) else None
