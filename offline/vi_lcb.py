"""Pessimism by counts: value iteration with a lower confidence bound on a table, and its bandit.

For data of few states and actions the answer that deep pessimism approximates can be computed: the model is the data's
frequencies, and what is seldom seen is worth less by what the count leaves open.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.dataset import Dataset

Array = np.ndarray[Any, Any]
BONUSES = ("hoeffding", "bernstein")


@dataclasses.dataclass(frozen=True)
class Counts:
    """What data of S states and A actions say: how often each step was seen, and what it earned."""

    transitions: Array  # (S, A, S) int64: steps that went on
    endings: Array  # (S, A) int64: steps after which the task ended
    rewards: Array  # (S, A) float64: sum of the rewards

    def __post_init__(self) -> None:
        """Refuse tables that don't fit each other."""
        shape = self.rewards.shape
        if len(shape) != 2 or self.endings.shape != shape or self.transitions.shape != (*shape, shape[0]):
            raise DataError(
                f"counts are of shapes {self.transitions.shape}, {self.endings.shape} and {shape}; they must be "
                "(S, A, S), (S, A) and (S, A)"
            )

    @property
    def visits(self) -> Array:
        """(S, A) int64 N(s, a)."""
        visits: Array = self.transitions.sum(-1) + self.endings
        return visits

    @classmethod
    def of(
        cls, states: Array, actions: Array, rewards: Array, terminations: Array, next_states: Array, shape: Any
    ) -> Counts:
        """Count N steps.

        Args:
            states: (N,) int in [0, S).
            actions: (N,) int in [0, A).
            rewards: (N,).
            terminations: (N,) bool: the task ended; the next state is not read there.
            next_states: (N,) int in [0, S).
            shape: (S, A).

        Raises:
            DataError: a number out of range, with its row.
        """
        for name, values, size in (("state", states, shape[0]), ("action", actions, shape[1])):
            bad = np.flatnonzero((values < 0) | (values >= size))
            if len(bad):
                raise DataError(f"{name} of row {bad[0]} is {values[bad[0]]}, must be in 0 to {size - 1}")
        ended = np.asarray(terminations, bool)
        lost = np.flatnonzero(~ended & ((next_states < 0) | (next_states >= shape[0])))
        if len(lost):
            raise DataError(f"next state of row {lost[0]} is {next_states[lost[0]]}, must be in 0 to {shape[0] - 1}")
        transitions = np.zeros((*shape, shape[0]), np.int64)
        endings, earned = np.zeros(shape, np.int64), np.zeros(shape)
        np.add.at(earned, (states, actions), rewards)
        np.add.at(endings, (states[ended], actions[ended]), 1)
        np.add.at(transitions, (states[~ended], actions[~ended], next_states[~ended]), 1)
        return cls(transitions, endings, earned)


@dataclasses.dataclass(frozen=True)
class Solution:
    """Pessimistic values and the policy that is greedy in them."""

    q: Array  # (S, A) float64; of steps that were never seen, the lowest that the range allows
    values: Array  # (S,) float64
    policy: Array  # (S,) int64
    bonus: Array  # (S, A) float64: what was taken off


def vi_lcb(
    counts: Counts,
    discount: float,
    *,
    value_range: tuple[float, float],
    scale: float = 1.0,
    failure: float = 0.1,
    bonus: str = "hoeffding",
    iterations: int = 10_000,
) -> Solution:
    r"""Value iteration in the model of the data, less a lower confidence bound.

    .. math::
        Q(s, a) &= \hat r(s, a) - b(s, a) + \gamma \hat P(\cdot | s, a) \cdot V, \quad V(s) = \max_a Q(s, a), \\
        b_{hoeffding} &= c\, (h - l) \sqrt{L / N(s, a)}, \quad
            b_{bernstein} = c\, (\sqrt{L\, \mathrm{Var}_{\hat P}(\gamma V) / N(s, a)} + (h - l) L / N(s, a))

    with L = log(S A / failure), values cut to [l, h], and Q = l where (s, a) was never seen. An answer needs data along
    one good policy only, not of everything.

    Args:
        counts: of the data.
        discount: in [0, 1).
        value_range: (l, h), lowest and highest return that the task allows.
        scale: c >= 0. The theorem's is in the hundreds; 1 or less is what is used. 0 is value iteration in the data.
        failure: chance that the bound is allowed to be wrong, in (0, 1).
        bonus: hoeffding, by the range, or bernstein, by the variance of the next value (the rewards' is left out).
        iterations: at most.

    Raises:
        ConfigError: a setting out of range.

    Sources: Rashidinejad, Zhu, Ma, Jiao and Russell, "Bridging Offline Reinforcement Learning and Imitation Learning: A
    Tale of Pessimism" (2021), without its splitting of the data; for Bernstein's bound Li, Shi, Chen, Chi and Wei,
    "Settling the Sample Complexity of Model-Based Offline Reinforcement Learning" (2022), up to constants.
    """
    low, high = value_range
    for field, fine, value, needed in (
        ("discount", 0 <= discount < 1, discount, "in [0, 1)"),
        ("value_range", low < high, value_range, "a lower and a higher number"),
        ("scale", scale >= 0, scale, ">= 0"),
        ("failure", 0 < failure < 1, failure, "in (0, 1)"),
        ("bonus", bonus in BONUSES, bonus, " or ".join(BONUSES)),
    ):
        if not fine:
            raise ConfigError(f"vi_lcb: {field} is {value!r}, must be {needed}")
    visits = counts.visits
    seen, among = visits > 0, np.maximum(visits, 1)
    rewards = counts.rewards / among
    onwards = counts.transitions / among[..., None]  # what is missing to 1 ended, and is worth 0
    width = math.log(visits.size / failure)
    values = np.full(len(rewards), low, np.float64)
    taken = np.zeros_like(rewards)
    for _ in range(iterations):
        following = discount * onwards @ values
        if bonus == "hoeffding":
            taken = scale * (high - low) * np.sqrt(width / among)
        else:
            spread = np.maximum(discount**2 * onwards @ values**2 - following**2, 0)
            taken = scale * (np.sqrt(width * spread / among) + (high - low) * width / among)
        q = np.where(seen, np.clip(rewards - taken + following, low, high), low)
        before, values = values, q.max(1)
        if np.abs(values - before).max() <= 1e-12 * (high - low):
            break
    return Solution(q, values, q.argmax(1), np.where(seen, taken, high - low))


def bandit_lcb(means: Array, counts: Array, scale: float = 1.0, failure: float = 0.1, width: float = 1.0) -> int:
    r"""The arm with the highest lower confidence bound, :math:`\hat r - c w \sqrt{\log(A / failure) / N}`.

    Args:
        means: (A,) of the rewards of each arm.
        counts: (A,) plays; an arm that was never played is never chosen.
        scale: c >= 0.
        failure: in (0, 1).
        width: w > 0, range of a reward.

    Raises:
        DataError: no arm was played.

    Source: as `vi_lcb`.
    """
    played = np.asarray(counts) > 0
    if not played.any():
        raise DataError("no arm of the bandit was ever played")
    bound = scale * width * np.sqrt(math.log(len(means) / failure) / np.maximum(counts, 1))
    return int(np.where(played, np.asarray(means, np.float64) - bound, -np.inf).argmax())


@dataclasses.dataclass(frozen=True)
class Table:
    """A dataset whose observations and actions repeat, as a table: what each number of a state or action stands for."""

    counts: Counts
    states: Array  # (S, O) float32
    actions: Array  # (A, action dim) float32

    def act(self, solution: Solution, observations: Array) -> Array:
        """(B, action dim) actions of a solution's policy for (B, O) observations.

        Raises:
            DataError: an observation that the data do not have.
        """
        known = {row.tobytes(): index for index, row in enumerate(self.states)}
        plain = np.asarray(observations, self.states.dtype) + 0.0  # + 0: no -0 beside 0
        found = [known.get(row.tobytes(), -1) for row in plain]
        if -1 in found:
            row = found.index(-1)
            raise DataError(f"observation {row} is {observations[row].tolist()}, which the data do not have")
        chosen: Array = self.actions[solution.policy[found]]
        return chosen


def tabulated(dataset: Dataset, most: int = 10_000_000) -> Table:
    """Number the distinct observations and actions of a dataset and count its steps.

    Args:
        dataset: rows that can't be sampled are left out.
        most: numbers that its table of transitions may have, S A S.

    Raises:
        DataError: there are more, as of continuous data.
    """
    rows = np.flatnonzero(dataset.transitions)
    both = np.concatenate([dataset.observations[rows], dataset.next_observations[rows]])
    states, numbers = np.unique(both + 0.0, axis=0, return_inverse=True)  # + 0: no -0 beside 0
    actions, chosen = np.unique(dataset.actions[rows] + 0.0, axis=0, return_inverse=True)
    shape = (len(states), len(actions))
    if shape[0] ** 2 * shape[1] > most:
        raise DataError(
            f"{dataset.name}: has {shape[0]:,} different observations and {shape[1]:,} actions, too many for a table "
            f"of {most:,} numbers; train msg, which bounds values by an ensemble"
        )
    numbers, chosen = numbers.reshape(-1), chosen.reshape(-1)
    counts = Counts.of(
        numbers[: len(rows)], chosen, dataset.rewards[rows], dataset.terminations[rows], numbers[len(rows) :], shape
    )
    return Table(counts, states, actions)
