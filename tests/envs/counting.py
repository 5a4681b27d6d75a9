"""An environment whose every number says where it comes from, for tests of adapters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env[Any, Any]):
    """Observes (steps since reset, number of the episode, row); reward is 10 steps + row.

    Episodes of even number terminate after `length` steps, others are truncated there. The margin is 1.5 - steps.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, row: int = 0, length: int = 3) -> None:
        self.row, self.length, self.episode, self.count = row, length, -1, 0
        self.observation_space = spaces.Box(0.0, 1000.0, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _observe(self) -> Any:
        return np.array([self.count, self.episode, self.row], np.float32)

    def _info(self) -> dict[str, Any]:
        margin = 1.5 - self.count
        return {"margin": margin, "cost": float(margin < 0), "count": self.count}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.episode = -1
        self.count = 0
        self.episode += 1
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        ended, even = self.count >= self.length + self.row, self.episode % 2 == 0
        return self._observe(), 10.0 * self.count + self.row, ended and even, ended and not even, self._info()


def transitions(env: Any, steps: int) -> list[list[tuple[float, ...]]]:
    """Per row: (count, next count, episode, reward, terminated, truncated, cost, margin) of its valid steps."""
    import torch

    from surefoot.envs.interface import as_numpy, final_observations, valid_rows

    actions: Any = np.zeros(env.action_space.shape, np.float32)
    if env.tensors == "torch":
        actions = torch.as_tensor(actions)
    observations, _ = env.reset(seed=0)
    rows: list[list[tuple[float, ...]]] = [[] for _ in range(env.num_envs)]
    for _ in range(steps):
        after, rewards, terminations, truncations, info = env.step(actions)
        final, valid = as_numpy(final_observations(after, info)), as_numpy(valid_rows(info, env.num_envs))
        numbers = [as_numpy(x) for x in (rewards, terminations, truncations, info["cost"], info["margin"])]
        before = as_numpy(observations)
        for row in np.flatnonzero(valid):
            assert before[row, 1] == final[row, 1], "a transition leads from one episode into another"
            rows[row].append((before[row, 0], final[row, 0], before[row, 1], *(float(x[row]) for x in numbers)))
        observations = after
    return rows


def expected(row: int, steps: int, length: int = 3) -> list[tuple[float, ...]]:
    """What `transitions` gives for a row of `Counting`, worked out by hand."""
    out: list[tuple[float, ...]] = []
    episode = 0
    while len(out) < steps:
        for count in range(1, length + row + 1):
            ended = count == length + row
            flags = (float(ended and episode % 2 == 0), float(ended and episode % 2 == 1))
            cost = float(count >= 2)
            out.append((count - 1, count, episode, 10.0 * count + row, *flags, cost, 1.5 - count))
        episode += 1
    return out[:steps]
