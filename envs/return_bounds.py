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
    elif (spec := gymnasium.registry.get(base.rpartition(":")[2])) is not None:
        rewards, limit = _of_spec(spec), spec.max_episode_steps
    else:
        kind = _imported(base)
        rewards, limit = _range(kind), getattr(kind, "max_episode_steps", None)
    limit = options.get(make.LIMIT, limit)
    return of_steps(rewards, limit if isinstance(limit, int) else None)


def of_steps(rewards: tuple[float, float], limit: int | None) -> tuple[float, float]:
    """Bounds of the sum of 1 to `limit` rewards (None: any number) within `rewards`.

    >>> of_steps((-1.0, 0.0), 500), of_steps((1.0, 1.0), 500), of_steps((-1.0, 2.0), None)
    ((-500.0, 0.0), (1.0, 500.0), (-inf, inf))
    """
    most = math.inf if limit is None else float(limit)
    low, high = rewards
    return (low * most if low < 0 else low), (high * most if high > 0 else high)


def _of_spec(spec: gymnasium.envs.registration.EnvSpec) -> tuple[float, float]:
    """`OF_GYMNASIUM`, or what the class declares."""
    if spec.id in OF_GYMNASIUM and str(spec.entry_point).startswith("gymnasium."):
        return OF_GYMNASIUM[spec.id]
    return _range(_imported(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point)


def _imported(name: str) -> Any:
    """What module:attribute names, where the module is imported already, as it is where a run was trained in it."""
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None) if attribute else None


def _range(kind: Any) -> tuple[float, float]:
    """The `reward_range` of a class, where it is two numbers in their order."""
    try:
        low, high = map(float, getattr(kind, "reward_range", ()))
    except (TypeError, ValueError):
        return UNKNOWN
    return (low, high) if low <= high else UNKNOWN
