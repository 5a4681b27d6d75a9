"""`Share`: several processes learn the same thing, each from its share of every batch, and average their gradients.

All draw the same rows, so that together they learn what one process would learn from the whole batch, up to the order
of sums. It is for agents whose losses are means over rows (`Agent.by_rows`).
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.engine.agent import Agent, Update
from surefoot.core.engine.features import move_noise
from surefoot.core.engine.sources import Batch, Source, as_sources


class Share:
    """This process, one of `size` with a `rank` from 0 on."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def join(cls, device: str | torch.device = "cpu") -> Share:
        """Meet the others: by the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets.

        Raises:
            ConfigError: they are not set.
            SurefootError: the others did not come.
        """
        import torch.distributed as dist

        missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
        if missing:
            raise ConfigError(f"{', '.join(missing)} not set: start the processes with torchrun --nproc-per-node=N")
        kind = "nccl" if torch.device(device).type == "cuda" else "gloo"
        try:
            # None waits for long: while the first evaluates, the others wait for its next gradient. A death is noticed.
            dist.init_process_group(kind, timeout=dt.timedelta(days=7))
        except (RuntimeError, ValueError) as error:
            raise SurefootError(f"the processes that share a batch did not meet: {error}") from error
        return cls(dist.get_rank(), dist.get_world_size())

    def leave(self) -> None:
        """Wait for the others, and part."""
        import torch.distributed as dist

        try:
            dist.barrier()
            dist.destroy_process_group()
        except RuntimeError as error:
            raise self._ended() from error

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over all processes, in place.

        Raises:
            SurefootError: another process has ended.
        """
        import torch.distributed as dist

        try:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size
        except RuntimeError as error:
            raise self._ended() from error

    def _ended(self) -> SurefootError:
        return SurefootError(
            f"another of the {self.size} processes that share each batch has ended, or can't be reached; the last "
            "checkpoint is kept"
        )

    def part(self, rows: int) -> slice:
        """The share of this process in so many rows."""
        own = rows // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def sources(self, given: Mapping[str, Source] | Source, agent: Agent) -> dict[str, Source]:
        """Sources that give this process its share of each batch."""
        return {name: SharedSource(source, self, agent) for name, source in as_sources(given).items()}

    def check(self, agent: Agent, batch_size: int) -> int:
        """Rows of a batch that this process learns from.

        Raises:
            ConfigError: an agent whose batches can't be shared, or rows that can't be shared equally.
        """
        if move_noise(agent):  # by noise that each process would draw for its own rows alone
            raise ConfigError(f"{agent.name}: processes that share a batch can't shift its images: set algo.shift=0")
        for update in agent.updates():
            fits = isinstance(update, Update) and update.repeat == 1 and update.rows is None and not update.noise
            if not (agent.row_separable and fits and isinstance(update.source, str)):
                raise ConfigError(
                    f"{agent.name}: its losses are not means over the rows of one batch, so processes can't share it"
                )
        if batch_size % self.size:
            raise ConfigError(f"batches of {batch_size} rows can't be shared equally among {self.size} processes")
        return batch_size // self.size

    def lead(self, learner: Any) -> None:
        """Let a `Learner` average its gradients before each step of its optimisers."""
        for optimizer in learner.optimizers:
            optimizer.average = self.average


class SharedSource:
    """A source of which each process gets its share of the rows."""

    def __init__(self, whole: Source, share: Share, agent: Agent) -> None:
        self.whole, self.share, self.agent = whole, share, agent
        self._needs_whole = type(agent).prepare_full_batch is not Agent.prepare_full_batch

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """As `Source.bind`, for the share alone."""
        if len(seeds) > 1:
            raise ConfigError(f"{len(seeds)} seeds together can't share batches with other processes: one at a time")
        self.whole.bind(seeds, rows * self.share.size, device)

    def rows(self, step: int) -> Tensor:
        """(S, rows) of all processes."""
        return self.whole.rows(step)

    def gather(self, indices: Tensor, out: Any = None) -> Batch:
        """The share of this process."""
        if not self._needs_whole:
            return self.whole.gather(indices[..., self.share.part(indices.shape[-1])].contiguous())
        dim, part = indices.dim() - 1, self.share.part(indices.shape[-1])
        batch = self.agent.prepare_full_batch(self.whole.gather(indices))
        return {name: value.narrow(dim, part.start, part.stop - part.start) for name, value in batch.items()}
