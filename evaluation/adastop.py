"""AdaStop with the boundaries of its public code, for two algorithms: for comparison, not for decisions.

Mathieu, Della Vecchia, Shilova, Centa de Medeiros, Kohler, Maillard and Preux, "AdaStop: adaptive statistical testing
for sound comparisons of deep RL agents" (2023). Boundaries are quantiles of *signed* sums while the statistic is the
absolute one, and from the second stage on only as many paths are followed as the first stage has labelings. With no
difference, five stages of five seeds and a level of .05 it says that there is one in .104 of the comparisons, and one
stage of five seeds in 24 of 252 (`benchmarks/deciding.py` measures both); `evaluation.deciding` keeps its level.
"""

from __future__ import annotations

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.deciding import LookPlan, all_labelings
from surefoot.evaluation.statistics import Array

MOST_SEEDS = 8
"""Of each algorithm in a stage: all labelings of a stage are listed."""


def adastop(first: Array, second: Array, plan: LookPlan) -> Array:
    """The stage, from 1 on, at which each of T comparisons is called different; 0 where none is.

    Args:
        first: (T, n K) scores, n K those of a whole plan.
        second: likewise.
        plan: of the comparison.

    Raises:
        ConfigError: more than 8 seeds a stage.
    """
    trials, n = len(first), plan.per_stage
    if n > MOST_SEEDS:
        raise ConfigError(f"per_stage is {n}; AdaStop as published is here for at most {MOST_SEEDS} seeds a stage")
    one = all_labelings(n)
    generator = np.random.default_rng(plan.seed)
    total = np.zeros((trials, len(one)))
    alive = np.ones((trials, len(one)), dtype=bool)
    spent = np.zeros(trials)
    stopped = np.zeros(trials, dtype=np.int64)
    for k in range(plan.stages):
        part = slice(k * n, (k + 1) * n)
        drawn = one if k == 0 else one[np.concatenate([[0], generator.integers(len(one), size=len(one) - 1)])]
        total += np.concatenate([first[:, part], second[:, part]], axis=1) @ drawn.T
        signed = np.sort(np.where(alive, total, -np.inf), axis=1)
        allowed = np.floor(len(one) * (plan.pair_level * (k + 1) / plan.stages - spent) + 1e-9).astype(np.int64)
        bound = np.take_along_axis(signed, (len(one) - 1 - allowed)[:, None], axis=1)[:, 0]
        over = alive & (np.abs(total) > bound[:, None])
        stopped = np.where((stopped == 0) & over[:, 0], k + 1, stopped)
        spent += (alive & (total > bound[:, None])).sum(axis=1) / len(one)  # what it books
        alive &= ~over  # what it removes
    return stopped
