"""The buffers of K streams: row k of each is of stream k, and together they are the whole state of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.random import generator
from surefoot.core.engine.agent import require
from surefoot.streaming import kernel

if TYPE_CHECKING:
    from surefoot.streaming.agent import StreamingAgent


def checked_seeds(name: str, seeds: Any) -> tuple[int, ...]:
    """The seeds of an algorithm's streams."""
    needed = "different whole numbers from 0, as in seeds=[0, 1, 2], one for each stream"
    given: list[Any] = list(seeds) if isinstance(seeds, Sequence | np.ndarray) and len(seeds) > 0 else [None]
    whole = all(isinstance(seed, int | np.integer) and 0 <= seed < 2**64 for seed in given)
    require(whole and len(set(given)) == len(given), name, "seeds", seeds, needed)
    return tuple(int(seed) for seed in given)


def add_buffers(agent: StreamingAgent) -> None:
    """Weights, statistics of observations, the transition that goes on, counters: all that is kept of each stream."""
    k, size = len(agent.seeds), agent.spec.observation_dim
    for name, network in agent.networks.items():
        first = [network.initial(generator(seed, f"{name}_weights")) for seed in agent.seeds]
        weights = kernel.parameter_rows(k, network.size, agent.dtype)
        agent.add_buffer(f"{name}_weights", weights.copy_(torch.from_numpy(np.stack(first))))
    agent.add_buffer("observation_count", torch.zeros(k, dtype=torch.float64))
    for name in ("observation_mean", "observation_squares"):
        agent.add_buffer(name, torch.zeros(k, size, dtype=torch.float64))
    for name in ("states", "following"):
        agent.add_buffer(name, torch.zeros(k, size, dtype=agent.dtype))
    for name in ("chosen", "next_chosen"):
        agent.add_buffer(name, no_actions(agent))
    for name in ("explored", "next_explored", "ready", "running"):
        agent.add_buffer(name, torch.zeros(k, dtype=torch.bool))
    for name in ("learned", "skipped", "missed"):
        agent.add_buffer(name, torch.zeros(k, dtype=torch.int64))
    agent.add_buffer("acted", torch.zeros((), dtype=torch.int64))  # the one that all streams share


def no_actions(agent: StreamingAgent) -> Tensor:
    """(K,) choices or (K, A) actions, all 0."""
    k = len(agent.seeds)
    if agent.spec.discrete:
        return torch.zeros(k, dtype=torch.int64)
    return torch.zeros(k, agent.spec.action_dim, dtype=agent.dtype)


def add_inputs(agent: StreamingAgent) -> None:
    """Plain tensors that a call reads and answers by; nothing of them need be kept."""
    k, size = len(agent.seeds), agent.spec.observation_dim
    agent.in_samples = torch.zeros(k * size + k, dtype=torch.float64)  # together, for a check of all at once
    agent.in_observations, agent.in_rewards = agent.in_samples[: k * size].view(k, size), agent.in_samples[k * size :]
    agent.in_first = torch.zeros(k, size, dtype=torch.float64)
    agent.in_flags = torch.zeros(4, k, dtype=torch.uint8)
    agent.in_terminated, agent.in_truncated, agent.in_ended_with_first, agent.in_active = agent.in_flags
    agent.in_active.fill_(1)
    agent.in_noise = torch.zeros(k, agent.noise_width(), dtype=agent.dtype)
    agent.in_epsilon = torch.zeros((), dtype=torch.float64)
    agent.out_actions = no_actions(agent)
    agent.out_td = torch.zeros(k, dtype=torch.float64)
