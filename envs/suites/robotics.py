"""gymnasium-robotics beside today's mujoco: Kitchen, Fetch and the Shadow hand run, and Kitchen says when it is done.

gymnasium-robotics 1.4.2 asks whether a joint's type, a numpy number, is in a tuple of mujoco's enumeration. mujoco from
3.16 on answers no to `enumeration == number`, which is what `in` asks, so hinges and slides fail an assertion.
"""

from __future__ import annotations

import types
from typing import Any

import gymnasium
import numpy as np

JOINTS = ("mjJNT_FREE", "mjJNT_BALL", "mjJNT_SLIDE", "mjJNT_HINGE")


class _Mujoco:
    """mujoco with the four joint types as plain numbers; everything else is forwarded."""

    def __init__(self, mujoco: Any) -> None:
        self._mujoco = mujoco
        self.mjtJoint = types.SimpleNamespace(**{name: int(getattr(mujoco.mjtJoint, name)) for name in JOINTS})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mujoco, name)


def prepare(robotics: Any, env_id: str) -> None:
    """Let the package's helpers compare joint types; nothing is done where they can already.

    Args:
        robotics: the imported package, which has registered its ids.
        env_id: one of them.
    """
    if env_id.startswith(("PointMaze", "AntMaze", "AdroitHand")):
        return  # they don't use the helpers
    from gymnasium_robotics.utils import mujoco_utils

    known = mujoco_utils.mujoco
    if np.int32(int(known.mjtJoint.mjJNT_HINGE)) not in (known.mjtJoint.mjJNT_HINGE,):
        mujoco_utils.mujoco = _Mujoco(known)


def finished(env: gymnasium.Env[Any, Any], env_id: str) -> gymnasium.Env[Any, Any]:
    """An environment of gymnasium-robotics that says in each step's info whether its task is solved."""
    return KitchenSuccess(env) if env_id.startswith("FrankaKitchen") else env


class KitchenSuccess(gymnasium.Wrapper[Any, Any, Any, Any]):
    """FrankaKitchen with `success`, all sub-tasks done, and `completions`, how many are, in each step's info.

    D4RL's score is completions / 4 with four sub-tasks in `tasks_to_complete`.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's, with the two numbers."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        done = len(info["episode_task_completions"])
        info = {**info, "completions": float(done), "success": done == len(self._tasks())}
        return observation, reward, terminated, truncated, info

    def _tasks(self) -> Any:
        inner: Any = self.env.unwrapped
        return inner.goal
