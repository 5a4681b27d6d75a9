"""Counts: states are put into cells, and a cell's bonus falls with how often it was visited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.engine.agent import Batch
from surefoot.core.engine.sources import Source
from surefoot.online.bonuses.bonus import Bonus, Numbers
from surefoot.online.loops.replay import NewRows, Replay

CELLS = 1 << 16
"""Places of the table: two cells share one with a probability of 1 in 65,536."""
VISITS = "visits"
"""Column of a batch: how often the cell of the next observation has been visited."""


class Counts(Bonus):
    r"""Bellemare et al., "Unifying Count-Based Exploration and Intrinsic Motivation" (2016), on cells.

    .. math:: r_i = 1 / \sqrt{n(s')}

    n counts the visits of the cell that s' lies in, this one too. On-policy they stand in a table of its own; of a
    replay buffer `CountedReplay` counts them, once for each row however often it is drawn.
    """

    kind = "counts"
    scaled = learns = False
    table: Tensor

    def make(self, observation_dim: int, action_dim: int) -> None:
        """The table."""
        self.register_buffer("table", torch.zeros(CELLS))

    def measured(self, batch: Batch) -> dict[str, Tensor]:
        """The table once a block is taken in; nothing, of rows that are counted already."""
        if VISITS in batch:
            return {}
        where = cells(batch["next_observations"], self.config.bonus_cell).reshape(-1)
        weight = batch["mask"] if "mask" in batch else torch.ones_like(batch["rewards"])
        return {"table": self.table.scatter_add(0, where, weight.reshape(-1))}

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """As `Bonus.novelty`."""
        visits = batch.get(VISITS)
        if visits is None:
            visits = numbers["table"][cells(batch["next_observations"], self.config.bonus_cell)]
        return visits.clamp(min=1).rsqrt()


def cells(observations: Tensor, width: float) -> Tensor:
    """(...,) int64 in [0, `CELLS`): where the cells of (..., O) observations stand in a table.

    Cells are cubes of this width around its multiples; numbers of cells are mixed by a fixed hash.
    """
    places = torch.arange(1, observations.shape[-1] + 1, device=observations.device)
    mixed = _scattered((observations / width).round().long() + _scattered(places)).sum(-1)
    return torch.remainder(_scattered(mixed), CELLS)


def _scattered(numbers: Tensor) -> Tensor:
    """int64 numbers, each to another that looks like noise. Source: Steele, Lea and Flood's SplitMix64 (2014)."""
    numbers = numbers * -0x61C8864680B583EB
    numbers = (numbers ^ (numbers >> 30)) * -0x40A7B892E31B1A47
    numbers = (numbers ^ (numbers >> 27)) * -0x6B2FB644ECCEEE15
    return numbers ^ (numbers >> 31)


class CountedReplay:
    """A source of rows of a replay buffer that counts the visits of cells and gives each row those of its own."""

    def __init__(self, rows: Source, replay: Replay, width: float) -> None:
        """Count what comes into the buffer of `replay`, and give what `rows` gives of it."""
        self.inner, self.replay, self.width = rows, replay, width
        if hasattr(rows, "write"):
            self.write = rows.write

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        self.inner.bind(seeds, rows, device)
        self.new = NewRows(self.replay.buffer, len(seeds), device)
        self.table = torch.zeros(len(seeds), CELLS, device=device)

    def rows(self, step: int) -> Tensor:
        """As of the source within, after counting what came since."""
        own = self.new.take()
        if own is not None:
            where = self.new.of_buffer(own)
            weight = self.replay.buffer.valid[where].float()
            self.table.scatter_add_(1, self._cells(where), weight)
        return self.inner.rows(step)

    def gather(self, indices: Tensor, out: Any = None) -> Batch:
        """The rows at (S, rows) or (rows,) indices, with their `visits`."""
        seeds = len(self.table)
        visits = self.table.gather(1, self._cells(indices.view(seeds, -1))).view(indices.shape)
        return {**self.inner.gather(indices), VISITS: visits}

    def _cells(self, rows: Tensor) -> Tensor:
        return cells(self.replay.buffer["next_observations"][rows], self.width)

    def rows_added(self, position: int) -> dict[str, Tensor]:
        """What a checkpoint of seed `position` holds of it."""
        within = getattr(self.inner, "rows_added", None)
        inner = {} if within is None else {f"inner/{name}": value for name, value in within(position).items()}
        return {**inner, "table": self.table[position], "counted": self.new.entered}
