"""Datasets of known dynamics for hybrid agents, and loops on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from online_problems import Regulator, parameters, spec

from surefoot.core.engine.agent import Agent
from surefoot.data.dataset import Dataset
from surefoot.online import ALGORITHMS
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.off_policy import OffPolicyLoop

__all__ = ["dataset", "hybrid_loop", "parameters", "regulated", "shifted"]


def dataset(observations: Any, actions: Any, following: Any, rewards: Any = None, name: str = "made") -> Dataset:
    """Transitions as episodes of one step."""
    count = len(observations)
    columns = (np.ascontiguousarray(np.asarray(c, np.float32)) for c in (observations, actions))
    rows, acted = columns
    return Dataset(
        observations=rows,
        actions=acted,
        rewards=np.zeros(count, np.float32) if rewards is None else np.asarray(rewards, np.float32),
        next_observations=np.ascontiguousarray(np.asarray(following, np.float32)),
        terminations=np.zeros(count, bool),
        truncations=np.ones(count, bool),
        episode_ids=np.arange(count),
        valid=np.ones(count, bool),
        name=name,
    )


def shifted(shift: float, count: int = 20_000, seed: int = 0) -> Dataset:
    """s' = s + a + N(shift, 0.5^2), with s standard normal and a uniform on [-1, 1]."""
    source = np.random.default_rng(seed)
    s, a = source.normal(size=(count, 1)), source.uniform(-1, 1, (count, 1))
    return dataset(s, a, s + a + shift + 0.5 * source.normal(size=(count, 1)))


def regulated(count: int = 300, seed: int = 0, drag: float = 0.9) -> Dataset:
    """Transitions of `Regulator` by uniform actions; another `drag` is another system."""
    source = np.random.default_rng(seed)
    x, a = source.uniform(-1, 1, (count, 1)), source.uniform(-1, 1, (count, 1))
    return dataset(x, a, drag * x + a + source.normal(0, 0.05, (count, 1)), -10 * (x**2 + 0.4 * a**2)[:, 0])


def hybrid_loop(
    algorithm: str, seeds: tuple[int, ...] = (0,), num_envs: int = 1, data: Dataset | None = None, **options: Any
) -> OffPolicyLoop:
    """A loop of small networks, on `Regulator` and its data unless `env` and `data` say otherwise."""
    own = {name: options.pop(name) for name in ("kernels", "batch_size") if name in options}
    env = options.pop("env", None) or Regulator(num_envs * len(seeds))
    small = {"hidden": (16, 16), "initial_steps": 20, "num_envs": num_envs}
    if algorithm != "moorl":
        small |= {"discriminator_hidden": (16,), "discriminator_rows": 8}
    agent: Agent = ALGORITHMS[algorithm](spec(env), **{**small, **options})
    agents = [agent.fresh(seed) for seed in seeds]
    prepared = [one.prepare(regulated() if data is None else data) for one in agents][-1]
    settings = {"planned_steps": 1000, "batch_size": 16, "dataset": prepared, **own}
    return make_loop(agents, seeds, env, **settings)  # type: ignore[return-value]
