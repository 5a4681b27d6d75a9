"""A walk on a line whose every number can be worked out by hand, and its labels."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Walk(gymnasium.Env[Any, Any]):
    """Position 0 at first, an action in [-1, 1] is added; beyond 5 it terminates, after `limit` steps it is truncated.

    The reward is the position, and a step to a negative position costs 1.
    """

    def __init__(self, limit: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.limit, self.at, self.steps = limit, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = 0.0, 0
        return np.array([self.at], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.steps = self.at + float(action[0]), self.steps + 1
        info = {"cost": float(self.at < 0), "success": self.at > 4}
        return np.array([self.at], np.float32), self.at, self.at > 5, self.steps >= self.limit, info


def labels(observations: Any, actions: Any, following: Any) -> dict[str, Any]:
    """`far` at 2 and beyond, `home` where a step leads from above to 0 or below, `left` below -1."""
    here, there = observations[:, 0], following[:, 0]
    return {"far": there >= 2, "home": (here > 0) & (there <= 0), "left": there < -1, "unused": here > 0}


def broken(observations: Any, actions: Any, following: Any) -> dict[str, Any]:
    """Not a truth value for each row."""
    return {"far": following, "home": following[:, 0], "left": 1}


def raising(observations: Any, actions: Any, following: Any) -> dict[str, Any]:
    """As a user's function may."""
    raise KeyError("room")
