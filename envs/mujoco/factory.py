"""Batched environments by the name of their task: what `gymnasium.make_vec` and `envs.vector.make_vec` call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefoot.envs.mujoco.tasks import make_task, option_names
from surefoot.envs.mujoco.vector_env import MujocoVectorEnv
from surefoot.envs.names import refuse_side_by_side

OWN = ("gap", "threads", "tensors")
"""Keywords of `MujocoVectorEnv`; all others are the task's."""


def make(
    num_envs: int = 1,
    *,
    task: str,
    max_episode_steps: int | str | None = "task",
    render_mode: str | None = None,
    **kwargs: Any,
) -> MujocoVectorEnv:
    """The environment of a task by name, with keywords of the task and of `MujocoVectorEnv`.

    Raises:
        ConfigError: unknown task or keyword, or a `render_mode`; and what `MujocoVectorEnv` raises.
    """
    refuse_side_by_side(render_mode)
    own = {key: kwargs.pop(key) for key in OWN if key in kwargs}
    return MujocoVectorEnv(make_task(task, kwargs), num_envs, max_episode_steps=max_episode_steps, **own)


def supports(arguments: Mapping[str, Any]) -> bool:
    """Whether `make` takes all these keywords: it doesn't render, and gymnasium's classes do."""
    if arguments.get("render_mode") is not None:
        return False
    return set(arguments) - {"render_mode"} <= option_names(arguments["task"]) | {"task", "max_episode_steps", *OWN}
