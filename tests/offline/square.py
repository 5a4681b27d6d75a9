"""A point in a square that random steps have explored: data without a task, and episodes of policies with one."""

from __future__ import annotations

import numpy as np
import torch

from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset

STEP = 0.2
CORNERS = ((1, 1), (-1, 1), (-1, -1), (1, -1))


def moved(places: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.clip(places + STEP * actions, -1, 1).astype(np.float32)


def near(places: np.ndarray, corner: tuple[int, int]) -> np.ndarray:
    return (np.abs(places - np.array(corner)).max(-1) < 0.4).astype(np.float32)


def walks(episodes: int = 200, length: int = 20, paid: tuple[int, int] = (1, 1)) -> Dataset:
    """Uniform steps from uniform places; the reward is 1 near one corner."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (episodes, length, 2)).astype(np.float32)
    seen = np.empty((episodes, length + 1, 2), np.float32)
    seen[:, 0] = rng.uniform(-1, 1, (episodes, 2))
    for t in range(length):
        seen[:, t + 1] = moved(seen[:, t], actions[:, t])
    count = episodes * length
    return Dataset(
        observations=seen[:, :-1].reshape(count, 2),
        actions=actions.reshape(count, 2),
        rewards=near(seen[:, 1:].reshape(count, 2), paid),
        next_observations=seen[:, 1:].reshape(count, 2),
        terminations=np.zeros(count, bool),
        truncations=np.arange(count) % length == length - 1,
        episode_ids=np.arange(count) // length,
        valid=np.ones(count, bool),
        env_id="square",
        name="square",
    )


def arrivals(policy: Policy, task: torch.Tensor | None, corner: tuple[int, int]) -> float:
    """Share of 49 starts from which the policy is near the corner after 25 steps."""
    axis = np.linspace(-0.9, 0.9, 7, dtype=np.float32)
    places = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    memory = policy.begin(len(places))
    if task is not None:
        memory["task"] = task.expand(len(places), -1)
    for _ in range(25):
        actions, memory = policy.act(torch.from_numpy(places), memory)
        places = moved(places, actions.numpy())
    return float(near(places, corner).mean())
