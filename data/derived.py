"""Arrays that are made of a dataset's, some rows at a time: in memory, or in mapped files that processes share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, DataError
from surefoot.core.base.files import open_regular, read_json, why, write_json
from surefoot.core.base.schema import Number, Record, Text
from surefoot.data.files import sha256_of

Array = np.ndarray[Any, Any]
Rows = Callable[[slice], Array]

PREPARED = "prepared"
"""What folders of such files are called."""
BLOCK = 65_536
"""Rows that are made at once."""
_SIDE = Record(
    {"bytes": Number(0, whole=True), "changed_ns": Number(whole=True), "sha256": Text(64), "what": Text(100)}
)
"""What stands beside each file: what it should be, and when it was written."""


def computed(
    derived: Derived | None, what: Sequence[Any], inputs: Sequence[Array], shape: Sequence[int], dtype: Any, rows: Rows
) -> Array:
    """An array of which a block of rows depends on what `what` says and on the same rows of `inputs`, or of a whole.

    Args:
        derived: of the dataset; None: the array is made in memory.
        what: the name of the operation, then numbers and texts that its result depends on.
        inputs: arrays that it depends on.
        shape: of the result, rows first.
        dtype: of the result.
        rows: gives the rows of a slice.

    Raises:
        DataError: the disk is full.
    """
    if derived is not None:
        return derived.array(what, inputs, shape, dtype, rows)
    if shape[0] <= BLOCK:
        return np.ascontiguousarray(rows(slice(0, shape[0])), dtype)
    found = np.empty(tuple(shape), dtype)
    for some in blocks(shape[0]):
        found[some] = rows(some)
    return found


def blocks(rows: int, most: int = BLOCK) -> Iterator[slice]:
    """Slices of at most `most` rows, one after another."""
    for start in range(0, rows, most):
        yield slice(start, min(start + most, rows))


def content_digest(array: Array) -> str:
    """SHA-256 of an array's numbers in rows' order, without a copy of them all."""
    total = hashlib.sha256(f"{array.dtype.str}|{array.shape}|".encode())
    for some in blocks(len(array)) if array.ndim else ():
        total.update(np.ascontiguousarray(array[some]).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def mapped(path: str | os.PathLike[str], dtype: Any, shape: Sequence[int], *, private: bool, offset: int = 0) -> Array:
    """The array in a regular file, of which pages are read as they are needed and given back where memory is short.

    Args:
        path: of the file; a symbolic link is refused.
        dtype: of the numbers.
        shape: of the array, without a number that the file does not hold.
        private: whether it may be written to, which changes this process's copy of a page alone; else read-only.
        offset: bytes before it.

    Raises:
        OSError: the file can't be read, is none, or is shorter.
    """
    if os.path.islink(path):
        raise OSError(f"{path} is a symbolic link")
    if not math.prod(shape):
        return np.empty(tuple(shape), dtype)
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size < offset + math.prod(shape) * np.dtype(dtype).itemsize:
            raise OSError(f"{path} is too short")
        return np.memmap(file, dtype, "c" if private else "r", offset, tuple(shape))  # type: ignore[call-overload,no-any-return]


class Derived:
    """Mapped files of a folder, each made once, by whichever process asks for it first.

    A file is named after what it is made of: the content of its inputs and the operation's settings. So seeds, runs and
    algorithms that prepare the same data alike share it, and a file of other data is never taken for it. The folder may
    be deleted whenever no run uses it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Arrays in `folder`, which is made when it is needed."""
        self.folder = pathlib.Path(folder)
        self._known: dict[tuple[Any, ...], tuple[str, Array]] = {}

    def know(self, array: Array, key: str) -> None:
        """Say what an array holds, so that it need not be read to find out: equal keys, equal content."""
        self._known[_place(array)] = (key, array)

    def key_of(self, array: Array) -> str:
        """What an array holds: what is known of it, else a digest of its numbers."""
        known = self._known.get(_place(array))
        return f"content {content_digest(array)}" if known is None else known[0]

    def array(
        self, what: Sequence[Any], inputs: Sequence[Array], shape: Sequence[int], dtype: Any, rows: Rows
    ) -> Array:
        """As `computed`; in a file, which is made where it is not there or was changed since.

        Raises:
            DataError: the disk is full, or the folder can't be written.
        """
        reported = [*what, [self.key_of(one) for one in inputs], np.dtype(dtype).str, [int(size) for size in shape]]
        key = hashlib.sha256(json.dumps(reported).encode()).hexdigest()
        path = self.folder / f"{key[:40]}.bin"
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not _sound(path, size):
                with self._alone():
                    if not _sound(path, size):  # nor made by whoever was alone before
                        self._make(path, size, str(what[0]), shape, dtype, rows)
            found = mapped(path, dtype, shape, private=True)
        except OSError as failure:
            raise DataError(
                f"{self.folder}: prepared rows can't be kept there: {why(failure)}; they take {size / 1e9:,.2f} GB"
            ) from failure
        self.know(found, f"derived {key}")
        return found

    def _make(self, path: pathlib.Path, size: int, what: str, shape: Sequence[int], dtype: Any, rows: Rows) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise DataError(
                f"{self.folder}: prepared rows ({what}) take {size / 1e9:,.2f} GB, and the disk has "
                f"{free / 1e9:,.2f} GB free: free some space"
            )
        aside, side = path.with_suffix(".part"), path.with_suffix(".json")
        side.unlink(missing_ok=True)
        total = hashlib.sha256()
        try:
            with open(aside, "wb") as file:
                for some in blocks(shape[0]):
                    text = np.ascontiguousarray(rows(some), dtype).reshape(-1).view(np.uint8).data
                    total.update(text)
                    file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if aside.stat().st_size != size:
                raise DataError(f"{path}: internal error: {aside.stat().st_size} bytes of {what} in place of {size}")
            facts = {"bytes": size, "changed_ns": aside.stat().st_mtime_ns, "sha256": total.hexdigest(), "what": what}
            os.replace(aside, path)
            write_json(side, facts)
        finally:
            aside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process makes a file meanwhile; one that dies lets go."""
        with open(self.folder / "lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _place(array: Array) -> tuple[Any, ...]:
    """Where an array lies, and how: those that are known are kept, so that nothing else comes to lie there."""
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def _sound(path: pathlib.Path, size: int) -> bool:
    """Whether the file is there, whole, and as it was written: by its time of change, else by its SHA-256."""
    side = path.with_suffix(".json")
    if not path.is_file() or path.is_symlink() or not side.is_file() or side.is_symlink():
        return False
    try:
        reported = read_json(side, _SIDE)
    except CheckpointError:
        return False
    facts = path.stat()
    if reported["bytes"] != size or facts.st_size != size:
        return False
    return facts.st_mtime_ns == reported["changed_ns"] or sha256_of(path) == reported["sha256"]
