"""`Frames`: a dataset's column of pictures by number (`data.pictures`) on a device, for batches."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.nn.native import native
from surefoot.data.derived import blocks
from surefoot.data.pictures import Pictures

Array = np.ndarray[Any, Any]

COPIED_BYTES = 64 << 20
"""Bytes of pictures that go to a GPU at once."""


@dataclasses.dataclass(frozen=True)
class Frames:
    """A column of n rows, each a number, as `data.pictures.Pictures`: k >= 0 of one of P pictures, -1 - k of a further.

    On the CPU the pictures are the dataset's own memory or mapped file, which is not copied.
    """

    numbers: Tensor  # (n,) int64 in [-T, P)
    pictures: Tensor  # (P, ...), of which nothing may be written
    further: Tensor  # (T, ...); T = 0 of a dataset on a GPU, where all are of one kind
    in_order: bool = False  # row k shows picture k: nothing is looked up

    def __len__(self) -> int:
        """Number of rows n."""
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one picture."""
        return tuple(self.pictures.shape[1:])

    def gather(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(k, ...) pictures of (k,) int64 rows in [0, n), written into `out` where it is given."""
        wanted = rows if self.in_order else self.numbers.index_select(0, rows)
        if out is None:
            out = torch.empty((len(rows), *self.shape), dtype=self.pictures.dtype, device=self.pictures.device)
        if self.in_order or not len(self.further):
            _gather(self.pictures, wanted, out)
            return out
        if out.device.type != "cpu":  # a GPU is not waited for
            own = self.pictures.index_select(0, wanted.clamp(min=0))
            others = self.further.index_select(0, (-1 - wanted).clamp(min=0))
            return torch.where((wanted >= 0).view(-1, *[1] * len(self.shape)), own, others, out=out)
        places = (wanted < 0).nonzero().squeeze(1)
        _gather(self.pictures, wanted.clamp(min=0) if len(places) else wanted, out)
        if len(places):
            out.index_copy_(0, places, self.further.index_select(0, -1 - wanted.index_select(0, places)))
        return out


def framed(columns: Mapping[str, Pictures], rows: Array, device: torch.device) -> dict[str, Frames]:
    """Columns of a dataset's pictures, for batches on a device.

    Args:
        columns: name -> column; those that share pictures continue to do so.
        rows: (n,) int64 rows of the dataset that are taken.
        device: where batches come out; on a GPU it gets what these rows show and nothing else.
    """
    taken = {key: column.select_rows(rows) for key, column in columns.items()}
    if device.type == "cpu":
        return {key: _on_cpu(one) for key, one in taken.items()}
    groups: dict[tuple[int, int], list[str]] = {}
    for key, one in taken.items():
        groups.setdefault((id(one.pictures), id(one.further)), []).append(key)
    found: dict[str, Frames] = {}
    for keys in groups.values():
        places = np.unique(np.concatenate([taken[key].numbers for key in keys]))
        first = taken[keys[0]]
        pictures = torch.empty((len(places), *first.shape[1:]), dtype=torch.uint8, device=device)
        for some in blocks(len(places), max(1, COPIED_BYTES // max(1, first.picture_bytes))):
            pictures[some] = torch.from_numpy(first.at(places[some])).to(device)
        for key in keys:
            numbers = torch.from_numpy(np.searchsorted(places, taken[key].numbers))
            found[key] = Frames(numbers.to(device), pictures, pictures[:0])
    return {key: found[key] for key in taken}


def _on_cpu(column: Pictures) -> Frames:
    in_order = bool((column.numbers == np.arange(len(column))).all())
    return Frames(torch.from_numpy(column.numbers), _shared(column.pictures), _shared(column.further), in_order)


def _gather(pictures: Tensor, numbers: Tensor, out: Tensor) -> None:
    if not native.gather(pictures, numbers, out):
        torch.index_select(pictures, 0, numbers, out=out)


def _shared(pictures: Array) -> Tensor:
    """The array's own memory as a tensor."""
    contiguous = np.ascontiguousarray(pictures)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written
        return torch.from_numpy(contiguous)
