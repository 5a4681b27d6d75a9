"""Sources of rows: windows of consecutive steps of a dataset, drawn evenly or by weight; rows that a rule adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from surefoot.core.errors import DataError
from surefoot.core.sources import MAIN, Batch, Drawn, Source, Stores, Uniform
from surefoot.data.samplers import Chain, Weighted, Windows, uniform_rows
from surefoot.data.store import Store, Workspace, segment_ids


class WindowSource(Drawn):
    """Windows of L steps that never cross an episode's end: columns are (B, L, ...), with a `mask` (B, L) of 0 and 1.

    A window of padding "right" begins at the row that is drawn, one of padding "left" ends there.
    """

    def __init__(
        self,
        store: Store,
        segment_ids: np.ndarray | Tensor,
        windows: Windows,
        weights: Tensor | None = None,
        stream: str = MAIN,
    ) -> None:
        """Draw rows of a store.

        Args:
            store: N rows in the order of time.
            segment_ids: (N,) which of them followed each other (`store.segment_ids`).
            windows: length and padding.
            weights: (N,) how often a row is drawn, relative to the others; None: all equally.
            stream: of random numbers.
        """
        super().__init__(stream)
        self.store, self.windows = store, windows
        self.chain = Chain.from_segments(segment_ids, store.device)
        self.weighted = None if weights is None else Weighted(weights.to(store.device))

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows that the windows of training step `step` begin or end at."""
        uniform = self.drawn(step)
        return uniform_rows(uniform, len(self.store)) if self.weighted is None else self.weighted(uniform)

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The windows at `indices` (...,): (..., L, ...) columns and the mask."""
        window = self.windows(indices, self.chain)
        batch = self.store.gather(window.rows)
        dtype = next(value.dtype for value in batch.values() if value.is_floating_point())
        return {**batch, "mask": window.mask.to(dtype)}


def chunk_source(stores: Stores, length: int) -> Source:
    """Rows of the data, drawn uniformly; of a length above 1, the windows that begin at them (`core.chunks`)."""
    if length == 1:
        return Uniform(stores.data)
    return WindowSource(stores.data, segment_ids(stores.dataset), Windows(length, "right"))


class Added(Drawn):
    """Rows that a rule adds, such as those that a model imagines: the newest `capacity` of each seed, drawn uniformly.

    A rule adds to it by giving a batch under the source's name: name -> (n, ...) for its seed.
    """

    def __init__(self, capacity: int, columns: Mapping[str, tuple[int, ...]], stream: str) -> None:
        """Make room.

        Args:
            capacity: rows of each seed.
            columns: name -> shape of one row.
            stream: of random numbers.
        """
        super().__init__(stream)
        self.capacity, self.columns = capacity, {name: (shape, torch.float32) for name, shape in columns.items()}

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`; what was added before is forgotten."""
        super().bind(seeds, rows, device)
        self.store = Store.allocate(len(self.seeds) * self.capacity, self.columns, device)
        self._first = torch.arange(len(self.seeds), device=device).unsqueeze(1) * self.capacity
        self._added = torch.zeros((), dtype=torch.int64)

    @property
    def added(self) -> int:
        """Rows of each seed so far."""
        return int(self._added)

    def rows_added(self, position: int) -> dict[str, Tensor]:
        """The rows of seed `position` and how many were added, as views: part of a checkpoint."""
        first = position * self.capacity
        rows = {name: self.store[name][first : first + self.capacity] for name in self.columns}
        return {**rows, "added": self._added}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Mapping[str, Tensor]) -> None:
        """Write (S, n, ...) columns over the oldest rows."""
        count = next(iter(batch.values())).shape[1]
        places = (self.added + torch.arange(count, device=self.device)) % self.capacity
        rows = (self._first + places).flatten()
        for name in self.columns:
            self.store[name][rows] = batch[name].flatten(0, 1)
        self._added += count

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step`.

        Raises:
            DataError: nothing has been added yet.
        """
        if self.added == 0:
            raise DataError(f"nothing has been added to the source {self.stream!r}: put the rule that does before")
        return self._first + uniform_rows(self.drawn(step), len(self))

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices`."""
        return self.store.gather(indices, out)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.store.workspace(rows)
