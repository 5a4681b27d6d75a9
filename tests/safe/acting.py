"""Constrained agents on small problems: loops of milliseconds, a bandit with a known multiplier."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box

from surefoot.envs.interface import VectorEnvironment
from surefoot.online import spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.safe import ALGORITHMS

ON_POLICY = ("ppo_lag", "ppo_pid", "trpo_lag", "trpo_pid", "cpo", "focops", "cup")
SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "hidden": (8, 6), "epochs": 2, "minibatches": 2}
SMALL_OFF: dict[str, Any] = {"num_envs": 2, "hidden": (8, 6), "initial_steps": 16}


class Bandit(VectorEnvironment):
    """One step: reward a and cost a^2 for an action a in [-1, 1]. Best within a budget d: a = sqrt d, and the
    multiplier is 1 / (2 sqrt d)."""

    gives_costs = True

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.source = np.random.default_rng(seed)
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return self.source.uniform(-1, 1, (self.num_envs, 1)).astype(np.float32)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        reward = np.asarray(actions)[:, 0].astype(np.float32)
        ends, after = np.ones(self.num_envs, bool), self.seen()
        info: dict[str, Any] = {"final_obs": after.copy(), "_final_obs": ends}
        if self.gives_costs:
            info["cost"] = reward**2
        return after, reward, ends, ~ends, info


class Free(Bandit):
    """The bandit without costs."""

    gives_costs = False


class Walk(VectorEnvironment):
    """x' = x + 0.3 a on three numbers; reward -|x|^2, cost where x0 > 0, episodes of 5 steps, state saved exactly."""

    limit = 5

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (3,), np.float32))
        self.sources = [np.random.default_rng(0) for _ in range(num_envs)]
        self.states = np.zeros((num_envs, 3), np.float32)
        self.elapsed = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.sources = [np.random.default_rng(one) for one in seed]
        for row in range(self.num_envs):
            self.begin(row)
        return self.states.copy(), {}

    def begin(self, row: int) -> None:
        self.states[row], self.elapsed[row] = self.sources[row].normal(size=3), 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.states = self.states + np.float32(0.3) * np.clip(actions, -1, 1).astype(np.float32)
        self.elapsed += 1
        cost = (self.states[:, 0] > 0).astype(np.float32)
        ended, final = self.elapsed >= self.limit + np.arange(self.num_envs) % 2, self.states.copy()
        for row in np.flatnonzero(ended):
            self.begin(row)
        info = {"cost": cost, "final_obs": final, "_final_obs": ended}
        return self.states.copy(), -np.square(final).sum(1), np.zeros_like(ended), ended, info


def loop(algorithm: str, env: Any, seeds: tuple[int, ...] = (0,), planned: int = 4096, **options: Any) -> Any:
    """A loop of small networks; `kernels=False` for plain torch."""
    kind: Any = ALGORITHMS[algorithm]
    given = {"kernels": options.pop("kernels", len(seeds) == 1), "batch_size": options.pop("batch_size", 16)}
    given |= {"jacobian_penalty": options.pop("jacobian_penalty", 0.0)}
    dataset = options.pop("dataset", None)
    config = kind.configure(**{**(SMALL if algorithm in ON_POLICY else SMALL_OFF), **options})
    made = [kind(spec_of(env), config).fresh(seed) for seed in seeds]
    if dataset is not None:
        (dataset, *_) = [agent.prepare(dataset) for agent in made]
    return make_loop(made, list(seeds), env, planned_steps=planned, dataset=dataset, **given)
