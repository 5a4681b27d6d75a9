"""Histories: policies and critics that read the last L observations, side by side, in place of the present one.

Histories of several arrays are gathered as they are drawn (`data.decision_source`): each observation is encoded by
itself, and before an episode's first step that one is repeated.

Of one vector losses are left as they are: the dataset that is trained on holds the windows as its observations, oldest
first, with zeros before an episode's first step (of normalised data, the mean); networks are built for vectors L times
as wide; and the policy that leaves remembers the window (`memory_actors.HistoryActor`).

Source of the setting: Hong, Dragan and Levine, "Offline RL with Observation Histories: Analyzing and Improving Sample
Complexity" (2023). Two episodes hardly ever share a history, so that values of histories can't be stitched as values of
states can: take as few as the task's hidden state and delays need.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.core.base.spec import VECTOR, Array, Spec

INSTEAD = (
    "stack frames in the environment (gymnasium.wrappers.FrameStackObservation, FlattenObservation around it) or train "
    "recurrent_ppo or dreamer, which remember (docs/algorithms.md, Histories)"
)
"""What an agent that acts while it learns has in place of a history."""


@dataclasses.dataclass(frozen=True)
class HistoryConfig(Options):
    """How many observations an agent that learns from data reads."""

    history: int = option(1, "last observations that policy and critics read; 1: the present one alone", range=">= 1")


def history_of(config: Any) -> int:
    """L of an agent's config; 1 where it has no such option."""
    return int(getattr(config, "history", 1))


def widened(problem: Spec, config: Any, algorithm: str, acts: bool, remembers: bool = False) -> Spec:
    """The problem as an agent's networks see it: its one vector L times as wide; several arrays stay as they are.

    Args:
        problem: as the environment has it.
        config: of the agent.
        algorithm: its name, for errors.
        acts: whether it gathers experience while it trains.
        remembers: whether its sources give histories of several arrays, whose features stand side by side.

    Raises:
        ConfigError: histories go together neither with images nor with acting.
    """
    length = history_of(config)
    if length == 1:
        return problem
    if remembers and not problem.one_vector and not problem.masked:
        return problem
    if acts or not problem.one_vector:
        why = f"it acts while it learns: {INSTEAD}" if acts else f"observations are {problem.described()}"
        raise ConfigError(f"{algorithm}.history is {length}, must be 1: histories are of one vector, from data; {why}")
    return dataclasses.replace(problem, observations={VECTOR: Array((length * problem.observation_dim,))})


def windows(rows: np.ndarray, following: np.ndarray, episode_ids: np.ndarray, length: int) -> tuple[Any, Any]:
    """Windows of `length` observations up to each step, and up to what followed it; zeros before an episode's first.

    Args:
        rows: (N, O) observations, in the order of episodes.
        following: (N, O) next observations.
        episode_ids: (N,) non-decreasing.
        length: L >= 1.

    Returns:
        (N, L O) and (N, L O), oldest first.
    """
    parts = [rows]
    for back in range(1, length):
        earlier = np.zeros_like(rows)
        earlier[back:] = np.where((episode_ids[back:] == episode_ids[:-back])[:, None], rows[:-back], 0)
        parts.insert(0, earlier)
    return np.concatenate(parts, 1), np.concatenate([*parts[1:], following], 1)
