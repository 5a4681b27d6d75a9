"""Simulators behind one vector interface, and datasets recorded in them by scripted behaviours."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from surefoot.envs.mujoco import MujocoVectorEnv as MujocoVectorEnv
    from surefoot.envs.native import NativeVectorEnv as NativeVectorEnv
    from surefoot.envs.native_rollout import native_policy as native_policy
    from surefoot.envs.native_rollout import rollout as rollout

_HOMES = {
    "MujocoVectorEnv": "mujoco",
    "NativeVectorEnv": "native",
    "native_policy": "native_rollout",
    "rollout": "native_rollout",
}
"""Names that need torch or mujoco -> the module that has them, imported at first use."""

__all__ = [
    "EnvironmentDescription",
    "MujocoVectorEnv",
    "NativeVectorEnv",
    "PausableVectorEnv",
    "PausingVectorEnv",
    "action_bounds",
    "check_spaces",
    "describe",
    "make_vec",
    "native_policy",
    "register",
    "rollout",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch or mujoco at first use: gymnasium's users pay only for what they make."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


register()
