"""`Pictures`: a column of a dataset's pictures by number, each of which is held once however many rows show it.

The picture that follows a step is the one that the next step begins with. So `observations/KEY` and
`next_observations/KEY` have the same pictures and differ in their numbers; what is further is what followed the last
steps of episodes. Files and stores hold the pictures of the rows, the numbers of those that followed, and the further
ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.unpacking import is_picture
from surefoot.data.derived import Derived, blocks, computed

Array = np.ndarray[Any, Any]

OWN = -1
"""In place of a row: the next picture is none that a row has as its own."""
ALIGNMENT = 64
"""Bytes of a cache line."""
COMPARED_BYTES = 32 << 20
"""Bytes of pictures that are compared at once."""
OBSERVED, FOLLOWED, FURTHER = "observations/", "next_observations/", "further_observations/"
"""What names of columns begin with: of pictures before a step and after it, and of those that no row begins with."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pictures:
    """A column of n rows, each a number: k >= 0 of one of P pictures, -1 - k of one of T further ones.

    It is read as an array of shape (n, ...) is: by rows, slices, arrays of rows or of truth values, or whole by
    `np.asarray`, which copies. Nothing of it may be written.
    """

    numbers: Array  # (n,) int64 in [-T, P)
    pictures: Array  # (P, ...) uint8, also a mapped file; shared by columns
    further: Array  # (T, ...) uint8, shared too

    def __len__(self) -> int:
        """Number of rows n."""
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, ...), as of an array with a picture for each row."""
        return (len(self.numbers), *self.pictures.shape[1:])

    @property
    def ndim(self) -> int:
        """Dimensions of `shape`."""
        return self.pictures.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a picture's numbers."""
        return self.pictures.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that an array with a picture for each row would take; it takes fewer."""
        return len(self) * self.picture_bytes

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture."""
        return int(np.prod(self.pictures.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def __repr__(self) -> str:
        """Its dtype and shape, and how many pictures there are."""
        return f"Pictures({self.dtype}{list(self.shape)}, {len(self.pictures) + len(self.further)} pictures)"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A picture for each row, in memory."""
        whole = np.array(self[:])
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, rows: Any) -> Array:
        """The picture of a row, or (k, ...) those of several; of rows that lie in order in memory a view."""
        if isinstance(rows, tuple):
            first, *inner = rows
            found = self[first]
            return found[tuple(inner)] if isinstance(first, int | np.integer) else found[(slice(None), *inner)]
        wanted = self.numbers[rows]
        if np.ndim(wanted) == 0:
            return self._of(int(wanted))
        if isinstance(rows, slice) and len(wanted) and wanted[0] >= 0 and (np.diff(wanted) == 1).all():
            return self.pictures[wanted[0] : wanted[0] + len(wanted)]
        return self.at(wanted)

    def _of(self, number: int) -> Array:
        picture: Array = self.pictures[number] if number >= 0 else self.further[-1 - number]
        return picture

    def at(self, numbers: Array) -> Array:
        """(k, ...) copies of the pictures of these (k,) numbers."""
        found = np.empty((len(numbers), *self.pictures.shape[1:]), self.dtype)
        own = numbers >= 0
        found[own] = self.pictures[numbers[own]]
        found[~own] = self.further[-1 - numbers[~own]]
        return found

    def shares(self, other: Pictures) -> bool:
        """Whether another column has the same pictures in memory."""
        return self.pictures is other.pictures and self.further is other.further

    def select_rows(self, rows: Any) -> Pictures:
        """The column of some rows, of the same pictures: none is copied."""
        return dataclasses.replace(self, numbers=np.ascontiguousarray(self.numbers[rows]))


def aligned(shape: Sequence[int]) -> Array:
    """An array of bytes whose first lies at the beginning of a cache line: rows of it are copied a sixth faster."""
    count = math.prod(shape)
    room = np.empty(count + ALIGNMENT, np.uint8)
    offset = -room.ctypes.data % ALIGNMENT
    return room[offset : offset + count].reshape(shape)


def column_of(pictures: Array) -> Pictures:
    """An array (n, ...) with a picture for each row as a column, without a copy."""
    return Pictures(np.arange(len(pictures), dtype=np.int64), pictures, pictures[:0])


def shared(extras: Mapping[str, Any], derived: Derived | None) -> dict[str, Any]:
    """Extras in which each camera's pictures are held once: arrays of them become columns, found by comparing them.

    Args:
        extras: of a dataset; arrays or columns.
        derived: of the dataset: where numbers and further pictures are kept; None: memory.

    Raises:
        DataError: the disk is full.
    """
    found = dict(extras)
    for key, own in extras.items():
        if not key.startswith(OBSERVED) or not _holds_pictures(own):
            continue
        following = found.get(f"next_{key}")
        fits = following is not None and _holds_pictures(following) and following.shape == own.shape
        if fits and isinstance(own, np.ndarray):
            found[key], found[f"next_{key}"] = _compared(column_of(own), np.asarray(following), derived)
        elif fits and not (isinstance(following, Pictures) and following.shares(own)):
            found[key], found[f"next_{key}"] = _compared(own, np.asarray(following), None)
        elif isinstance(own, np.ndarray):
            found[key] = column_of(own)
    return found


def _holds_pictures(column: Any) -> bool:
    return is_picture(column.shape, column.dtype)


def _compared(own: Pictures, following: Array, derived: Derived | None) -> tuple[Pictures, Pictures]:
    """The column of the rows and that of what followed them, which share the pictures."""
    followed = next_rows(own.pictures if derived is not None else own, following, derived)
    alone = np.flatnonzero(followed == OWN)
    kept = own.further if (own.numbers < 0).any() else own.further[:0]
    numbers = own.numbers[followed]  # of those alone it is not read
    numbers[alone] = -1 - len(kept) - np.arange(len(alone))
    further = following
    if len(alone) < len(following):
        shape = (len(alone), *following.shape[1:])
        what, inputs = ["further pictures"], [following, alone]
        further = computed(derived, what, inputs, shape, following.dtype, lambda some: following[alone[some]])
    if len(kept):
        further = np.concatenate([kept, further])
    own = dataclasses.replace(own, further=further)
    return own, dataclasses.replace(own, numbers=numbers)


def next_rows(own: Any, following: Any, derived: Derived | None = None) -> Array:
    """(N,) int64: the row that has what followed a row as its own picture: the next one, else the row itself, or `OWN`.

    Args:
        own: (N, ...) pictures of rows.
        following: (N, ...) what followed each.
        derived: of the dataset, of arrays alone; None: the result is made in memory.
    """
    most = max(1, COMPARED_BYTES // max(1, own[:1].nbytes))

    def found(some: slice) -> Array:
        result = np.full(some.stop - some.start, OWN, np.int64)
        for start in range(some.start, some.stop, most):
            stop = min(start + most, some.stop)
            result[start - some.start : stop - some.start] = rows_of(
                own[start : stop + 1], following[start:stop], start
            )
        return result

    return computed(derived, ["next pictures"], [own, following], (len(own),), np.int64, found)


def rows_of(own: Array, after: Array, start: int) -> Array:
    """As `next_rows`, of a block of n rows from row `start` on; (n + 1 or n, ...) own pictures, (n, ...) next ones."""
    place = np.full(len(after), OWN, np.int64)
    behind = own[1:]  # one less than `after` at the end of the data
    same = np.flatnonzero(_equal(after[: len(behind)], behind))
    place[same] = start + same + 1
    rest = np.flatnonzero(place == OWN)
    same = rest[_equal(after[rest], own[rest])]
    place[same] = start + same
    return place


def _equal(one: Array, other: Array) -> Array:
    """(n,) bool: which of n pictures are the same."""
    same: Array = (one == other).all(axis=tuple(range(1, one.ndim)))
    return same


def written(own: Pictures, following: Pictures | None) -> tuple[Pictures, Array | None, Array]:
    """A camera as files hold it.

    Returns:
        The column of the rows, of which every picture is written; (n,) int64 of what followed each: k >= 0, the row
        that begins with it, or -1 - k, a further picture; (T, ...) the further pictures.
    """
    if following is None:
        return own, None, own.further[:0]
    first = np.full(len(own.pictures) + len(own.further), OWN, np.int64)  # what is further stands at the end, backwards
    first[own.numbers[::-1]] = np.arange(len(own))[::-1]  # of several rows with a picture the first
    numbers = first[following.numbers]
    alone = numbers == OWN
    further, place = np.unique(-1 - following.numbers[alone], return_inverse=True)
    numbers[alone] = -1 - place
    return own, numbers, following.at(-1 - further)


def gathered(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Extras in which cameras that show less than half of the pictures that they share have those alone, copied."""
    found = dict(extras)
    for key, own in extras.items():
        if not (key.startswith(OBSERVED) and isinstance(own, Pictures)):
            continue
        following = extras.get(f"next_{key}")
        columns = [own] if following is None else [own, following]
        if 2 * shown(*columns) < len(own.pictures) + len(own.further):
            own, numbers, further = written(own, following)
            found[key] = dataclasses.replace(column_of(np.array(own[:])), further=further)
            if numbers is not None:
                found[f"next_{key}"] = dataclasses.replace(found[key], numbers=numbers)
    return found


def read_back(name: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Columns as files hold them, in which pictures of what followed are numbers, as those of a dataset.

    Args:
        name: of the file, for errors.
        columns: with `observations/KEY`, `next_observations/KEY` and `further_observations/KEY`, the last of which is
            there where a number speaks of it, and is taken out.

    Raises:
        DataError: further pictures are there without numbers or of another shape, or a number is of none.
    """
    found = {key: column for key, column in columns.items() if not key.startswith(FURTHER)}
    for key in [key for key in columns if key.startswith(OBSERVED)]:
        camera, own, numbers = key.removeprefix(OBSERVED), columns[key], columns.get(f"next_{key}")
        further = columns.get(FURTHER + camera)
        numbered = numbers is not None and numbers.ndim == 1 and numbers.dtype.kind == "i" and _holds_pictures(own)
        if not numbered:
            if further is not None:
                raise DataError(f"{name}: holds {FURTHER + camera!r} without numbers in {f'next_{key}'!r}")
            continue
        assert numbers is not None
        further = own[:0] if further is None else further
        if further.shape[1:] != own.shape[1:] or further.dtype != own.dtype:
            raise DataError(
                f"{name}: {FURTHER + camera!r} is {further.dtype} of shape {further.shape}, and {key!r} {own.dtype} of "
                f"shape {own.shape}; they must agree"
            )
        check_numbers(f"{name}: {f'next_{key}'!r}", numbers, len(own), len(further))
        if len(numbers) != len(own):
            raise DataError(f"{name}: {f'next_{key}'!r} has {len(numbers)} rows but {key!r} has {len(own)}")
        found[key] = dataclasses.replace(column_of(own), further=further)
        found[f"next_{key}"] = Pictures(numbers.astype(np.int64, copy=False), own, further)
    stray = [key for key in columns if key.startswith(FURTHER) and OBSERVED + key.removeprefix(FURTHER) not in columns]
    if stray:
        raise DataError(f"{name}: holds {stray[0]!r} without {OBSERVED + stray[0].removeprefix(FURTHER)!r}")
    return found


def check_numbers(name: str, numbers: Array, pictures: int, further: int) -> None:
    """Refuse numbers of pictures that are not there; raises DataError."""
    for some in blocks(len(numbers)):
        wrong = np.flatnonzero((numbers[some] < -further) | (numbers[some] >= pictures))
        if len(wrong):
            row = some.start + int(wrong[0])
            raise DataError(
                f"{name}: row {row} names picture {int(numbers[row])}, and there are {pictures} and {further} further "
                "ones: damaged or changed since; write it again"
            )


def shown(*columns: Pictures) -> int:
    """How many different pictures columns that share them show."""
    return len(np.unique(np.concatenate([column.numbers for column in columns])))
