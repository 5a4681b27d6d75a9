"""Which rows an off-policy agent learns from: of a replay buffer that grows, and of a dataset beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.errors import DataError
from surefoot.core.random import STEPS_PER_BLOCK, generator
from surefoot.data.collect import TransitionBuffer
from surefoot.data.samplers import uniform_rows
from surefoot.data.store import Batch, Store, Workspace


class ReplayRows:
    """Rows drawn uniformly, with replacement, from what is in the buffer when they are asked for.

    Row (t * S + s) * N + e of the buffer is step t of environment e of seed s; seed s learns from its own rows only.
    Uniform numbers come from the counter stream of (seed, "batch", block) and are scaled to the present size, so
    that a row depends on nothing but the seed, the training step and what the buffer holds.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        buffer: TransitionBuffer,
        rows: int,
        device: torch.device,
        dataset_rows: int = 0,
        from_dataset: Tensor | None = None,
    ) -> None:
        """Draw `rows` rows a training step.

        Args:
            seeds: S, a stream each.
            buffer: of S * N rows a step.
            rows: rows per training step.
            device: where the indices go.
            dataset_rows: size of the dataset, where some places of a batch are rows of one.
            from_dataset: (rows,) bool, those places.
        """
        self.seeds, self.buffer, self.rows, self.device = list(seeds), buffer, rows, device
        self.num_envs = buffer.num_envs // len(self.seeds)
        self.dataset_rows, self.from_dataset = dataset_rows, from_dataset
        self._first = torch.arange(len(self.seeds), device=device).unsqueeze(1) * self.num_envs
        self._block = -1
        self._uniform: tuple[Tensor, ...] = ()

    def at(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0.

        Raises:
            DataError: the buffer holds no transition of some seed.
        """
        block, offset = divmod(step, STEPS_PER_BLOCK)
        if block != self._block:
            shape = (STEPS_PER_BLOCK, self.rows)
            drawn = [generator(seed, "batch", block).random(shape) for seed in self.seeds]
            self._uniform = torch.from_numpy(np.stack(drawn)).to(self.device).unbind(1)
            self._block = block
        uniform = self._uniform[offset]
        rows = self._of_buffer(uniform)
        if self.from_dataset is None:
            return rows
        return torch.where(self.from_dataset, uniform_rows(uniform, self.dataset_rows), rows)

    def _of_buffer(self, uniform: Tensor) -> Tensor:
        if len(self.buffer) == 0:
            raise DataError("there are no rows to sample from: act in the environment before the first training step")
        if not self.buffer.all_valid:
            return self._of_valid(uniform, self.buffer.valid)
        rows = uniform_rows(uniform, len(self.buffer) // len(self.seeds))
        if len(self.seeds) == 1:
            return rows
        step = torch.div(rows, self.num_envs, rounding_mode="floor")
        return step * self.buffer.num_envs + self._first + (rows - step * self.num_envs)

    def _of_valid(self, uniform: Tensor, valid: Tensor) -> Tensor:
        """Counts the valid rows of each seed and finds the k-th, so that nothing leaves the device."""
        seeds = len(self.seeds)
        valid = valid.view(-1, seeds, self.num_envs).transpose(0, 1).reshape(seeds, -1)
        counts = valid.cumsum(1)  # of each seed's rows in its own order
        wanted = (uniform * counts[:, -1:]).long() + 1
        rows = torch.searchsorted(counts, wanted)
        step = torch.div(rows, self.num_envs, rounding_mode="floor")
        return step * self.buffer.num_envs + self._first + (rows - step * self.num_envs)


class FinishedRows(ReplayRows):
    """Rows of episodes that are over, drawn uniformly: those whose returns-to-go are known."""

    _begun = False

    def _of_buffer(self, uniform: Tensor) -> Tensor:
        known = self.buffer.valid & ~self.buffer["returns_to_go"][: len(self.buffer)].isnan()
        if not self._begun or known.device.type == "cpu":  # a GPU is asked once
            if not known.view(-1, len(self.seeds), self.num_envs).any(2).any(0).all():
                raise DataError(
                    "no episode is over yet whose steps could be learned from: raise algo.initial_steps to at least "
                    f"the longest episode's length in each of the {self.num_envs} environments, which share them"
                )
            self._begun = True
        return self._of_valid(uniform, known)


def places_from_dataset(rows: int, fraction: float, device: torch.device) -> Tensor:
    """(rows,) bool: a `fraction` of places spread evenly, the first among them, so that every slice has its share.

    With 0.5 the dataset has the even places, as in ikostrikov/rlpd.
    """
    upto = np.ceil(np.arange(rows + 1) * fraction - 1e-9)
    return torch.from_numpy(np.diff(upto) > 0).to(device)


class Mixture:
    """A dataset and a replay buffer as one source of batches: some places are rows of the one, some of the other."""

    def __init__(self, dataset: Store, buffer: TransitionBuffer, from_dataset: Tensor) -> None:
        """Both must have been made with the same columns in the same order.

        Raises:
            DataError: they differ.
        """
        if dataset.fields != buffer.fields:
            raise DataError(
                f"the dataset's columns {', '.join(dataset.fields)} and the replay buffer's {', '.join(buffer.fields)} "
                "are laid out differently: give the agent's `reads` in both"
            )
        self.dataset, self.buffer = dataset, buffer
        self._places = [from_dataset.nonzero().squeeze(1), (~from_dataset).nonzero().squeeze(1)]
        self._parts: dict[int, list[Workspace]] = {}

    def workspace(self, rows: int) -> Workspace:
        """Buffers for `gather` with indices of this shape, as `Store.workspace`."""
        return self.buffer.workspace(rows)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows), each of the source that its place belongs to."""
        sources: tuple[Any, Any] = (self.dataset, self.buffer)
        if out is None:
            groups = [s.gather_groups(indices[..., p]) for s, p in zip(sources, self._places, strict=True)]
            order = torch.argsort(torch.cat(self._places))
            dim = indices.dim() - 1
            return self.buffer.split({k: torch.cat([g[k] for g in groups], dim).index_select(dim, order)
                                      for k in groups[0]})  # fmt: skip
        parts = self._parts.get(id(out))
        if parts is None:
            sizes = [len(places) for places in self._places]
            parts = self._parts[id(out)] = [s.workspace(n) for s, n in zip(sources, sizes, strict=True)]
        for source, places, part in zip(sources, self._places, parts, strict=True):
            source.gather(indices[places], part)
            for key, rows in part.buffers.items():
                out.buffers[key].index_copy_(0, places, rows)
        return dict(out.batch)
