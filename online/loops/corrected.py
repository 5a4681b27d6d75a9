"""`Corrected`: batches of which a share is what people did, demonstrations and corrections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.engine.sources import Batch, Drawn
from surefoot.data.collect import TransitionBuffer
from surefoot.data.samplers import uniform_rows
from surefoot.data.store import Store, Workspace
from surefoot.online.loops.replay import Replay, even_places


class _Corrections(Replay):
    """The steps in which a person acted."""

    def counts(self) -> Tensor:
        """(S, rows of a seed) how many there are up to each row."""
        return self._counts_of(self.buffer.valid)

    def of_counted(self, uniform: Tensor, counts: Tensor) -> Tensor:
        """(S, rows) rows of the buffer for (S, rows) numbers in [0, 1), among those that were counted."""
        return self._at(uniform, counts)


class Corrected(Drawn):
    """A fixed share of each batch from what people did, evenly spread; the other rows from the replay buffer.

    What people did are the demonstrations and, each as likely as one of their rows, the steps in which somebody took
    over. As long as there is neither, all rows are the replay buffer's. A seed knows its own corrections only.

    Row i of the replay buffer is i, row i of the corrections is C + i and row i of the demonstrations 2 C + i, where C
    is the replay buffer's capacity.

    Source: Luo, Xu, Wu and Levine, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement
    Learning" (2024), section IV; the half of RLPD (Ball et al., 2023).
    """

    def __init__(self, data: Store | None, corrections: TransitionBuffer, replay: Replay, share: float) -> None:
        """Give `share`, in (0, 1), of the rows from people: with 0.5 the even places.

        Args:
            data: demonstrations, or None.
            corrections: of a capacity of at most the replay buffer's.
            replay: all steps.
            share: of the rows.

        Raises:
            DataError: the columns differ.
        """
        super().__init__(replay.stream)
        if data is not None and data.fields != replay.buffer.fields:
            raise DataError(
                f"the dataset's columns {', '.join(data.fields)} and the replay buffer's "
                f"{', '.join(replay.buffer.fields)} differ in layout: give the agent's `required_columns` in both"
            )
        self.data, self.replay, self.share = data, replay, share
        self.corrections = _Corrections(corrections, replay.stream)
        self.offset = replay.buffer.capacity

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`."""
        super().bind(seeds, rows, device)
        self.replay.bind(seeds, rows, device)
        self.corrections.bind(seeds, rows, device)
        self.from_people = even_places(rows, self.share, device)
        self._places = self.from_people.nonzero().squeeze(1)

    def rows(self, step: int) -> Tensor:
        """(S, rows) int64 rows of training step `step` >= 0.

        Raises:
            DataError: the replay buffer holds no transition of some seed.
        """
        uniform = self.drawn(step)
        replayed = self.replay.of_buffer(uniform)
        shown, buffer = 0 if self.data is None else len(self.data), self.corrections.buffer
        if len(buffer) == 0:
            if shown == 0:
                return replayed
            return torch.where(self.from_people, 2 * self.offset + uniform_rows(uniform, shown), replayed)
        counts = self.corrections.counts()
        corrected = counts[:, -1:].to(uniform)  # (S, 1) of each seed
        place = uniform * (shown + corrected)
        among = ((place - shown) / corrected.clamp(min=1)).clamp(0, 1 - 2**-53)
        people = torch.where(
            place < shown,
            2 * self.offset + place.long().clamp(max=max(0, shown - 1)),
            self.offset + self.corrections.of_counted(among, counts).clamp(max=len(buffer) - 1),
        )
        return torch.where(self.from_people & (shown + corrected > 0), people, replayed)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows), as `rows` gives them."""
        offset, dim, places = self.offset, indices.dim() - 1, self._places
        groups = self.replay.buffer.gather_groups(torch.where(indices < offset, indices, 0))
        people = indices.index_select(dim, places)
        tables: list[tuple[Store | TransitionBuffer, Tensor, Tensor]] = [
            (self.corrections.buffer, (people >= offset) & (people < 2 * offset), people - offset)
        ]
        if self.data is not None:
            tables.append((self.data, people >= 2 * offset, people - 2 * offset))
        for table, of_it, rows in tables:  # looked up in all, without asking in which they are
            for key, found in table.gather_groups(torch.where(of_it, rows, 0)).items():
                mask = of_it.view(*of_it.shape, *[1] * (found.dim() - of_it.dim()))
                chosen = torch.where(mask, found, groups[key].index_select(dim, places))
                groups[key] = groups[key].index_copy(dim, places, chosen)
        if out is None:
            return self.replay.buffer.split(groups)
        for key, found in groups.items():
            out.buffers[key].copy_(found)
        return dict(out.batch)

    def workspace(self, rows: int) -> Workspace:
        """Memory for `gather`, as `Store.workspace`."""
        return self.replay.buffer.workspace(rows)
