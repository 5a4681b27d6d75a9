"""Simulators behind one vector interface, and datasets recorded in them by scripted behaviours."""

from surefoot.envs.behaviours import TASKS, Task
from surefoot.envs.generate import generate
from surefoot.envs.mujoco import MujocoVectorEnv
from surefoot.envs.register import register
from surefoot.envs.vector import (
    EnvironmentDescription,
    PausableVectorEnv,
    PausingVectorEnv,
    action_bounds,
    check_spaces,
    describe,
    make_vec,
)

__all__ = [
    "TASKS",
    "EnvironmentDescription",
    "MujocoVectorEnv",
    "PausableVectorEnv",
    "PausingVectorEnv",
    "Task",
    "action_bounds",
    "check_spaces",
    "describe",
    "generate",
    "make_vec",
    "register",
]

register()
