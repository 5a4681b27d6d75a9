"""The tasks by name, and the velocity limits of Safety-Gymnasium."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.envs.mujoco.arms import InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher
from surefoot.envs.mujoco.contact import Ant, Humanoid
from surefoot.envs.mujoco.locomotion import HalfCheetah, Hopper, Swimmer, Walker2d
from surefoot.envs.mujoco.task import Task

TASKS: dict[str, type[Task]] = {
    "HalfCheetah": HalfCheetah,
    "Hopper": Hopper,
    "Walker2d": Walker2d,
    "Swimmer": Swimmer,
    "Ant": Ant,
    "Humanoid": Humanoid,
    "Reacher": Reacher,
    "Pusher": Pusher,
    "InvertedPendulum": InvertedPendulum,
    "InvertedDoublePendulum": InvertedDoublePendulum,
}
"""Name (gymnasium's id without "-v5") -> task."""

VELOCITY_LIMITS = {
    "HalfCheetah": 3.2096,
    "Hopper": 0.7402,
    "Walker2d": 2.3415,
    "Swimmer": 0.2282,
    "Ant": 2.6222,
    "Humanoid": 1.4149,
}
"""Task -> m/s; PKU-Alignment/safety-gymnasium, `safety_gymnasium/tasks/safe_velocity/safety_*_velocity_v1.py`.

Along x, but of the speed in the plane for Ant and Humanoid. Its tasks are gymnasium's v4, ours v5: observations
and rewards of Ant, Humanoid and Walker2d differ from theirs, limits and costs do not.
"""


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """The task of that name, configured by gymnasium's own keywords (and `velocity_limit`).

    Raises:
        ConfigError: unknown name or keyword; the message names the nearest.
    """
    if name not in TASKS:
        raise ConfigError(f"no MuJoCo task is called {name!r}; {nearest(name, list(TASKS))}")
    known = option_names(name)
    for key in options or {}:
        if key not in known:
            raise ConfigError(f"{name} has no argument {key!r}; {nearest(key, sorted(known))}")
    return TASKS[name](**dict(options or {}))


def option_names(name: str) -> set[str]:
    """The keywords that the task of that name takes."""
    return {field.name for field in dataclasses.fields(TASKS[name])}
