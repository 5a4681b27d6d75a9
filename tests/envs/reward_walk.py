"""An environment whose reward has two terms."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Walk(gymnasium.Env[Any, Any]):
    """Two terms, declared by name, in episodes of 5 steps; the second is given in every other step only."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {"reward_terms": {"near": 1e9}}  # of no step

    def step(self, action: Any) -> Any:
        self.time += 1
        near, bonus = -abs(float(action[0]) - 1), 0.5 * (self.time % 2)
        terms = {"near": near} | ({"bonus": bonus} if bonus else {})
        info = {"reward_terms": terms, "reward_weights": np.ones(3), "reward": near}
        return np.full(2, self.time, np.float32), near + bonus, False, self.time >= 5, info
