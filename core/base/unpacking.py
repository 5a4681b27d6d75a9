"""How much a received file may unpack to, and NPZ archives read within that."""

from __future__ import annotations

import math
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import psutil

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.schema import shown

Array = np.ndarray[Any, Any]

VARIABLE = "SUREFOOT_MAX_UNPACKED_MB"
ALWAYS = 256 << 20
"""Bytes that a file of any size may unpack to."""
EXPANSION = 64
"""Times its own size that a larger file may: ten times what recorded data reach, a sixteenth of what a bomb does."""
FREE_SHARE = 0.4
"""Of the free memory that a file's arrays may take: making a dataset of them takes as much again."""
MOST_MEMBERS, MOST_DIRECTORY_BYTES = 10_000, 4 << 20
"""Of a zip archive: its list of members is read into memory before anything else."""


def unpack_limit(file_bytes: int) -> int:
    """Bytes that the arrays of a file of this size may take, all together.

    `EXPANSION` times the size but at least `ALWAYS`, or the megabytes in the environment variable
    SUREFOOT_MAX_UNPACKED_MB; in any case at most `FREE_SHARE` of the free memory.

    Raises:
        ConfigError: the variable holds no number above 0.
    """
    wanted: float = max(ALWAYS, EXPANSION * file_bytes)
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


def read_npz(
    path: str | os.PathLike[str], wanted: Callable[[str], bool], error: type[SurefootError]
) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a NumPy archive whose names are wanted, and the names of all.

    Sizes in the archive's list and shapes in the arrays' headers are checked before anything is allocated, checksums
    while it is read. Python objects are never loaded: arrays hold numbers, truth values or text.

    Raises:
        FileNotFoundError: there is no such file.
        SurefootError: of the kind `error`: it is damaged, holds something else, or unpacks to more than `unpack_limit`.
    """
    path = pathlib.Path(path)
    limit = unpack_limit(path.stat().st_size)
    try:
        with open(path, "rb") as file:
            _check_directory(file, path.stat().st_size)
            with zipfile.ZipFile(file) as archive:
                return _members(archive, wanted, limit, path, error)
    except (SurefootError, FileNotFoundError):
        raise
    except Exception as failure:  # zipfile, zlib, and numpy's header parser down to tokenizer errors
        reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        raise error(f"{path}: is a damaged NPZ file ({reason}); fetch or write it again") from failure


def _members(
    archive: zipfile.ZipFile,
    wanted: Callable[[str], bool],
    limit: int,
    path: pathlib.Path,
    error: type[SurefootError],
) -> tuple[dict[str, Array], list[str]]:
    arrays: dict[str, Array] = {}
    names, total = [], 0
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
        total += max(member.file_size, count * max(dtype.itemsize, 4))  # numbers become float32
        if total > limit:
            raise error(f"{path}: {too_much(total, limit)}")
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
