"""How often a task is solved: the share of episodes at whose last step the environment says so, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.envs.acting import Stepping, make_vec
from surefoot.envs.acting.episodes import SUCCESS, UNLIMITED_EPISODE_STEPS
from surefoot.evaluation.certificates import certificate
from surefoot.evaluation.rollout import Episodes
from surefoot.evaluation.statistics import Interval, hierarchical_interval


def success_rate(found: Sequence[Episodes]) -> Interval | None:
    """Share of successful episodes of some seeds, between 0 and 1, with its 95 % interval.

    The interval is that of `hierarchical_interval`, which knows that seeds differ and share their initial states, cut
    to [0, 1] and widened to hold the exact binomial one (Clopper-Pearson) of all episodes together: where every episode
    ends alike, the first has no width, and 50 of 50 solved episodes do not prove that a task is always solved.

    Args:
        found: the episodes of each seed.

    Returns:
        None where any of them says nothing of success.
    """
    given = [episodes.successes for episodes in found if episodes.successes is not None]
    if not given or len(given) < len(found):
        return None
    between = hierarchical_interval(given, shared_episodes=len({len(solved) for solved in given}) == 1)
    solved = np.concatenate(given)
    exact = certificate(int(solved.sum()), len(solved))
    low, high = np.fmin(between.low, exact.low), np.fmax(between.high, exact.high)
    method = f"{between.method}, at least as wide as the exact binomial interval of {len(solved)} episodes"
    return Interval(between.estimate, float(max(low, 0.0)), float(min(high, 1.0)), method)


def says_success(env_id: str) -> bool:
    """Whether an environment tells of success, as found out by one episode of random actions from the seed 0.

    Raises:
        ConfigError, EnvironmentMismatchError: what `make_vec` and `Stepping` raise.
    """
    vector = make_vec(env_id, 1)
    try:
        stepping = Stepping(vector)
        stepping.reset([0])
        space: Any = vector.single_action_space
        space.seed(0)
        for _ in range(UNLIMITED_EPISODE_STEPS):
            done = stepping.step(np.asarray(space.sample(), space.dtype)[None])
            if any(name in done.info for name in SUCCESS):
                return True
            if bool(done.terminations[0]) or bool(done.truncations[0]):
                break
        return False
    finally:
        vector.close()
