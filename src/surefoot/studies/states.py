"""What initial states, which all runs are judged on alike, do to the difference of two algorithms.

Tests on the scores of seeds say whether two algorithms differ on the states that they met. Whether they differ on
others too is stated by an interval over seeds and states (`evaluation.difference_interval`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import SurefootError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Number, Plain, Record
from surefoot.evaluation.results import last_evaluation
from surefoot.evaluation.rollout import Episodes, evaluate
from surefoot.evaluation.statistics import Array, Interval, difference_interval
from surefoot.runs.run import Run

FRESH_SEED = 3
"""Of initial states that no run's own evaluations met, nor those of `surefoot evaluate`."""
FRESH = "fresh.json"
FRESH_RECORD = Record(
    {"format": Number(1, 1, whole=True), "seed": Number(0, whole=True), "episodes": Plain(finite=True)}
)
"""What fresh.json holds in a run's folder: the episodes of its seeds from these states."""
COLUMNS = {"return": "returns", "success": "successes", "cost": "costs"}
"""Word of the command line -> attribute of `Episodes`."""


def episode_scores(runs: Sequence[Run], metric: str) -> dict[int, Array] | None:
    """Seed -> (E,) scores of its last policy's episodes; None where a seed has none, or another number than the others.

    A seed that several runs have counts once, as in the first of them.
    """
    found: dict[int, Array] = {}
    for run in runs:
        for seed in run.plan.seeds:
            if seed in found:
                continue
            try:
                given = last_evaluation(run.folder, seed)
                scores = None if given is None else getattr(Episodes.from_json(given), COLUMNS[metric])
            except SurefootError:  # damaged: the summary's scores are what there is
                return None
            if scores is None:
                return None
            found[seed] = scores
    return found if len({len(scores) for scores in found.values()}) == 1 else None


def over_states(
    first: Mapping[int, Array] | None, second: Mapping[int, Array] | None, confidence: float = 0.95
) -> Interval | None:
    """Interval of first minus second over seeds and initial states; None where they are not known episode by episode.

    Args:
        first, second: seed -> (E,) scores from the same initial states.
        confidence: of the interval.
    """
    if first is None or second is None or len({len(scores) for scores in (*first.values(), *second.values())}) != 1:
        return None
    return difference_interval(list(first.values()), list(second.values()), confidence)


def holds_zero(interval: Interval | None) -> bool:
    """Whether there is an interval, and it does not say which of two is the larger."""
    return interval is not None and interval.low <= 0 <= interval.high


def fresh_episodes(run: Run) -> dict[int, Episodes]:
    """Seed -> episodes of its policy from fresh states, run now or as they were kept in the run's folder.

    Raises:
        SurefootError: as `evaluate`, or a damaged file.
    """
    path = run.folder / FRESH
    if not path.is_file():
        policies = run.policies()
        made = evaluate(list(policies.values()), str(run.plan.environment), run.plan.episodes, seed=FRESH_SEED)
        kept: dict[str, Any] = {str(seed): one.to_json() for seed, one in zip(policies, made, strict=True)}
        write_json(path, {"format": 1, "seed": FRESH_SEED, "episodes": kept})
    value = read_json(path, FRESH_RECORD)
    return {int(seed): Episodes.from_json(one) for seed, one in value["episodes"].items()}


def fresh_scores(run: Run, metric: str) -> dict[int, Array]:
    """Seed -> (E,) scores of `fresh_episodes`."""
    return {seed: np.asarray(getattr(one, COLUMNS[metric])) for seed, one in fresh_episodes(run).items()}
