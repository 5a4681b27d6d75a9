"""Steps until a score is reached, where some runs never reached it: Kaplan and Meier's curve (1958).

A run that ended below the threshold is not left out and does not count as reached at its end: it is censored, known
only to take longer than it ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.statistics import Array


def steps_to(steps: Array, values: Array, threshold: float) -> tuple[float, bool]:
    """(steps, reached) of one curve: its first step at or above the threshold, else its last step and False.

    Args:
        steps: (T,) increasing.
        values: (T,) scores at them.
        threshold: of the score.
    """
    at, scores = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if at.shape != scores.shape or len(at) == 0:
        raise ConfigError(f"{at.size} steps and {scores.size} values: a curve has one value for each step")
    above = np.flatnonzero(scores >= threshold)
    return (float(at[above[0]]), True) if len(above) else (float(at[-1]), False)


def kaplan_meier(times: Sequence[float] | Array, reached: Sequence[bool] | Array) -> tuple[Array, Array]:
    """(distinct times at which some run reached the threshold, share of runs that need longer than each of them).

    Args:
        times: (N,) when each run reached it, or ended without.
        reached: (N,) which of the two; runs that end at a moment count as present at it.
    """
    t, done = np.asarray(times, dtype=np.float64), np.asarray(reached, dtype=bool)
    if t.shape != done.shape or t.ndim != 1 or len(t) == 0:
        raise ConfigError("times and whether they were reached must be two lists of equal length, and not empty")
    moments = np.unique(t[done])
    present = (t[None, :] >= moments[:, None]).sum(axis=1)
    ended = ((t[None, :] == moments[:, None]) & done[None, :]).sum(axis=1)
    return moments, np.cumprod(1 - ended / present)


def median_steps(times: Sequence[float] | Array, reached: Sequence[bool] | Array) -> float:
    """The least steps by which half of the runs have reached the threshold; nan where fewer ever did."""
    moments, longer = kaplan_meier(times, reached)
    below = np.flatnonzero(longer <= 0.5 + 1e-12)
    return float(moments[below[0]]) if len(below) else math.nan
