"""Rows of decisions on named observations: each column is gathered at the steps where it is read, and nowhere else.

A window of C steps has C actions and rewards, but one observation that is decided on and one that follows. With a
history of L observations these are L each: those before an episode's first step repeat the first.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from surefoot.core.engine.sources import Batch, Source, Stores
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource, chunk_source
from surefoot.data.store import NEXT, Store, recording_ids

OBSERVATIONS = "observations/"
"""What names of columns begin with that hold an array of an observation."""


def decisions_of(stores: Stores, length: int, chunk: int | None = None, history: int = 1) -> Source:
    """Rows of the data, drawn uniformly; of a length above 1, the windows that begin at them (`core.actors.chunks`).

    Where a recording runs on behind the task's end, so do its windows: the actions are those that were taken.

    Args:
        stores: with the data's rows.
        length: W steps of a window.
        chunk: C actions of a decision, at most W; None: all.
        history: L observations that a decision reads. One vector's are written into its rows before.
    """
    named = any(name.startswith(OBSERVATIONS) for name in stores.data.fields)
    if not named or (length == 1 and history == 1):
        return chunk_source(stores, length)
    ids = recording_ids(stores.dataset, stores.data.keys)
    return DecisionSource(stores.data, ids, length, length if chunk is None else chunk, history)


class DecisionSource(WindowSource):
    """Windows whose observations are those that decisions read, in place of one a step.

    Columns are (B, W, ...), or (B, ...) where W is 1; `observations/KEY` and `next_observations/KEY` are (B, ...), or
    (B, L, ...) with a history, oldest first.
    """

    def __init__(self, store: Store, segment_ids: np.ndarray | Tensor, length: int, chunk: int, history: int) -> None:
        """Draw rows of a store.

        Args:
            store: N rows in the order of time.
            segment_ids: as `WindowSource`.
            length: W steps of a window, at least C.
            chunk: C: the next observation is that after so many steps, or after the window's last real one.
            history: L observations that a decision reads.
        """
        super().__init__(store, segment_ids, Windows(length))
        self.length, self.chunk, self.history = length, chunk, history
        self._seen = store.columns(lambda name: name.startswith(OBSERVATIONS))
        self._next = store.columns(lambda name: name.startswith(NEXT + OBSERVATIONS))
        self._rest = store.columns(lambda name: OBSERVATIONS not in name)

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The decisions at `indices` (...,)."""
        window = self.windows(indices, self.chain)
        alone = self.length == 1
        batch = self._rest.gather(indices if alone else window.rows)
        if not alone:
            dtype = next(value.dtype for value in batch.values() if value.is_floating_point())
            batch["mask"] = window.mask.to(dtype)
        batch |= self._seen.gather(self._before(indices, self.history) if self.history > 1 else indices)
        if not self._next.fields:
            return batch
        last = window.rows[..., self.chunk - 1]
        following = self._next.gather(last)
        if self.history > 1:
            earlier = self._seen.gather(self._before(last, self.history - 1))
            dim = last.dim()
            following = {
                name: torch.cat([earlier[name.removeprefix(NEXT)], value.unsqueeze(dim)], dim)
                for name, value in following.items()
            }
        return {**batch, **following}

    def _before(self, rows: Tensor, length: int) -> Tensor:
        """(..., L) the last rows of each one's episode up to it; the first is repeated."""
        return Windows(length, "left")(rows, self.chain).rows
