"""What an episode's return lies within, as environments declare it: intervals of a mean return end there."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium

from surefoot.envs import make
from surefoot.envs.names import beneath, is_native
from surefoot.envs.systems import system

UNKNOWN = (-math.inf, math.inf)
OF_GYMNASIUM: Mapping[str, tuple[float, float]] = {
    "Acrobot-v1": (-1.0, 0.0),
    "CartPole-v0": (1.0, 1.0),
    "CartPole-v1": (1.0, 1.0),
    "MountainCar-v0": (-1.0, -1.0),
    "Pendulum-v1": (-math.inf, 0.0),
}
"""Gymnasium's id -> what the reward of a step lies within, by its page on classic control."""


def return_bounds(env_id: str) -> tuple[float, float]:
    """Lowest and highest possible return of an episode, infinite where the environment does not declare it.

    A native system declares its `reward_bounds`, a class of gymnasium's its `reward_range`; both are of a step, and the
    time limit makes bounds of the return of them. Nothing is created or run.

    Args:
        env_id: of an environment that exists, as in `make_vec`.
    """
    base, options = make.split_options(env_id)
    limit: int | None
    if is_native(beneath(base)):
        known = system(beneath(base))
        rewards, limit = known.reward_bounds, known.max_steps
    else:
        spec = None if make.scheme_of(base) is not None else gymnasium.registry.get(base.rpartition(":")[2])
        if spec is None:
            return UNKNOWN
        rewards, limit = _declared(spec), spec.max_episode_steps
    return of_steps(rewards, options.get(make.LIMIT, limit))


def of_steps(rewards: tuple[float, float], limit: int | None) -> tuple[float, float]:
    """Bounds of the sum of 1 to `limit` rewards (None: any number) within `rewards`.

    >>> of_steps((-1.0, 0.0), 500), of_steps((1.0, 1.0), 500), of_steps((-1.0, 2.0), None)
    ((-500.0, 0.0), (1.0, 500.0), (-inf, inf))
    """
    most = math.inf if limit is None else float(limit)
    low, high = rewards
    return (low * most if low < 0 else low), (high * most if high > 0 else high)


def _declared(spec: gymnasium.envs.registration.EnvSpec) -> tuple[float, float]:
    """`OF_GYMNASIUM`, or the `reward_range` of the class; of other packages' names the class is not imported for it."""
    if spec.id in OF_GYMNASIUM and str(spec.entry_point).startswith("gymnasium."):
        return OF_GYMNASIUM[spec.id]
    found: Any = getattr(spec.entry_point, "reward_range", None)
    if found is None and isinstance(spec.entry_point, str):
        module, _, name = spec.entry_point.partition(":")
        found = getattr(getattr(sys.modules.get(module), name, None), "reward_range", None)
    try:
        low, high = map(float, found)
    except (TypeError, ValueError):
        return UNKNOWN
    return (low, high) if low <= high else UNKNOWN
