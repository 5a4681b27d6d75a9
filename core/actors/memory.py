"""What a policy remembers of an episode: a dict of tensors, one row for each episode under way.

`begin(rows)` gives the memory of rows at the first step of an episode, `act(observations, memory)` the actions with the
new memory, and `observe_outcome(memory, rewards, costs, ended)` the memory after the actions' outcome, in which rows
that ended begin anew. None of them changes the dict or the tensors that it is given. A policy without a memory has an
empty dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from surefoot.core.base.spec import mapped

Memory = dict[str, Tensor]
"""Name -> (rows, ...) tensor. Rows may be selected, split and joined like those of a batch."""
GOAL = "goal"
"""(rows, G) in the environment's units: what a policy is asked for in this episode; NaN where none was given."""
TASK = "task"
"""(rows, D) what stands for the reward that a policy is to earn in this episode; NaN where none was given."""
DRAWS = "draws"
"""(rows, 2) int64: seed, and number of draws so far, of the noise that a policy draws for itself; the same in all."""


class PolicyLike(Protocol):
    """Whatever acts: observations in, actions in the environment's own units out, and an explicit memory."""

    def begin(self, rows: int) -> Memory:
        """The memory of `rows` rows at the first step of an episode."""
        ...

    def act(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(N, A) actions, or (N,) choices, for (N, O) float32 observations; and the new memory."""
        ...

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory after (N,) float32 rewards and costs; rows with (N,) bool `ended` begin a new episode."""
        ...


class Reactive:
    """Base of policies without a memory: a subclass defines `actions`."""

    def begin(self, rows: int) -> Memory:
        """An empty memory."""
        return {}

    def act(self, observations: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """`actions`, and the memory as it was."""
        return self.actions(observations), memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory as it was."""
        return memory

    def actions(self, observations: Tensor) -> Tensor:
        """(N, A) actions, or (N,) choices, for (N, O) observations."""
        raise TypeError(f"{type(self).__name__} must define actions")


def in_rows(memory: Memory, values: Mapping[str, Tensor], rows: Tensor) -> Memory:
    """The memory with `values`, of one row or of all, in the rows with (N,) bool `rows`; other tensors stay."""
    chosen = {
        name: torch.where(rows.view(-1, *[1] * (value.dim() - 1)), value, memory[name])
        for name, value in values.items()
    }
    return {**memory, **chosen}


def begun_anew(memory: Memory, first: Mapping[str, Tensor], ended: Tensor) -> Memory:
    """The memory with `first`, one row of each tensor, in the rows with (N,) bool `ended`; other tensors stay."""
    return in_rows(memory, first, ended)


def in_parts(observations: Any, memory: Memory, noise: Tensor, rows: int) -> list[tuple[Any, Memory, Tensor | None]]:
    """Observations, memory and noise in parts of at most so many rows."""
    parts = []
    for start in range(0, len(noise), rows):
        part = slice(start, start + rows)
        seen = mapped(lambda value, part=part: value[part], observations)
        parts.append((seen, {name: value[part] for name, value in memory.items()}, noise[part]))
    return parts  # type: ignore[return-value]


def joined(parts: list[tuple[Tensor, Memory]]) -> tuple[Tensor, Memory]:
    """Actions and memory of all parts."""
    memory = {name: torch.cat([part[1][name] for part in parts]) for name in parts[0][1]}
    return torch.cat([part[0] for part in parts]), memory
