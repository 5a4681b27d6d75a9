"""`SeedLog`: what the log of another library says of one training seed."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError

Array = np.ndarray[Any, Any]
EVALUATION, TRAINING = "evaluation", "training"
SCORES = (EVALUATION, TRAINING)
"""What a seed is judged by: episodes that were run to judge it, or those that it learned from."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One line of a learning curve."""

    step: int
    mean: float  # return of an episode
    returns: tuple[float, ...] = ()  # of each episode, where they are known one by one
    lengths: tuple[float, ...] = ()
    successes: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class SeedLog:
    """A seed's learning curve, and what is known of who made it."""

    source: pathlib.Path
    score: str  # one of SCORES
    points: tuple[Point, ...]  # by their steps, at least one
    last: tuple[float, ...]  # returns of the episodes that the seed is judged by; one number where only a mean is known
    judged: str  # in words: which episodes these are
    algorithm: str | None = None
    environment: str | None = None
    seed: int | None = None

    @property
    def final(self) -> float:
        """The number that is compared: the mean of `last`."""
        return float(np.mean(self.last))

    @property
    def steps(self) -> int:
        """In the environment, as far as the log goes."""
        return self.points[-1].step


def judged_by_the_last(source: pathlib.Path, points: Sequence[Point], last: int, about: Mapping[str, Any]) -> SeedLog:
    """A seed judged by its last training episodes, each of which is a point.

    Args:
        source: file or folder, for errors.
        points: an episode each, by their steps.
        last: how many episodes.
        about: algorithm, environment and seed, where they are known.
    """
    checked = check(source, points)
    tail = tuple(point.mean for point in checked[-last:])
    return SeedLog(source, TRAINING, checked, tail, f"mean of the last {len(tail)} training episodes", **about)


def check(source: pathlib.Path, points: Sequence[Point]) -> tuple[Point, ...]:
    """The points by their steps.

    Raises:
        DataError: there are none, a return is not finite or a step is negative.
    """
    if not points:
        raise DataError(f"{source}: holds no finished episode or evaluation")
    for point in points:
        if not math.isfinite(point.mean) or point.step < 0:
            raise DataError(
                f"{source}: has return {point.mean} at step {point.step}; both must be finite, steps from 0"
            )
    return tuple(sorted(points, key=lambda point: point.step))
