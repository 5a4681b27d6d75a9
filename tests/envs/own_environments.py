"""Environments that a user might bring: a class, functions, a vector environment, functions of MuJoCo's simulations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
ACTIONS = gymnasium.spaces.Box(-1, 1, (1,), np.float32)


class Own(gymnasium.Env[Any, Any]):
    """Truncates itself after `length` steps, each with the reward `gain`; observes the part that is over."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, gain: float = 1.0, length: int = 20) -> None:
        self.gain, self.length = gain, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(2, self.steps / self.length, np.float32), self.gain, False, self.steps >= self.length, {}


class OwnRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """The same, all rows at once, in gymnasium's default mode; takes one seed, as its base class says."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, length: int = 5, max_episode_steps: int | None = None) -> None:
        self.num_envs, self.length = num_envs, max_episode_steps or length
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = gymnasium.vector.utils.batch_space(OBSERVATIONS, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(ACTIONS, num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = np.arange(self.num_envs) % 2  # rows of two lengths
        self.ended = np.zeros(self.num_envs, np.bool_)
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards = np.where(self.ended, 0.0, 1.0)
        self.steps = np.where(self.ended, 0, self.steps + 1)
        self.ended = self.steps >= self.length
        return self._seen(), rewards, np.zeros(self.num_envs, np.bool_), self.ended.copy(), {}

    def _seen(self) -> Any:
        return np.repeat(self.steps[:, None] / self.length, 2, 1).astype(np.float32)


def make_one(gain: float = 1.0) -> Own:
    return Own(gain)


def make_rows(num_envs: int, length: int = 5) -> OwnRows:
    return OwnRows(num_envs, length)


def make_nothing() -> int:
    return 3


def reward(sim: Any, actions: Any) -> Any:
    return sim.qvel[:, 0] + 10.0


def fallen(sim: Any) -> Any:
    return sim.qpos[:, 0] > 0.5


def fast(sim: Any, actions: Any) -> Any:
    return (np.abs(sim.qvel[:, 0]) > 0.1).astype(np.float64)


gymnasium.register("OwnOne-v0", Own, max_episode_steps=7)
gymnasium.register("OwnRows-v0", vector_entry_point=OwnRows, max_episode_steps=6)
