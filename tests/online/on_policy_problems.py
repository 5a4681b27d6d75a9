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
