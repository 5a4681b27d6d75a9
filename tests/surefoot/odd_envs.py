"""Environments that count their steps, fail, or observe whole numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np


class Counting(gymnasium.Env[Any, Any]):
    """One observation, one action; `steps` counts those of all instances, and the step number `fails_at` fails."""

    observation_space: Any = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    steps: ClassVar[int] = 0
    fails_at: ClassVar[int | None] = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Counting.steps += 1
        if Counting.steps == self.fails_at:
            raise ConnectionError("the arm does not answer")
        return self.observation(), -float(np.abs(action).sum()), False, False, {}

    def observation(self) -> Any:
        return self.observation_space.sample()


class Whole(Counting):
    """Observes int32."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.int32)


class Huge(Counting):
    """Rewards beyond any measurement, from the step number `after` of an instance on."""

    def __init__(self, after: int = 0) -> None:
        self.after, self.taken = after, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return self.observation(), 1e300 if self.taken > self.after else -1.0, False, False, {}


class Lost(Counting):
    """The reward of an instance's step number 70 is `reward`, and each other's is -1."""

    reward: ClassVar[float] = -1.0

    def __init__(self) -> None:
        self.taken = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return self.observation(), self.reward if self.taken == 70 else -1.0, False, False, {}


class HugeTwice(Counting):
    """Rewards beyond any measurement in the first 30 steps of an instance, and from step 91 to 120."""

    def __init__(self) -> None:
        self.taken = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return self.observation(), 1e300 if self.taken <= 30 or 90 < self.taken <= 120 else -1.0, False, False, {}


gymnasium.register("HugeTwice-v0", HugeTwice, max_episode_steps=20)
gymnasium.register("Huge-v0", Huge, max_episode_steps=20)
gymnasium.register("HugeOnce-v0", Huge, max_episode_steps=20, kwargs={"after": 119})
gymnasium.register("Lost-v0", Lost, max_episode_steps=20)
gymnasium.register("Counting-v0", Counting, max_episode_steps=20)
gymnasium.register("Whole-v0", Whole, max_episode_steps=20)
