"""Sources of rows: windows of consecutive steps of a dataset, drawn evenly or by weight; rows that a rule adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.engine.sources import MAIN, Batch, Drawn, Source, Stores, Uniform
from surefoot.data.samplers import Chain, Weighted, Windows, uniform_rows
from surefoot.data.store import OBSERVATION_ACTIONS, Store, Workspace, recording_ids


class WindowSource(Drawn):
    """Windows of L steps that never cross the end of an episode, or of a recording.

    Columns are (B, L, ...), with a `mask` (B, L) of 0 and 1.

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
            segment_ids: (N,) which of them followed each other (`store.segment_ids`, `store.recording_ids`).
            windows: length and padding.
            weights: (N,) how often a row is drawn, relative to the others; None: all equally.
            stream: of random numbers.

        Raises:
            DataError: as many segment ids as rows are not given.
        """
        super().__init__(stream)
        if len(segment_ids) != len(store):
            raise DataError(
                f"there are {len(segment_ids)} segment ids for {len(store)} rows of the store: make them by "
                "segment_ids(dataset, store.keys)"
            )
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


class WeightedRows(Drawn):
    """Single rows of a store, each drawn with a probability of its own."""

    def __init__(self, store: Store, weights: Tensor, stream: str = MAIN) -> None:
        """Draw rows of a store with (N,) `weights`, relative to each other."""
        super().__init__(stream)
        self.gather, self.workspace = store.gather, store.workspace
        self.weighted = Weighted(weights.to(store.device))

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step`."""
        return self.weighted(self.drawn(step).contiguous())


class Balanced(Drawn):
    """Rows of two kinds, as many of one as of the other in each batch: those of the first kind at the even places."""

    def __init__(self, store: Store, first: Tensor, name: str, stream: str = MAIN) -> None:
        """Draw rows of a store.

        Args:
            store: N rows.
            first: (N,) bool: which are of the first kind.
            name: of the column that tells, for messages.
            stream: of random numbers.

        Raises:
            DataError: all rows are of one kind.
        """
        super().__init__(stream)
        self.gather, self.workspace = store.gather, store.workspace
        self.kinds = [mask.nonzero().squeeze(1) for mask in (first, ~first)]
        if not all(map(len, self.kinds)):
            raise DataError(
                f"{name!r} is {'0' if len(self.kinds[1]) else '1'} in all {len(store):,} rows: rows of both kinds are "
                "needed"
            )

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step`."""
        uniform = self.drawn(step)
        found = torch.empty(uniform.shape, dtype=torch.int64, device=uniform.device)
        for place, kind in enumerate(self.kinds):
            found[:, place::2] = kind[uniform_rows(uniform[:, place::2], len(kind))]
        return found


def chunk_source(stores: Stores, length: int) -> Source:
    """Rows of the data, drawn uniformly; of a length above 1, the windows that begin at them (`core.actors.chunks`).

    Where a recording runs on behind the task's end, so do its windows: the actions are those that were taken.
    """
    if length == 1:
        return Uniform(stores.data)
    return WindowSource(stores.data, recording_ids(stores.dataset, stores.data.keys), Windows(length, "right"))


class Added(Drawn):
    """Rows that a rule adds, such as those that a model imagines: the newest `capacity` of each seed, drawn uniformly.

    A rule adds to it by giving a batch under the source's name: name -> (n, ...) for its seed, with `valid` (n,) where
    some of its rows are not to be added, and `kept` (), if only so many of the newest are to be drawn from now on.
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
        self.dtype = torch.float32

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`; what was added before is forgotten."""
        super().bind(seeds, rows, device)
        self.store = Store.allocate(len(self.seeds) * self.capacity, self.columns, device, self.dtype)
        self._first = torch.arange(len(self.seeds), device=device).unsqueeze(1) * self.capacity
        self._added = torch.zeros(len(self.seeds), dtype=torch.int64)
        self._kept = torch.full((len(self.seeds),), self.capacity)
        self._copied = self._there = torch.zeros(0, dtype=torch.int64)

    @property
    def added(self) -> int:
        """Rows of each seed so far; of the seed with the fewest."""
        return int(self._added.min())

    def rows_added(self, position: int) -> dict[str, Tensor]:
        """The rows of seed `position` and how many were added, as views: part of a checkpoint."""
        first = position * self.capacity
        rows = {name: self.store[name][first : first + self.capacity] for name in self.columns}
        return {**rows, "added": self._added[position], "kept": self._kept[position]}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, batch: Mapping[str, Tensor]) -> None:
        """Write (S, n, ...) columns over the oldest rows; only those where (S, n) `valid` is not 0, if it is given."""
        valid, count = batch.get("valid"), batch[next(iter(self.columns))].shape[1]
        for position in range(len(self.seeds)):
            chosen = torch.arange(count, device=self.device)
            if valid is not None:
                chosen = valid[position].to(self.device).nonzero().squeeze(1)
            before, given = int(self._added[position]), len(chosen)
            newest = torch.arange(max(0, given - self.capacity), given, device=self.device)
            places = position * self.capacity + (before + newest) % self.capacity
            for name in self.columns:
                self.store[name][places] = batch[name][position][chosen[newest]].to(self.store[name].dtype)
            self._added[position] += given
            if "kept" in batch:
                self._kept[position] = int(batch["kept"][position])

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step`.

        Raises:
            DataError: nothing has been added yet.
        """
        return self._of_added(self.drawn(step))

    def _of_added(self, uniform: Tensor) -> Tensor:
        if self.added == 0:
            raise DataError(f"nothing has been added to the source {self.stream!r}: put the rule that does before")
        back, added = self._numbers().unsqueeze(-1).unbind(0)
        return self._first + (added - 1 - uniform_rows(uniform, back)) % self.capacity

    def _numbers(self) -> Tensor:
        """(2, S) rows that can be drawn and rows added so far, on the device: copied there when they have changed."""
        now = torch.stack([torch.minimum(self._added, self._kept).clamp(max=self.capacity), self._added])
        if not torch.equal(now, self._copied):
            self._copied, self._there = now, now.to(self.device)
        return self._there

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices`."""
        return self.store.gather(indices, out)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.store.workspace(rows)


def whole_part(share: float, rows: int) -> int:
    """The whole part of a share in [0, 1] of some rows; 0.3 of 10 is 3."""
    return int(share * rows + 1e-9)


class BesideAdded(Added):
    """Rows of a dataset and rows that a rule adds, in every batch: a fixed share of the former, which come first.

    Row i of the data is i; row i of what was added is i + the number of the data's rows. All that read it must ask for
    as many rows: of fewer, the first, more would be the data's.
    """

    def __init__(self, data: Store, share: float, capacity: int, stream: str) -> None:
        """Give the whole part of `share`, in [0, 1], of a batch's rows from `data`; room for `capacity` rows added.

        A share of 1 leaves no room for added rows, and none need be there.
        """
        columns = {name: field.shape for name, field in data.fields.items() if name != OBSERVATION_ACTIONS}
        super().__init__(capacity, columns, stream)
        self.data, self.share = data, share
        self.dtype = data["rewards"].dtype

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Added.bind`."""
        super().bind(seeds, rows, device)
        if self.store.fields != self.data.fields:
            raise DataError(
                f"columns {', '.join(self.data.fields)} of the data can't be added to: they must all be numbers of one "
                "row, without images"
            )
        self.of_data = whole_part(self.share, rows)

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step`, those of the data first.

        Raises:
            DataError: nothing has been added yet.
        """
        uniform = self.drawn(step)
        ours = self.rows_of_data(uniform[:, : self.of_data])
        if self.of_data == self.count:
            return ours
        return torch.cat([ours, self.offset + self._of_added(uniform[:, self.of_data :])], 1)

    @property
    def alone(self) -> Source:
        """The rows of the data, without those added."""
        return Uniform(self.data)

    @property
    def offset(self) -> int:
        """What is added to the numbers of added rows."""
        return len(self.data)

    def rows_of_data(self, uniform: Tensor) -> Tensor:
        """(S, n) rows of the data for (S, n) float64 numbers in [0, 1)."""
        return uniform_rows(uniform, len(self.data))

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows), as `rows` gives them."""
        parts = (indices[..., : self.of_data], indices[..., self.of_data :] - self.offset)
        found = [store.gather_groups(rows) for store, rows in zip((self.data, self.store), parts, strict=True)]
        dim = indices.dim() - 1
        if out is None:
            return self.data.split({key: torch.cat([part[key] for part in found], dim) for key in found[0]})
        for key, buffer in out.buffers.items():
            torch.cat([part[key] for part in found], dim, out=buffer)
        return dict(out.batch)
