"""Margins of the velocity-limited tasks from what a dataset keeps of a step: its reward, action and end."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from surefoot.envs.mujoco.task import Array
from surefoot.envs.mujoco.tasks import TASKS, VELOCITY_LIMITS

ALONG_X = ("HalfCheetah", "Hopper", "Swimmer", "Walker2d")
"""Tasks whose limited speed is the one that they reward; Ant's and Humanoid's is that in the plane."""
_GYM_ID = re.compile(r"^(?:surefoot/)?([A-Za-z0-9]+?)(?:Velocity)?-v\d+$")


def velocity_task(env_id: str | None) -> str | None:
    """The task of `ALONG_X` that a gymnasium id names, with or without `Velocity`; None for any other id."""
    found = _GYM_ID.match(env_id or "")
    return found[1] if found is not None and found[1] in ALONG_X else None


def step_margins(task: str, rewards: Array, actions: Array, terminations: Array) -> Array:
    """(N,) float64 m/s: speed limit minus the speed of each step, safe if >= 0.

    The reward is speed + (healthy reward, unless the step ended the task) - control cost, so the speed can be had
    from it. The environment charges for actions as it is given them, in float32 and not clipped; the reward was rounded
    to float32, so a margin is true to about 2e-7 of the reward. In all ten v5 files of ../shared/data it has the sign
    of each stored cost (HalfCheetah, Hopper, Walker2d); of Swimmer there is no file to check with.

    Args:
        task: one of `ALONG_X`.
        rewards: (N,) as the environment gave them.
        actions: (N, A) as the environment was given them: what clips stands before it.
        terminations: (N,) bool: the step ended the task.
    """
    weights: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(TASKS[task])}
    control = weights["ctrl_cost_weight"] * np.square(np.asarray(actions, np.float32)).sum(axis=1)
    survival = weights.get("healthy_reward", 0.0) * ~np.asarray(terminations, np.bool_)
    speed = (np.asarray(rewards, np.float64) - survival + control) / weights["forward_reward_weight"]
    return np.asarray(VELOCITY_LIMITS[task] - speed, np.float64)
