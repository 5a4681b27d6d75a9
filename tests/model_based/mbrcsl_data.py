"""What tests of mbrcsl share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset

SMALL: dict[str, Any] = {
    "model_members": 2, "model_elites": 1, "model_hidden": (8,), "model_decays": (), "model_rows": 8, "model_epoch": 3,
    "model_updates": 4, "behavior_updates": 4, "rollout_batches": 3, "rollouts": 5, "horizon": 3, "kept": 7,
    "behavior_widths": (8,), "diffusion_steps": 2, "hidden": (8,), "behavior_warm_up": 2,
}  # fmt: skip


def dataset_of(observations: Any, actions: Any, rewards: Any, next_observations: Any, length: int) -> Dataset:
    rows = len(rewards)
    return Dataset(
        observations=np.asarray(observations, np.float32),
        actions=np.asarray(actions, np.float32),
        rewards=np.asarray(rewards, np.float32),
        next_observations=np.asarray(next_observations, np.float32),
        terminations=np.zeros(rows, bool),
        truncations=np.arange(rows) % length == length - 1,
        episode_ids=np.arange(rows) // length,
        valid=np.ones(rows, bool),
        env_id=None,
        name="made up",
    )


def random_data(rewards: float | None = None) -> Dataset:
    numbers = np.random.default_rng(0)
    earned = numbers.normal(size=60) if rewards is None else np.full(60, rewards)
    return dataset_of(numbers.normal(size=(60, 3)), numbers.uniform(-0.9, 0.9, (60, 2)), earned,
                      numbers.normal(size=(60, 3)), 3)  # fmt: skip


def learner_of(agents: list[Agent], dataset: Dataset, seeds: list[int], steps: int, **options: Any) -> Learner:
    dtype = options.get("dtype", torch.float32)
    ready = [agent.prepare(dataset) for agent in agents][-1]
    store = store_from_dataset(ready, agents[0].required_columns, "cpu", dtype=dtype)
    settings = {"batch_size": 8, "planned_steps": steps, **options}
    return Learner(agents, seeds, agents[0].sources(Stores(ready, store)), **settings)
