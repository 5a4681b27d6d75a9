"""`Frames`: a column of pictures by number, each of which is held once however many rows and columns show it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.nn.native import native
from surefoot.data.derived import Derived, computed

Array = np.ndarray[Any, Any]

OWN = -1
"""In place of a row: the next picture is none that a row has as its own."""
COMPARED_BYTES = 32 << 20
"""Bytes of pictures that are compared at once."""


@dataclasses.dataclass(frozen=True)
class Frames:
    """A column of n rows, each a number: of one of N pictures, or N and above, of one of T further ones.

    The picture that follows a step is the one that the next step begins with, so both columns have the same N pictures
    and differ in their numbers; what is further is what followed the last steps of episodes. On the CPU the pictures
    are the dataset's own memory or mapped file, which is not copied.
    """

    numbers: Tensor  # (n,) int64 in [0, N + T)
    pictures: Tensor  # (N, ...), of which nothing may be written
    further: Tensor  # (T, ...); T = 0 on a GPU, where they stand behind the others

    def __len__(self) -> int:
        """Number of rows n."""
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one picture."""
        return tuple(self.pictures.shape[1:])

    def gather(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(k, ...) pictures of (k,) int64 rows in [0, n), written into `out` where it is given."""
        wanted = self.numbers.index_select(0, rows)
        if out is None:
            out = torch.empty((len(rows), *self.shape), dtype=self.pictures.dtype, device=self.pictures.device)
        if not len(self.further):
            _gather(self.pictures, wanted, out)
            return out
        own = wanted - len(self.pictures)
        places = (own >= 0).nonzero().squeeze(1)
        _gather(self.pictures, wanted.clamp(max=len(self.pictures) - 1), out)
        if len(places):
            out.index_copy_(0, places, self.further.index_select(0, own.index_select(0, places)))
        return out


def framed(
    own: Array, following: Array | None, rows: Array, device: torch.device, derived: Derived | None
) -> tuple[Frames, Frames | None]:
    """The pictures of rows and, where they are given, those that followed, held once together.

    Args:
        own: (N, ...) of a dataset's rows.
        following: (N, ...) what followed each, or None: not read.
        rows: (n,) int64 rows of the dataset that are taken.
        device: where batches come out.
        derived: of the dataset: where numbers and further pictures are kept; None: memory.

    Returns:
        Of the rows; of what followed, or None.

    Raises:
        DataError: the disk is full.
    """
    taken = torch.from_numpy(rows)
    pictures = _shared(own)
    further = pictures[:0]
    numbers: Array | None = None
    if following is not None:
        followed = next_rows(own, following, derived)
        alone = np.flatnonzero(followed == OWN)
        numbers = np.where(followed == OWN, 0, followed)
        numbers[alone] = len(own) + np.arange(len(alone))
        if len(alone) == len(own):
            further = _shared(following)
        elif len(alone):
            shape = (len(alone), *following.shape[1:])
            what, inputs = ["further pictures"], [following, alone]
            further = _shared(
                computed(derived, what, inputs, shape, following.dtype, lambda some: following[alone[some]])
            )
    if device.type != "cpu":
        pictures, further = torch.cat([pictures.to(device), further.to(device)]), further[:0].to(device)
    first = Frames(taken.to(device), pictures, further)
    if numbers is None:
        return first, None
    return first, Frames(torch.from_numpy(numbers[rows]).to(device), pictures, further)


def next_rows(own: Array, following: Array, derived: Derived | None = None) -> Array:
    """(N,) int64: the row that has what followed a row as its own picture: the next one, else the row itself, or `OWN`.

    Args:
        own: (N, ...) pictures of rows.
        following: (N, ...) what followed each.
        derived: of the dataset; None: the result is made in memory.
    """
    most = max(1, COMPARED_BYTES // max(1, own[:1].nbytes))

    def found(some: slice) -> Array:
        result = np.full(some.stop - some.start, OWN, np.int64)
        for start in range(some.start, some.stop, most):
            stop = min(start + most, some.stop)
            after, place = following[start:stop], result[start - some.start : stop - some.start]
            behind = own[start + 1 : stop + 1]  # one less than `after` at the end
            same = np.flatnonzero(_equal(after[: len(behind)], behind))
            place[same] = start + same + 1
            rest = np.flatnonzero(place == OWN)
            same = rest[_equal(after[rest], own[start + rest])]
            place[same] = start + same
        return result

    return computed(derived, ["next pictures"], [own, following], (len(own),), np.int64, found)


def _equal(one: Array, other: Array) -> Array:
    """(n,) bool: which of n pictures are the same."""
    same: Array = (one == other).all(axis=tuple(range(1, one.ndim)))
    return same


def _gather(pictures: Tensor, numbers: Tensor, out: Tensor) -> None:
    if not native.gather(pictures, numbers, out):
        torch.index_select(pictures, 0, numbers, out=out)


def _shared(pictures: Array) -> Tensor:
    """The array's own memory as a tensor."""
    contiguous = np.ascontiguousarray(pictures)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written
        return torch.from_numpy(contiguous)
