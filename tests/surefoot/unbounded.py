"""An environment whose actions have no bounds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Unbounded(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, False, False, {}


gymnasium.register("Unbounded-v0", Unbounded, max_episode_steps=10)
