"""Replay in which one transition stands for many: rows that are written anew as they are drawn.

What is written anew is a `Relabelling`'s: hindsight (`envs.hindsight`) has goals that were reached later; others can
have what a step means from each state of a reward machine. Nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.engine.sources import Batch, Drawn
from surefoot.data.samplers import Chain, uniform_rows
from surefoot.data.store import Store
from surefoot.online.loops.replay import Replay, even_places

NUMBERS = 3
"""Uniform numbers of a row: the row itself, the later one, and which of its variants it is."""


class Relabelling(Protocol):
    """Makes variants of transitions."""

    variants: int
    """How many rows one transition stands for; variant 0 is the transition as it was."""
    horizon: int
    """Steps that a later row of the episode may lie ahead, less one."""

    def __call__(self, batch: Batch, variants: Tensor, later: Tensor) -> Batch:
        """The batch with each row as its variant.

        Args:
            batch: (..., B) transitions.
            variants: (..., B) int64 in [0, `variants`).
            later: (..., B, O) next observations of a row of the same episode, its own or a later one, all equally
                likely.
        """
        ...


class RelabelledReplay(Drawn):
    """Rows of a replay buffer, each as one of its variants, all equally likely; and rows of a dataset beside them.

    Later rows of episodes under way are those that are there.
    """

    workspace = None  # what is written anew has memory of its own

    def __init__(
        self,
        replay: Replay,
        relabelling: Relabelling,
        data: Store | None = None,
        recordings: Tensor | None = None,
        share: float = 0.0,
    ) -> None:
        """Draw rows of a buffer.

        Args:
            replay: says which rows.
            relabelling: what becomes of them.
            data: rows that stand beside them, written anew too.
            recordings: (N,) which of the data's rows followed each other (`store.recording_ids`).
            share: of each batch that is the data's.
        """
        super().__init__(replay.stream)
        self.replay, self.buffer, self.relabelling = replay, replay.buffer, relabelling
        self.data, self.share = data, share
        self.chain = None if data is None else Chain.from_segments(recordings, data.device)  # type: ignore[arg-type]

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.replay.bind(seeds, rows, device)
        none = torch.zeros(rows, dtype=torch.bool, device=device)
        self.from_data = none if self.data is None else even_places(rows, self.share, device)

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape, 3) uniform numbers in [0, 1)."""
        return source.random((*shape, NUMBERS))

    def rows(self, step: int) -> Tensor:
        """(S, rows, 3) int64 of training step `step`: the row, a later one, and the variant."""
        place, ahead, kind = self.drawn(step).unbind(-1)
        rows = self.replay.of_buffer(place)
        later = self._later(rows, ahead, self.buffer.chain)
        if self.data is not None:
            assert self.chain is not None
            own = uniform_rows(place, len(self.data))
            later = torch.where(self.from_data, self._later(own, ahead, self.chain), later)
            rows = torch.where(self.from_data, own, rows)
        return torch.stack([rows, later, uniform_rows(kind, self.relabelling.variants)], -1)

    def _later(self, rows: Tensor, ahead: Tensor, chain: Chain) -> Tensor:
        """Rows of the same episodes, from each of (S, rows) to its episode's end, by (S, rows) numbers in [0, 1)."""
        lengths = chain.steps_ahead(rows, self.relabelling.horizon)
        return chain.follow(rows, torch.minimum((ahead * lengths).long(), lengths - 1))

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows at `indices` (..., rows, 3), as `rows` gives them."""
        rows, later, variants = (part.contiguous() for part in indices.unbind(-1))
        if self.data is None:
            seen = _column(self.buffer["next_observations"], later)
            return self.relabelling(self.buffer.gather(rows), variants, seen)
        ours, others = (torch.where(self.from_data, own, other) for own, other in ((rows, 0), (0, rows)))
        batch, met = self.data.gather(ours), self.buffer.gather(others)
        batch = {key: self._joined(value, met[key], rows.dim()) for key, value in batch.items()}
        first = _column(self.data["next_observations"], later * self.from_data)
        second = _column(self.buffer["next_observations"], later * ~self.from_data)
        seen = self._joined(first, second, rows.dim())
        return self.relabelling(batch, variants, seen)

    def _joined(self, ours: Tensor, others: Tensor, lead: int) -> Tensor:
        """The data's values at the data's places, the buffer's at the others; rows are dimension `lead` - 1."""
        return torch.where(self.from_data.view(-1, *[1] * (ours.dim() - lead)), ours, others)


def _column(column: Tensor, rows: Tensor) -> Tensor:
    return column.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *column.shape[1:])
