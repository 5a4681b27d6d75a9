"""Episodes until an answer is known: evaluation that may stop when its interval is narrow enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.anytime import mean_sequence
from surefoot.evaluation.rollout import Episodes, PolicyLike, evaluate
from surefoot.evaluation.statistics import Array, Interval

FIRST_BATCH = 50
"""Episodes of each policy before the first look; every further batch is a quarter of what there is."""


def evaluate_until(
    policies: Sequence[PolicyLike],
    env_id: str,
    half_width: float,
    most: int,
    seed: int = 0,
    score_range: tuple[float, float] | None = None,
    level: float = 0.05,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[int, Array], None] | None = None,
) -> tuple[list[Episodes], Interval]:
    """Evaluate until the mean score of these policies is known to `half_width`, or `most` episodes each are over.

    An episode's score is the average over the policies, which share its initial state, of success (0 or 1), or of the
    return cut to `score_range`. The interval is a confidence sequence (`mean_sequence`): it holds although one stops
    when one likes it. It is of these policies, and says nothing of other training seeds.

    Args:
        policies: as in `evaluate`, which runs them.
        env_id: likewise.
        half_width: in units of the score.
        most: episodes of each policy.
        seed: of the environments.
        score_range: (low, high) that returns are cut to; None: success is the score.
        level: 1 minus the confidence.
        progress: called with (finished, most) episodes of all policies.
        watch: as in `evaluate`.

    Returns:
        The episodes of each policy and the interval.

    Raises:
        ConfigError: a number out of range, or an environment that says nothing of success while no range is given.
    """
    if not 0 < half_width < float("inf") or most < 1:
        raise ConfigError(f"half width {half_width} and at most {most} episodes: both must be above 0")
    found: list[Episodes] = []
    while True:
        done = len(found[0].returns) if found else 0
        count = min(max(FIRST_BATCH, done // 4), most - done)
        batch = evaluate(policies, env_id, count, seed, watch=watch, first=done)
        found = [joined(a, b) for a, b in zip(found, batch, strict=True)] if found else batch
        done += count
        if progress is not None:
            progress(done * len(policies), most * len(policies))
        interval = mean_sequence(_scores(found, score_range, env_id), *(score_range or (0.0, 1.0)), level)
        if done >= most or is_known(interval, half_width):
            return found, interval


def is_known(interval: Interval, half_width: float) -> bool:
    """Whether neither end of an interval is further than `half_width` from its estimate."""
    return max(interval.high - interval.estimate, interval.estimate - interval.low) <= half_width


def without_interval(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """A mean of episodes that ended by looking at them, as `Interval.to_json` of one without bounds.

    Its interval would be one for a number of episodes that was fixed beforehand.
    """
    why = "none: the number of episodes was not fixed beforehand"
    return {"mean": bounds["mean"], "low": None, "high": None, "method": why}


def joined(first: Episodes, second: Episodes) -> Episodes:
    """Episodes of one policy one after the other; a column that either lacks is left out."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(Episodes):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name not in ("loop", "reward_terms"):
            columns[field.name] = None if a is None or b is None else np.concatenate([a, b])
    terms = {name: np.concatenate([a, b]) for name, a in first.reward_terms.items()
             if (b := second.reward_terms.get(name)) is not None}  # fmt: skip
    return Episodes(**columns, loop=first.loop, reward_terms=terms)


def _scores(found: Sequence[Episodes], score_range: tuple[float, float] | None, env_id: str) -> Array:
    if score_range is not None:
        mean = np.mean([np.clip(episodes.returns, *score_range) for episodes in found], axis=0)
        return np.asarray(np.clip(mean, *score_range))  # that of three equal numbers may be another
    solved = [episodes.successes for episodes in found if episodes.successes is not None]
    if len(solved) < len(found):
        raise ConfigError(
            f"{env_id} says nothing of success, and returns have no known bounds: give the range that they are cut to, "
            "as in --range -1000,0"
        )
    return np.asarray(np.mean(solved, axis=0))
