"""Reads HDF5 files that may be damaged or hostile without putting this process at risk.

The HDF5 library is C code that follows the file's inner pointers and lengths. The versions that h5py brings
differ in how well they check them: 28,000 damaged copies of a small gzip file never crashed HDF5 2.0 (h5py
3.16) when this was written, but 1.14, which earlier h5py wheels bring, has published crashes and unbounded
allocations, and none of that can be caught as a python exception. So the file is opened in a process of its
own, under a memory limit and a deadline; here only plain arrays of checked size arrive. That costs about
0.2 s per file. Our own files take the same road, after their checksum is compared: one road is easier to
trust than two.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from surefoot.core.base.children import start_python
from surefoot.core.base.errors import DataError
from surefoot.core.base.spec import IMAGE
from surefoot.core.base.unpacking import (
    PICTURE_BYTES,
    is_picture,
    memory_limit,
    too_large_a_picture,
    too_many_pictures,
    too_much,
    unpack_limit,
)
from surefoot.data.formats.flat import OWN_MARK
from surefoot.data.formats.named import NAMES
from surefoot.data.pictures import COMPARED_BYTES, FURTHER, OBSERVED, OWN, aligned, rows_of

Array = np.ndarray[Any, Any]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SEAL_BYTES = 512  # the HDF5 user block: the library leaves it alone, so a checksum of the rest fits there
SEAL_PREFIX = b"surefoot dataset, sha256 of the bytes after 512: "
BASE_SECONDS, BYTES_PER_SECOND = 60.0, 2e6  # deadline: slow disks and one slow core included
UNPACKED_PER_SECOND = 2e7  # and more time for what it unpacks to, a tenth of what a slow core does
MAX_HEADER_BYTES = 16 << 20
NEXT = "next_"
TOO_LARGE = 4  # the worker's exit code, with JSON of what is too large on its standard error
WORKER = pathlib.Path(__file__).with_name("hdf5_worker.py")


@dataclasses.dataclass(frozen=True)
class Contents:
    """What was read: the arrays that exist of those asked for, and what else the file names."""

    arrays: dict[str, Array]
    attributes: dict[str, Any]  # of the root group: strings and numbers
    names: list[str]  # every dataset in the file


def is_hdf5(path: pathlib.Path) -> bool:
    """Whether the signature stands at one of the first places where HDF5 allows it."""
    with open(path, "rb") as file:
        for offset in (0, 512, 1024, 2048):
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
    return False


def read_hdf5(
    path: pathlib.Path,
    keys: list[str],
    *,
    prefixes: list[str] | None = None,
    pattern: str = "",
    as_is: Sequence[str] = (),
    seconds: float | None = None,
    rows: tuple[int, int] | None = None,
    shapes_alone: bool = False,
    sealed: bool | None = None,
) -> Contents:
    """Read those of the named datasets that the file has, those whose names begin with a prefix or are like a pattern.

    Args:
        path: of the file.
        keys: names of datasets.
        prefixes: which names of datasets begin with.
        pattern: which their whole names match.
        as_is: what names begin with whose dtype the caller keeps; other numbers count as the float32 they become.
        seconds: until the file counts as damaged; None: 60 s, 1 s more per 2 MB, and 1 s per 20 MB that it unpacks to.
        rows: first and behind the last of the rows that are read, of each array; None: all.
        shapes_alone: read no numbers: arrays of the right dtype and shape that are none.
        sealed: whether the file carries our checksum, where it has been compared; None: compare it.

    Raises:
        DataError: the file is damaged, changed since surefoot wrote it, too large for the memory
            (`core.base.unpacking.Unpacked`), or took longer than `seconds`.
    """
    sealed = check_seal(path) if sealed is None else sealed
    size = path.stat().st_size
    deadline = BASE_SECONDS + size / BYTES_PER_SECOND if seconds is None else seconds
    request = {
        "keys": keys,
        "prefixes": prefixes or [],
        "pattern": pattern,
        "file_bytes": size,
        "limit": unpack_limit(size),
        "memory_limit": memory_limit(),
        "picture_limit": PICTURE_BYTES,
        "as_is": list(as_is),
        "seconds": deadline,
        "unpacked_per_second": UNPACKED_PER_SECOND,
        "rows": rows,
        "shapes_alone": shapes_alone,
    }
    arguments = [str(WORKER), json.dumps(request), str(path)]
    with start_python(*arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timers = [_started(deadline, stop)]

        def allow(needed: int) -> None:
            nonlocal deadline
            if seconds is None:
                deadline += needed / UNPACKED_PER_SECOND
                timers.pop().cancel()
                timers.append(_started(deadline, stop))

        try:
            contents = _receive(process, path, allow, shapes_alone)
            messages = process.stderr.read() if process.stderr is not None else b""
            process.wait()
        finally:
            timers.pop().cancel()
            process.kill()
    if late.is_set():
        raise DataError(f"{path}: reading it took longer than {deadline:.0f} s; the file is damaged")
    if process.returncode == TOO_LARGE:
        raise DataError(f"{path}: {_too_large(json.loads(messages.splitlines()[-1]), request)}")
    if process.returncode != 0 or contents is None:
        raise DataError(f"{path}: {_reason(messages, process.returncode)}; fetch or write the file again")
    if OWN_MARK in contents.attributes and not sealed:
        raise DataError(
            f"{path}: was written by surefoot but its checksum is gone: damaged or changed since; write it again"
        )
    return contents


def check_seal(path: pathlib.Path) -> bool:
    """Whether the file carries our checksum; compares it.

    Raises:
        DataError: the checksum doesn't fit the bytes.
    """
    with open(path, "rb") as file:
        block = file.read(SEAL_BYTES)
        if not block.startswith(SEAL_PREFIX):
            return False
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if block != seal(digest):
        raise DataError(
            f"{path}: its bytes don't fit its checksum: damaged or changed since surefoot wrote it; write it again"
        )
    return True


def seal(digest: str) -> bytes:
    """The 512 bytes that stand before the HDF5 part of our own files."""
    return (SEAL_PREFIX + digest.encode() + b"\n").ljust(SEAL_BYTES, b"\0")


def _started(seconds: float, stop: Callable[[], None]) -> threading.Timer:
    """A timer that runs, and keeps no program alive."""
    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    return timer


def _too_large(found: dict[str, Any], request: dict[str, Any]) -> str:
    """What the worker found too large, as the clause of a refusal."""
    if "picture" in found:
        key, shape, needed = found["picture"]
        return f"{key!r} {too_large_a_picture(shape, needed)}"
    if "pictures" in found:
        return too_many_pictures(found["pictures"], request["memory_limit"])
    return too_much(found["numbers"], request["limit"])


def _receive(
    process: subprocess.Popen[bytes], path: pathlib.Path, allow: Callable[[int], None], shapes_alone: bool
) -> Contents | None:
    """The worker's answer, or None where it ended before it was complete; `allow` is given the bytes that will come."""
    stream = process.stdout
    assert stream is not None
    prefix = stream.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > MAX_HEADER_BYTES:
        return None
    text = stream.read(length)
    if len(text) < length:
        return None
    header = json.loads(text)
    allow(int(header["bytes"]))
    arrays: dict[str, Array] = {}
    for key, dtype, shape in header["arrays"]:
        if key in header["following"] and not shapes_alone:
            if not _fill_following(stream, arrays, key, path):
                return None
            continue
        if shapes_alone:
            arrays[key] = np.broadcast_to(np.zeros((), np.dtype(dtype)), shape)
            continue
        try:
            array = aligned(shape) if is_picture(shape, dtype) else np.empty(shape, np.dtype(dtype))
        except MemoryError:
            raise DataError(f"{path}: {key!r} has shape {tuple(shape)}, which doesn't fit the memory") from None
        if not _fill(stream, array):
            return None
        arrays[key] = array
    return Contents(arrays, header["attributes"], header["names"])


def _fill_following(stream: IO[bytes], arrays: dict[str, Array], key: str, path: pathlib.Path) -> bool:
    """Read pictures that followed those under the same name without `next_`, and keep those alone that no row has.

    They become numbers, as in files that hold each picture once (`data.pictures`); False where the stream ends first.
    """
    named = key.removeprefix(NEXT)
    own, limit = arrays[named], memory_limit()
    rows = max(1, COMPARED_BYTES // max(1, own[:1].nbytes))
    numbers, further, count = np.empty(len(own), np.int64), list[Array](), 0
    block = np.empty((min(rows, len(own)), *own.shape[1:]), np.uint8)
    for start in range(0, len(own), rows):
        some = block[: min(rows, len(own) - start)]
        if not _fill(stream, some):
            return False
        place = rows_of(own[start : start + len(some) + 1], some, start)
        alone = np.flatnonzero(place == OWN)
        place[alone] = -1 - count - np.arange(len(alone))
        numbers[start : start + len(some)] = place
        count += len(alone)
        if len(alone):
            further.append(some[alone])
        if count * own[:1].nbytes > limit:
            raise DataError(f"{path}: {too_many_pictures(own.nbytes + count * own[:1].nbytes, limit)}")
    if named in NAMES:  # a lone image, under the name of vectors
        arrays[f"{named}/{IMAGE}"] = arrays.pop(named)
        named = f"{named}/{IMAGE}"
    arrays[f"{NEXT}{named}"] = numbers
    if count:
        arrays[FURTHER + named.removeprefix(OBSERVED)] = np.concatenate(further)
    return True


def _fill(stream: IO[bytes], array: Array) -> bool:
    """Read the array's bytes from the stream; False where the stream ends first."""
    if array.size == 0:
        return True
    target = array.reshape(-1).view(np.uint8).data
    filled = 0
    while filled < len(target):
        count = stream.readinto(target[filled:])  # type: ignore[attr-defined]
        if not count:
            return False
        filled += count
    return True


def _reason(messages: bytes, code: int) -> str:
    """Why the worker gave up, as a clause."""
    text = messages.decode("utf-8", "replace").strip().splitlines()
    if code == 3 and text:
        return text[-1]
    if code < 0:
        return f"the HDF5 library crashed on it (signal {-code}); the file is damaged"
    return f"the reading process ended with code {code} ({text[-1] if text else 'no message'})"
