"""A rope that is pulled to one of two ends: two objectives, each of which an action spoils for the other."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Tug(gymnasium.Env[Any, Any]):
    """An action a in [-1, 1] earns -(a - 1)^2 and -(a + 1)^2; episodes have `limit` steps."""

    def __init__(self, limit: int = 4) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.limit, self.steps = limit, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        a, self.steps = float(action[0]), self.steps + 1
        info = {"objectives/0": -((a - 1) ** 2), "objectives/1": -((a + 1) ** 2)}
        return np.full(1, self.steps, np.float32), 0.0, False, self.steps >= self.limit, info
