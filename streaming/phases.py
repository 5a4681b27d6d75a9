"""A step's random numbers, and its phases in plain torch, as the native kernel takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from surefoot.streaming import statistics
from surefoot.streaming.kernel import ACT, ACT_BEFORE, LEARN, OBSERVE, RESET, SHIFT

if TYPE_CHECKING:
    from surefoot.streaming.agent import StreamingAgent


def in_torch(agent: StreamingAgent, phases: int) -> None:
    """Take the phases, in their order, for the streams where `in_active` is 1."""
    active = agent.in_active.bool()
    if phases & OBSERVE:
        observe(agent, agent.in_observations, active)
    if phases & ACT_BEFORE:
        choose(agent, active)
    if phases & LEARN:
        rows = active & agent.ready
        if rows.any():
            agent.improve(rows)
    if phases & RESET:
        observe(agent, agent.in_first, active & agent.in_ended_with_first.bool())
    if phases & ACT:
        choose(agent, active)
    if phases & SHIFT:
        done = (agent.in_terminated | agent.in_truncated).bool()
        agent.put("states", agent.following, active)
        agent.put("chosen", agent.next_chosen, active)
        agent.put("explored", agent.next_explored, active)
        agent.put("ready", ~done | agent.in_ended_with_first.bool(), active)


def observe(agent: StreamingAgent, observations: Tensor, rows: Tensor) -> None:
    """`following` := the observation, normalised with statistics that know it already."""
    if agent.config.normalise_observations:
        count, mean, squares = statistics.welford(
            agent.observation_count, agent.observation_mean, agent.observation_squares, observations
        )
        agent.put("observation_count", count, rows)
        agent.put("observation_mean", mean, rows)
        agent.put("observation_squares", squares, rows)
        observations = (observations - mean) / statistics.deviation(count, squares)
    agent.put("following", observations, rows)


def choose(agent: StreamingAgent, rows: Tensor) -> None:
    """`next_chosen` := actions at `following`; agents that only predict choose none."""
    if agent.kind == "td":
        return
    chosen, explored = agent.choose()
    agent.put("next_chosen", chosen, rows)
    agent.put("next_explored", explored, rows)


def draw_noise(agent: StreamingAgent) -> None:
    """Fill `in_noise` for the next action, with the row that `acted` counts."""
    agent.noise_row[...] = agent.noise.at(int(agent.acted_count))
    agent.acted_count[...] += 1
    agent.behaviour.set_epsilon(agent)


def redraw_noise(agent: StreamingAgent) -> None:
    """Fill `in_noise` with second numbers for the same step: of agents that may act twice in one."""
    agent.noise_row[...] = agent.noise.at(int(agent.acted_count) - 1, 1)


def keep_noise(agent: StreamingAgent) -> None:
    """Fill `in_noise` with the first numbers for the same step again, after `redraw_noise`."""
    agent.noise_row[...] = agent.noise.at(int(agent.acted_count) - 1)


def draw_first_noise(agent: StreamingAgent, rows: np.ndarray) -> None:
    """Fill `in_noise` for first actions of the streams where (K,) `rows` is True; no step is counted by it."""
    for stream in np.flatnonzero(rows):
        agent.noise_row[stream] = agent.noise.at_beginning(int(agent.acted_count), int(stream))
    agent.behaviour.set_epsilon(agent)
