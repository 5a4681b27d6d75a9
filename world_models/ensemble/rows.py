"""Rows that an ensemble learns from: a holdout for all members, and a bootstrap sample for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import DataError
from surefoot.core.base.random import drawn, generator
from surefoot.core.engine.sources import Batch, Drawn
from surefoot.data.store import Store, Workspace

MODEL, HOLDOUT = "model", "model_holdout"
"""Names of the sources: rows for each member, and rows that none of them is trained on."""


def split_rows(count: int, share: float, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and to hold out, (n,) and (h,) int64: equal for equal counts, whatever the seed.

    Args:
        count: of all rows.
        share: to be held out.
        limit: of rows held out.

    Raises:
        DataError: fewer than two rows.
    """
    if count < 2:
        raise DataError(f"a model is trained on some rows and measured on others; there are {count}")
    held = min(max(1, int(count * share)), limit, count - 1)
    order = generator(0, HOLDOUT).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


class Bootstrap(Drawn):
    """For each member rows of a sample of its own: as many as there are, drawn once with replacement.

    The sample is fixed by the seed and the member. Batches are (rows, E, ...): they are drawn anew, with replacement,
    for each training step.
    """

    def __init__(self, store: Store, rows: np.ndarray, members: int) -> None:
        """Draw from `rows` (n,) of a store."""
        super().__init__(MODEL)
        self.store, self.given, self.members = store, rows, members

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        count = len(self.given)
        places = drawn(seeds, "bootstrap", 0, device, lambda source: source.integers(0, count, (self.members, count)))
        self.samples = torch.from_numpy(self.given).to(device)[places]

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """int64 places in the samples, one for each member."""
        return source.integers(0, len(self.given), (*shape, self.members))

    def rows(self, step: int) -> Tensor:
        """(S, rows, E) int64 rows of training step `step` >= 0."""
        return self.samples.gather(2, self.drawn(step).transpose(1, 2)).transpose(1, 2)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows, E)."""
        return self.store.gather(indices, out)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`."""
        return self.store.workspace((rows, self.members))


class Fixed:
    """The same rows at every step, for all seeds: those of a holdout."""

    def __init__(self, store: Store, rows: np.ndarray) -> None:
        """Give `rows` (n,) of a store, or the first of them where fewer are asked for."""
        self.store, self.given = store, torch.from_numpy(rows)

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        self._rows = self.given[:rows].to(device).expand(len(seeds), -1)

    def rows(self, step: int) -> Tensor:
        """(S, n) int64 rows; n is below what was asked for where there are no more."""
        return self._rows

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows at `indices`."""
        return self.store.gather(indices)
