"""Small models on data of a linear system, and their learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.model_based.dynamics import LearnedDynamics

SMALL: dict[str, Any] = {
    "model_members": 3,
    "model_elites": 2,
    "model_hidden": (12, 10),
    "model_decays": (1e-3, 2e-3, 3e-3),
    "model_rows": 16,
    "model_epoch": 10,
}


def linear(rows: int = 400, noise: float = 0.1, seed: int = 0, states: int = 2) -> Dataset:
    """Steps of a linear system with Gaussian noise on everything that is predicted, in episodes of ten."""
    source = np.random.default_rng(seed)
    first = np.random.default_rng(100)
    matrix, control = 0.3 * first.normal(size=(states, states)), first.normal(size=(states, 1))
    observations = source.normal(size=(rows, states))
    actions = source.uniform(-1, 1, (rows, 1))
    change = observations @ matrix.T + actions @ control.T + noise * source.normal(size=(rows, states))
    rewards = observations.sum(1) - actions[:, 0] + noise * source.normal(size=rows)
    last = np.arange(rows) % 10 == 9
    return Dataset(
        observations.astype(np.float32),
        actions.astype(np.float32),
        rewards.astype(np.float32),
        (observations + change).astype(np.float32),
        np.zeros(rows, np.bool_),
        last,
        np.arange(rows) // 10,
        np.ones(rows, np.bool_),
        costs=(observations[:, 0] > 0).astype(np.float32),
    )


def learner(
    seeds: tuple[int, ...] = (0,), data: Dataset | None = None, kind: type[Agent] = LearnedDynamics, **options: Any
) -> Learner:
    """A learner of small models on linear data."""
    engine = {name: options.pop(name) for name in ("dtype", "kernels", "planned_steps") if name in options}
    dtype = engine.get("dtype", torch.float32)
    data = linear() if data is None else data
    low, high = (-1.0,) * data.action_dim, (1.0,) * data.action_dim
    spec = Spec(data.observation_dim, data.action_dim, low, high)
    agents = [kind(spec, kind.configure(**{**SMALL, **options})).fresh(seed) for seed in seeds]
    ready = [agent.prepare(data) for agent in agents][-1]
    store = store_from_dataset(ready, agents[0].required_columns, dtype=dtype)
    return Learner(agents, list(seeds), agents[0].sources(Stores(ready, store)), **engine)
