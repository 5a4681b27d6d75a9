"""Agents, stores and Learners of the offline safe algorithms on made-up transitions, small enough for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.safe import ALGORITHMS

CRITICS: dict[str, Any] = {"hidden": (8, 6), "vae_hidden": (7, 5), "sampled_actions": 3, "cost_limit": 4.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc_safe": ("bc_safe", {"hidden": (8, 6), "mode": "all"}),
    "bcq_lag": ("bcq_lag", CRITICS),
    "bcq_lag-bold": ("bcq_lag", {**CRITICS, "careful_costs": False, "normalization": "none"}),
    "bear_lag": ("bear_lag", CRITICS),
    "cpq": ("cpq", CRITICS),
    "cpq-slip": ("cpq", {**CRITICS, "penalty_gradient": False}),
    "coptidice": ("coptidice", {"hidden": (8, 6), "cost_limit": 4.0}),
    "coptidice-plain": ("coptidice", {"hidden": (8, 6), "cost_limit": 4.0, "radius": 0.0}),
    "cdt": ("cdt", {"width": 8, "heads": 2, "layers": 2, "context": 4, "cost_limit": 40.0}),
}
"""Every offline safe algorithm of these rooms, and variants whose losses differ."""


def spec(observations: int = 3, actions: int = 2) -> Spec:
    return Spec(observations, actions, (-1.0,) * actions, (1.0,) * actions)


def random_dataset(episodes: int = 12, steps: int = 20, seed: int = 0) -> Dataset:
    """Normal observations, uniform actions, a third of the steps with a cost; every other episode terminates."""
    source, rows = np.random.default_rng(seed), episodes * steps
    ids = np.repeat(np.arange(episodes), steps)
    last = np.append(np.diff(ids) != 0, True)
    terminations = last & (ids % 2 == 0)
    return Dataset(
        observations=source.normal(size=(rows, 3)).astype(np.float32),
        actions=source.uniform(-1, 1, (rows, 2)).astype(np.float32),
        rewards=source.normal(size=rows).astype(np.float32),
        next_observations=source.normal(size=(rows, 3)).astype(np.float32),
        terminations=terminations,
        truncations=last & ~terminations,
        episode_ids=ids,
        valid=np.ones(rows, bool),
        costs=(source.random(rows) < 1 / 3).astype(np.float32),
        name="made up",
    )


def agents(variant: str, seeds: Sequence[int], **options: Any) -> list[Agent]:
    """Agents of a variant, each with the weights that its seed gives."""
    name, own = VARIANTS[variant]
    kind = ALGORITHMS[name]
    return [kind(spec(), kind.configure(**{**own, **options})).fresh(seed) for seed in seeds]


def learner(
    made: Sequence[Agent],
    seeds: Sequence[int],
    dataset: Dataset | None = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Learner:
    dataset = random_dataset() if dataset is None else dataset
    ready = [agent.prepare(dataset) for agent in made][-1]
    store = store_from_dataset(ready, made[0].required_columns, dtype=dtype)
    sources = made[0].sources(Stores(ready, store))
    settings = {"batch_size": 16, "planned_steps": 200, "dtype": dtype, **options}
    return Learner(made, seeds, sources, **settings)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    size = float(expected.double().norm())
    return float((found.double() - expected.double()).norm()) / max(size, 1e-30)
