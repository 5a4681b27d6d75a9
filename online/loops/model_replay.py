"""Rows of a replay buffer for agents that learn a model of the world from it, and that imagine rows beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base.counter import CounterGenerator
from surefoot.data.collect import TransitionBuffer
from surefoot.data.sources import BesideAdded
from surefoot.data.store import Workspace
from surefoot.online.loops.replay import Replay


class ReplayBesideAdded(BesideAdded):
    """Rows of a replay buffer and rows that a rule adds: a fixed share of the former, which come first."""

    def __init__(self, replay: Replay, share: float, capacity: int, stream: str) -> None:
        """Give the whole part of `share` of a batch's rows from the buffer; room for `capacity` rows added."""
        super().__init__(replay.buffer, share, capacity, stream)  # type: ignore[arg-type]
        self.replay = replay

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.replay.bind(seeds, rows, device)

    @property
    def offset(self) -> int:
        """What is added to the numbers of added rows."""
        return self.replay.buffer.capacity

    def rows_of_data(self, uniform: Tensor) -> Tensor:
        """(S, n) rows of the buffer for (S, n) float64 numbers in [0, 1)."""
        return self.replay.of_buffer(uniform)


class Split(Replay):
    """Rows of one vector step in `every`, which nothing is trained on, or of all the others.

    A row of the other part is moved to the nearest step before it that is of this one, so that the split stays what it
    was while the buffer grows; where some rows are no transitions, those of this part are drawn from. While there is no
    step of this part, all are.
    """

    def __init__(self, buffer: TransitionBuffer, every: int, held: bool, stream: str) -> None:
        """Give the held-out steps every - 1, 2 every - 1, ..., or the others."""
        super().__init__(buffer, stream)
        self.every, self.held = every, held

    def of_buffer(self, uniform: Tensor) -> Tensor:
        """As `Replay.of_buffer`."""
        stride, every, buffer = self.buffer.num_envs, self.every, self.buffer
        if (self.held and len(buffer) < every * stride) or len(buffer) == 0:
            return super().of_buffer(uniform)
        if not buffer.all_valid:
            steps = torch.arange(len(buffer), device=buffer.valid.device) // stride
            mine = buffer.valid & ((steps % every == every - 1) == self.held)
            some = mine.view(-1, len(self.seeds), self.num_envs).any(2).any(0).all()
            return self._at(uniform, self._counts_of(mine if bool(some) else buffer.valid))
        rows = super().of_buffer(uniform)
        step = torch.div(rows, stride, rounding_mode="floor")
        place = step % every
        if not self.held:
            return rows - (place == every - 1) * stride
        moved = rows - (place + 1) * stride
        return torch.where(place == every - 1, rows, torch.where(moved < 0, moved + every * stride, moved))


class Members(Split):
    """Rows for each member of an ensemble, drawn apart: batches are (rows, E, ...); of steps that are not held out."""

    def __init__(self, buffer: TransitionBuffer, every: int, members: int, stream: str) -> None:
        super().__init__(buffer, every, False, stream)
        self.members = members

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers, one for each member."""
        return source.random((*shape, self.members))

    def rows(self, step: int) -> Tensor:
        """(S, rows, E) int64 rows of training step `step` >= 0."""
        return self.of_buffer(self.drawn(step).flatten(1)).unflatten(1, (-1, self.members))

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`."""
        return self.buffer.workspace((rows, self.members))


class Newest(Replay):
    """The newest rows of each seed, for what is asked of data before much is learned from them."""

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows; from the oldest on again where there are fewer."""
        held = len(self.buffer) // len(self.seeds)
        written = self.buffer.position // self.buffer.num_envs * self.num_envs  # the row that comes next, of one seed
        back = (written - 1 - torch.arange(self.count) % held) % held
        return self.of_buffer(((back.double() + 0.5) / held).to(self.device).expand(len(self.seeds), -1))
