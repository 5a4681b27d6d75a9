"""Sources of rows of a dataset: windows of consecutive steps, drawn evenly or by weight."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from surefoot.core.sources import MAIN, Batch, Drawn
from surefoot.data.samplers import Chain, Weighted, Windows, uniform_rows
from surefoot.data.store import Store


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
