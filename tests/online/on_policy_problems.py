"""Loops of on-policy agents on small problems, and environments with discrete actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from online_problems import Scripted

from surefoot.envs import make_vec
from surefoot.envs.interface import VectorEnvironment
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.loops.on_policy import OnPolicyLoop

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "hidden": (8, 6)}
QUICK: dict[str, dict[str, Any]] = {
    "ppo": {**SMALL, "epochs": 2, "minibatches": 4},
    "recurrent_ppo": {**SMALL, "epochs": 2, "minibatches": 2, "sequence": 8, "memory_width": 6},
    "a2c": SMALL,
    "reinforce": SMALL,
    "mdpo": {**SMALL, "epochs": 2, "minibatches": 2, "policy_steps": 2},
    "trpo": {**SMALL, "epochs": 2, "minibatches": 2},
}
"""Algorithm -> options under which a block takes milliseconds."""


class Bandit(Scripted):
    """One step, five arms; arm 3 pays 1 and the others 0."""

    arms, best = 5, 3

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_action_space = Discrete(self.arms)
        self.action_space = Box(0, self.arms - 1, (num_envs,), np.int64)

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return states, (actions == self.best).astype(float), np.ones(len(states), bool)


class Recall(Scripted):
    """A corridor that forks at its end: which way pays is shown at the entrance, and nowhere else (a T-maze).

    Observation: the cue, 1 or -1, at the first step and 0 after it; and 1 at the fork. There the choice that the cue
    names pays 1; whatever sees no more than the fork is right half of the time.
    """

    observation_dim, corridor = 2, 6

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_action_space = Discrete(2)
        self.action_space = Box(0, 1, (num_envs,), np.int64)
        self.cues = np.zeros(num_envs)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return np.array([source.choice([-1.0, 1.0]), 0.0])

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.cues = np.where(self.elapsed == 0, states[:, 0], self.cues)
        fork = states[:, 1] == 1
        following = np.stack([np.zeros(len(states)), self.elapsed + 1 == self.corridor], 1)
        return following, (fork & ((actions == 1) == (self.cues > 0))).astype(float), fork


def agents(algorithm: str, env: VectorEnvironment | Any, seeds: list[int], **options: Any) -> list[OnPolicyAgent]:
    """Agents of an algorithm for an environment, each with the weights that its seed gives."""
    kind: Any = ALGORITHMS[algorithm]
    config = kind.configure(**{**QUICK[algorithm], **options})
    return [kind(spec_of(env), config).fresh(seed) for seed in seeds]


def loop(
    algorithm: str, env: Any, seeds: tuple[int, ...] = (0,), planned: int = 4096, kernels: bool = True, **options: Any
) -> OnPolicyLoop:
    """A loop on an environment, or on an id of one."""
    own = {name: options.pop(name) for name in ("jacobian_penalty",) if name in options}
    if isinstance(env, str):
        count = {**QUICK[algorithm], **options}["num_envs"]
        env = make_vec(env, len(seeds) * count)
    made = agents(algorithm, env, list(seeds), **options)
    return OnPolicyLoop(made, list(seeds), env, planned_steps=planned, kernels=kernels and len(seeds) == 1, **own)
