"""An environment that says at each step whether its task is solved, and decides the last step by luck."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 5
DRAWN = 0.4


class Lucky(gymnasium.Env):
    """Five steps; solved at each but the last, and at the last with probability 0.4, drawn at reset."""

    def __init__(self, key: str = "success", as_number: bool = False) -> None:
        self.key, self.as_number = key, as_number
        self.observation_space, self.action_space = spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.luck = 0, bool(self.np_random.random() < DRAWN)
        return np.array([0, self.luck], np.float32), {self.key: True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        last = self.t == LENGTH
        solved = self.luck if last else True
        told = {self.key: float(solved) if self.as_number else np.bool_(solved)} if self.key else {}
        return np.array([self.t, self.luck], np.float32), float(last and self.luck), last, False, told


gymnasium.register("SurefootLucky-v0", entry_point=Lucky, max_episode_steps=LENGTH + 1)
