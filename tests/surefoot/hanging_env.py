"""An environment whose steps come back, until the file named by HANGS exists."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

import gymnasium
import numpy as np


class Hanging(gymnasium.Env[Any, Any]):
    """One observation, one action."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while pathlib.Path(os.environ["HANGS"]).exists():
            time.sleep(0.01)
        return self.np_random.normal(size=1).astype(np.float32), 0.0, False, False, {}


gymnasium.register("Hanging-v0", Hanging, max_episode_steps=20)
