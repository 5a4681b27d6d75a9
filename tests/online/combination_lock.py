"""The combination lock of Zhou et al. ("Offline Data Enhanced On-Policy Policy Gradient"), and data of it.

Two good states and a dead one; of ten actions one keeps a good state good (which of the two comes next is a coin's
throw), all others lead to the dead one for good. Only the last of H steps pays: 1 in a good state for its action,
otherwise 0.1 half of the time, a decoy. An action is a vector, and the choice is drawn from softmax(vector / 0.1).
Observations are a Hadamard rotation of one-hot state and time, with noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg
from online_problems import Scripted

from surefoot.data.dataset import Dataset

CHOICES, NOISE, TEMPERATURE = 10, 0.1, 0.1
DEAD = 2


class CombinationLock(Scripted):
    """Rows of locks of H steps; every lock has the same combination."""

    action_dim = CHOICES

    def __init__(self, num_envs: int = 1, horizon: int = 5) -> None:
        self.horizon = horizon
        self.limit = horizon + 1  # the last step is an end, not a limit
        self.observation_dim = 2 ** math.ceil(math.log2(horizon + 4))
        self.rotation = scipy.linalg.hadamard(self.observation_dim) / math.sqrt(self.observation_dim)
        self.combination = np.random.default_rng(7).integers(0, CHOICES, (horizon, 2))
        self.latent, self.time = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._beginning = 0
        super().__init__(num_envs)

    def seen(self, row: int, source: np.random.Generator) -> np.ndarray:
        """The observation of a row."""
        hot = np.zeros(self.observation_dim)
        hot[self.latent[row]] = hot[3 + self.time[row]] = 1
        return self.rotation @ hot + source.normal(0, NOISE, self.observation_dim)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        row = next(i for i, one in enumerate(self.sources) if one is source)
        self.latent[row], self.time[row] = source.integers(0, 2), 0
        return self.seen(row, source)

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count = len(states)
        following, rewards = np.zeros_like(states), np.zeros(count)
        last = self.time == self.horizon - 1
        for row, source in enumerate(self.sources):
            logits = np.asarray(actions[row], np.float64) / TEMPERATURE
            choice = int(np.argmax(logits + source.gumbel(size=CHOICES)))
            now = self.latent[row]
            right = now != DEAD and choice == self.combination[self.time[row], now]
            if last[row]:
                rewards[row] = 1.0 if right else 0.1 * (source.random() < 0.5)
            self.latent[row] = source.integers(0, 2) if right else DEAD
            self.time[row] += 1
            following[row] = self.seen(row, source)
        return following, rewards, last


def recorded(horizon: int, episodes: int, seed: int = 0) -> Dataset:
    """Episodes of the optimal policy, of which each action is a random one with probability 1 / H."""
    env, source = CombinationLock(episodes, horizon), np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "following", "ends")}
    observations = env.reset(seed=[seed + 1 + row for row in range(episodes)])[0]
    for time in range(horizon):
        choices = source.integers(0, CHOICES, episodes)
        keeps = (source.random(episodes) > 1 / horizon) & (env.latent != DEAD)
        choices = np.where(keeps, env.combination[time, np.minimum(env.latent, 1)], choices)
        actions = np.where(np.arange(CHOICES) == choices[:, None], 1.0, -1.0).astype(np.float32)
        after, rewards, ends, _, info = env.step(actions)
        following = info.get("final_obs", after)
        for name, value in zip(columns, (observations, actions, rewards, following, ends), strict=True):
            columns[name].append(value)
        observations = after
    rows = {name: np.ascontiguousarray(np.stack(value, 1).reshape(episodes * horizon, *value[0].shape[1:]))
            for name, value in columns.items()}  # fmt: skip
    return Dataset(
        observations=rows["observations"],
        actions=rows["actions"],
        rewards=rows["rewards"],
        next_observations=rows["following"],
        terminations=rows["ends"],
        truncations=np.zeros(episodes * horizon, bool),
        episode_ids=np.repeat(np.arange(episodes), horizon),
        valid=np.ones(episodes * horizon, bool),
        name="combination lock",
    )
