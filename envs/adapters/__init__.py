"""Environments of other libraries behind the contract of `surefoot.envs.interface`, and ours behind theirs.

Nothing here is imported before it is asked for: no adapter makes its library a dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.envs.adapters.brax import from_brax
    from surefoot.envs.adapters.gym_in import adapt
    from surefoot.envs.adapters.gym_out import to_gymnasium, to_gymnasium_vector
    from surefoot.envs.adapters.isaac_gym import from_isaac_gym
    from surefoot.envs.adapters.isaac_lab import KeepFinalObservations, from_isaac_lab
    from surefoot.envs.adapters.jaxmarl import from_jaxmarl
    from surefoot.envs.adapters.mjx import from_mjx
    from surefoot.envs.adapters.mujoco_warp import from_mujoco_warp
    from surefoot.envs.adapters.pettingzoo import from_pettingzoo
    from surefoot.envs.adapters.physics import PhysicsTask
    from surefoot.envs.adapters.sb3 import from_sb3, to_sb3

_HOMES = {
    "KeepFinalObservations": "isaac_lab",
    "PhysicsTask": "physics",
    "adapt": "gym_in",
    "from_brax": "brax",
    "from_isaac_gym": "isaac_gym",
    "from_isaac_lab": "isaac_lab",
    "from_jaxmarl": "jaxmarl",
    "from_mjx": "mjx",
    "from_mujoco_warp": "mujoco_warp",
    "from_pettingzoo": "pettingzoo",
    "from_sb3": "sb3",
    "to_gymnasium": "gym_out",
    "to_gymnasium_vector": "gym_out",
    "to_sb3": "sb3",
}

__all__ = [
    "KeepFinalObservations",
    "PhysicsTask",
    "adapt",
    "from_brax",
    "from_isaac_gym",
    "from_isaac_lab",
    "from_jaxmarl",
    "from_mjx",
    "from_mujoco_warp",
    "from_pettingzoo",
    "from_sb3",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_sb3",
]


def __getattr__(name: str) -> Any:
    """The adapter `name`, from the one module that knows its library."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
