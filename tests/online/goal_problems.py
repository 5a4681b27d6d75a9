"""Goal environments in plain numpy: bits to flip, and a point to move."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.envs.vector import _ready

Array = np.ndarray[Any, Any]


class GoalEnv(gymnasium.Env[Any, Any]):
    """Reward -1 until the goal is achieved, then 0, which ends the episode."""

    near = 0.0

    def __init__(self, width: int, low: float, steps: int) -> None:
        box = gymnasium.spaces.Box(low, 1, (width,), np.float32)
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(keys, box))
        self.width, self.steps = width, steps

    def compute_reward(self, achieved: Array, desired: Array, info: Any) -> Array:
        return -(np.abs(achieved - desired).max(-1) > self.near).astype(np.float32)

    def compute_terminated(self, achieved: Array, desired: Array, info: Any) -> Array:
        return self.compute_reward(achieved, desired, info) == 0

    def drawn(self) -> Array:
        raise NotImplementedError

    def moved(self, action: Any) -> Array:
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal, self.taken = self.drawn(), self.drawn(), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.taken = self.moved(action), self.taken + 1
        reward = float(self.compute_reward(self.at, self.goal, {}))
        return self._seen(), reward, reward == 0, self.taken >= self.steps, {"success": reward == 0}

    def _seen(self) -> dict[str, Array]:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


class Bits(GoalEnv):
    """An action flips one of n bits (Andrychowicz et al., 2017, section 3)."""

    def __init__(self, width: int = 10) -> None:
        super().__init__(width, 0, width)
        self.action_space = gymnasium.spaces.Discrete(width)

    def drawn(self) -> Array:
        return self.np_random.integers(0, 2, self.width).astype(np.float32)

    def moved(self, action: Any) -> Array:
        flipped = self.at.copy()
        flipped[int(action)] = 1 - flipped[int(action)]
        return flipped


class Point(GoalEnv):
    """An action moves a point of a square; a goal counts within .1."""

    near = 0.1

    def __init__(self, width: int = 2) -> None:
        super().__init__(width, -1, 20)
        self.action_space = gymnasium.spaces.Box(-1, 1, (width,), np.float32)

    def drawn(self) -> Array:
        return self.np_random.uniform(-1, 1, self.width).astype(np.float32)

    def moved(self, action: Any) -> Array:
        return np.clip(self.at + 0.15 * np.asarray(action, np.float32), -1, 1).astype(np.float32)


def beside(kind: type[GoalEnv], count: int = 1, **options: Any) -> PausingVectorEnv:
    def made() -> Any:
        inner = kind(**options)
        return _ready(gymnasium.wrappers.TimeLimit(inner, inner.steps))

    return PausingVectorEnv([made] * count)
