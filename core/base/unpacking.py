"""How much a received file may unpack to, and NPZ archives read within that."""

from __future__ import annotations

import math
import os
import pathlib
import zipfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
import psutil

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.files import open_regular, why
from surefoot.core.base.schema import shown

Array = np.ndarray[Any, Any]

VARIABLE = "SUREFOOT_MAX_UNPACKED_MB"
ALWAYS = 256 << 20
"""Bytes that a file of any size may unpack to."""
EXPANSION = 64
"""Times its own size that a larger file may: ten times what recorded data reach, a sixteenth of what a bomb does."""
FREE_SHARE = 0.4
"""Of the free memory that a file's arrays may take: making a dataset of them takes as much again."""
PICTURE_BYTES = 64 << 20
"""Bytes of one picture, with the frames and colors stacked in it: ten times those of full HD in colors."""
MOST_MEMBERS, MOST_DIRECTORY_BYTES = 10_000, 4 << 20
"""Of a zip archive: its list of members is read into memory before anything else."""


def unpack_limit(file_bytes: int) -> int:
    """Bytes that the arrays of numbers in a file of this size may take, all together.

    `EXPANSION` times the size but at least `ALWAYS`, or the megabytes in the environment variable
    SUREFOOT_MAX_UNPACKED_MB; in any case at most `FREE_SHARE` of the free memory.

    Raises:
        ConfigError: the variable holds no number above 0.
    """
    return _limit(max(ALWAYS, EXPANSION * file_bytes))


def memory_limit() -> int:
    """Bytes that pictures and numbers of a file may take, all together, whatever its size.

    Pictures of a simulator and videos are a hundredth of their pixels without being bombs, so that only the memory
    bounds them: `FREE_SHARE` of the free memory, or the megabytes in SUREFOOT_MAX_UNPACKED_MB where they are fewer.

    Raises:
        ConfigError: as `unpack_limit`.
    """
    return _limit(math.inf)


def _limit(wanted: float) -> int:
    text = os.environ.get(VARIABLE)
    if text:
        try:
            wanted = float(text) * (1 << 20)
        except ValueError:
            wanted = math.nan
        if not 0 < wanted < math.inf:
            raise ConfigError(f"{VARIABLE} is {shown(text)}, must be a number of megabytes above 0")
    return int(min(wanted, FREE_SHARE * psutil.virtual_memory().available))


def too_much(needed: int, limit: int) -> str:
    """The clause of a refusal, after the name of the file or of the array."""
    return (
        f"unpacks to {needed} bytes, more than the {limit} that a file of its size or the free memory allows; if you "
        f"trust it, set {VARIABLE}={math.ceil(needed / (1 << 20))} or free memory"
    )


def too_many_pictures(needed: int, limit: int) -> str:
    """The clause of a refusal where pictures, with the numbers beside them, need more than `memory_limit`."""
    return (
        f"its pictures and numbers unpack to {needed} bytes, more than the {limit} that the free memory or {VARIABLE} "
        f"allows; free memory, keep fewer or smaller pictures, or raise {VARIABLE} where it is set"
    )


def too_large_a_picture(shape: Sequence[int], needed: int) -> str:
    """The clause of a refusal of a picture above `PICTURE_BYTES`, after the name of what holds it."""
    return (
        f"has pictures of shape {tuple(shape)}, {needed} bytes each, more than the {PICTURE_BYTES} that one may have; "
        "scale them down or crop them where they are made"
    )


def is_picture(shape: Sequence[int], dtype: Any) -> bool:
    """Whether an array of this shape, rows included, and dtype holds pictures: readers keep those as bytes."""
    return len(shape) >= 3 and np.dtype(dtype) == np.uint8


class Unpacked:
    """What the arrays of one file take in memory, added up from its metadata before they are read.

    Numbers count as the float32 that they become, or as they are where a reader keeps them so; all together they may
    take `unpack_limit`. Pictures count as bytes; one may have `PICTURE_BYTES`, and all with the numbers `memory_limit`.

    Args:
        name: of the file, for refusals.
        file_bytes: its size.
        error: kind of the refusals.
    """

    def __init__(self, name: object, file_bytes: int, error: type[SurefootError]) -> None:
        self.name, self.error = name, error
        self.limit, self.memory_limit = unpack_limit(file_bytes), memory_limit()
        self.numbers = self.pictures = 0

    def add(self, key: str, shape: Sequence[int], dtype: Any, as_is: bool = False, held: int = 0) -> None:
        """Count an array.

        Args:
            key: its name.
            shape: with the rows.
            dtype: in the file.
            as_is: whether its reader keeps that dtype.
            held: bytes that it takes while it is read, where those are more.

        Raises:
            SurefootError: of the kind `error`, as `add_numbers` and `add_pictures`.
        """
        count, itemsize = math.prod(int(length) for length in shape), np.dtype(dtype).itemsize
        if is_picture(shape, dtype):
            self.add_pictures(key, shape[1:], max(count, held))
        else:
            self.add_numbers(max(held, count * (itemsize if as_is else max(itemsize, 4))))

    def add_numbers(self, needed: int) -> None:
        """Count bytes of numbers; raises an error where all of them are more than may be, or than the memory holds."""
        self.numbers += needed
        if self.numbers > self.limit:
            raise self.error(f"{self.name}: {too_much(self.numbers, self.limit)}")
        self._check_memory()

    def add_pictures(self, key: str, shape: Sequence[int], needed: int) -> None:
        """Count bytes of pictures of (H, W, ...) `shape`; raises an error where one or all are too much."""
        check_picture(f"{self.name}: {key!r}", shape, self.error)
        self.pictures += needed
        self._check_memory()

    def _check_memory(self) -> None:
        if self.pictures and self.numbers + self.pictures > self.memory_limit:
            raise self.error(f"{self.name}: {too_many_pictures(self.numbers + self.pictures, self.memory_limit)}")


def check_picture(name: str, shape: Sequence[int], error: type[SurefootError]) -> None:
    """Refuse a picture of (H, W, ...) bytes that is above `PICTURE_BYTES`; raises an error of the kind `error`."""
    needed = math.prod(int(length) for length in shape)
    if needed > PICTURE_BYTES:
        raise error(f"{name} {too_large_a_picture(shape, needed)}")


def check_free(name: str, needed: int, error: type[SurefootError]) -> None:
    """Refuse bytes that are not free; raises an error of the kind `error`."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise error(f"{name} take {needed} bytes together, and {free} are free; free memory, or read fewer at once")


def read_npz(
    path: str | os.PathLike[str],
    wanted: Callable[[str], bool],
    error: type[SurefootError],
    as_is: Callable[[str], bool] = lambda name: False,
) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a NumPy archive whose names are wanted, and the names of all.

    Sizes in the archive's list and shapes in the arrays' headers are checked before anything is allocated, checksums
    while it is read. Python objects are never loaded: arrays hold numbers, truth values or text.

    Args:
        path: of the archive.
        wanted: whether an array of this name is read.
        error: kind of the refusals.
        as_is: whether the caller keeps the dtype of an array of this name; others count as the float32 they become.

    Raises:
        FileNotFoundError: there is no such file.
        SurefootError: of the kind `error`: it is damaged, holds something else, or unpacks to more than
            `Unpacked` allows.
    """
    path = pathlib.Path(path)
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise error(f"{path}: can't be read ({why(failure)})") from failure
    try:
        with file:
            size = os.fstat(file.fileno()).st_size
            unpacked = Unpacked(path, size, error)
            _check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                return _members(archive, wanted, as_is, unpacked, path, error)
    except SurefootError:
        raise
    except Exception as failure:  # zipfile, zlib, and numpy's header parser down to tokenizer errors
        reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        raise error(f"{path}: is a damaged NPZ file ({reason}); fetch or write it again") from failure


def _members(
    archive: zipfile.ZipFile,
    wanted: Callable[[str], bool],
    as_is: Callable[[str], bool],
    unpacked: Unpacked,
    path: pathlib.Path,
    error: type[SurefootError],
) -> tuple[dict[str, Array], list[str]]:
    arrays: dict[str, Array] = {}
    names: list[str] = []
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in names:
            raise error(f"{path}: holds {name!r} twice; keep one of them")
        names.append(name)
        if not wanted(name):
            continue
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(stream)
        if dtype.kind not in "biufUS":
            objects = "python objects, which are never loaded" if dtype.hasobject else f"values of type {dtype}"
            raise error(f"{path}: {name!r} holds {objects}; save plain numbers")
        count = math.prod(int(length) for length in shape)
        if min(shape, default=1) < 0 or count * dtype.itemsize > member.file_size:
            raise error(f"{path}: {name!r} says that it has shape {shape} but holds {member.file_size} bytes")
        unpacked.add(name, shape, dtype, as_is(name), member.file_size)
        with archive.open(member) as stream:
            arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
            if stream.read(1):  # at the end zipfile compares the checksum
                raise error(f"{path}: {name!r} holds more bytes than its shape {shape} needs")
    return arrays, names


def _check_directory(file: IO[bytes], size: int) -> None:
    """Refuse a zip archive whose list of members would fill the memory; raises ValueError."""
    begin = max(0, size - (1 << 16) - 22)
    file.seek(begin)
    tail = file.read()
    at = len(tail) - 22 if tail[-22:-18] == b"PK\x05\x06" and tail[-2:] == b"\0\0" else tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise ValueError("it has no end")
    entries, length = (
        int.from_bytes(tail[at + 10 : at + 12], "little"),
        int.from_bytes(tail[at + 12 : at + 16], "little"),
    )
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":  # above 2 GB the numbers stand in a record before it
        file.seek(min(size, int.from_bytes(tail[at - 12 : at - 4], "little")))
        record = file.read(56)
        entries, length = (int.from_bytes(record[i : i + 8], "little") for i in (32, 40))
    if entries > MOST_MEMBERS or length > MOST_DIRECTORY_BYTES:
        raise ValueError(f"it says that it has {entries} members, listed in {length} bytes")
