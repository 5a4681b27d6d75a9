"""Program that reads named arrays of one HDF5 file and writes them to standard output, then ends.

It runs as a process of its own (see `formats.hdf5` for why), so it imports nothing of surefoot and
nothing slow. Output: 8 bytes little-endian length, a JSON header of that length, then the arrays' bytes one
after the other in the header's order. Usage: `python hdf5_worker.py REQUEST_JSON FILE`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, BinaryIO, NamedTuple

import h5py
import numpy as np

MAX_EXPANSION = 1100  # deflate can't shrink below 1/1032 of the data; more was never stored in the file
MAX_NAMES = 100_000  # of 5 kB of the HDF5 library's memory each, once opened
MAX_ATTRIBUTES = 200
WORKING_MEMORY = 512 << 20  # for the HDF5 library itself, beside the arrays
BLOCK_BYTES = 64 << 20  # of pictures that are read at once, or as many as are compressed together
NEXT = "next_"


class TooLarge(Exception):
    """The arrays need more bytes than the file may unpack to; the argument says which, as JSON values."""


class Refused(Exception):
    """The file can't be read as asked; the text is a clause that follows the file's name."""


def limit_memory(allowance: int) -> None:
    """Let this process grow by at most `allowance` bytes, where the platform can enforce it."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + allowance, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, OSError, ValueError):
        pass  # not Linux: the declared sizes are still checked before anything is allocated


def limit_time(seconds: float) -> None:
    """Limit this process's CPU time, which ends it even if its parent process has died."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # not Unix: the starting process keeps the deadline


def dataset_names(file: h5py.File) -> list[str]:
    """Names of the datasets in the file, refused where they are more than MAX_NAMES: rows would be missing."""
    names: list[str] = []

    def visit(name: bytes) -> bool | None:
        if h5py.h5o.get_info(file.id, name).type == h5py.h5o.TYPE_DATASET:
            names.append(name.decode("utf-8", "surrogateescape"))
        return True if len(names) > MAX_NAMES else None

    h5py.h5o.visit(file.id, visit)  # four times as fast as visititems, which opens each object
    if len(names) > MAX_NAMES:
        raise Refused(f"has more than {MAX_NAMES:,} datasets, and no more are read: put fewer and longer ones into it")
    return names


def root_attributes(file: h5py.File) -> dict[str, Any]:
    """The file's own attributes that are a string, a number or a truth value."""
    found: dict[str, Any] = {}
    for key in list(file.attrs)[:MAX_ATTRIBUTES]:
        value = file.attrs[key]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str | int | float | bool):
            found[key] = value
    return found


class Held(NamedTuple):
    """An open dataset, of which the library is asked each fact once: h5py's own objects take five times as long."""

    id: h5py.h5d.DatasetID
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, file: h5py.File, name: str) -> Held:
        """The dataset of this name; Refused where it is none of numbers, or lies elsewhere."""
        held = h5py.h5o.open(file.id, name.encode("utf-8", "surrogateescape"))
        if not isinstance(held, h5py.h5d.DatasetID):
            raise Refused(f"{name!r} is not the dataset that it was listed as")
        dtype, space = held.dtype, held.get_space()
        if dtype.kind not in "biuf":
            raise Refused(f"{name!r} has type {dtype}, not numbers")
        shape = None if space.get_simple_extent_type() == h5py.h5s.NULL else space.shape
        if shape is None or len(shape) > 5:
            raise Refused(f"{name!r} has shape {shape}, not that of an array of rows")
        stored = held.get_create_plist()
        if stored.get_layout() == h5py.h5d.VIRTUAL or stored.get_external_count():
            raise Refused(f"{name!r} points to data in other files; copy them into one file")
        return cls(held, dtype, shape)

    def numbers(self, rows: tuple[int, int] | None) -> np.ndarray[Any, Any]:
        """Its numbers in this machine's byte order, or those of the rows from the first to before the second."""
        shape = self.shape if rows is None else (rows[1] - rows[0], *self.shape[1:])
        found = np.empty(shape, self.dtype.newbyteorder("="))
        if found.size == 0:
            return found
        if rows is None:
            self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
            return found
        chosen = self.id.get_space()
        chosen.select_hyperslab((rows[0], *[0] * len(self.shape[1:])), shape)
        self.id.read(h5py.h5s.create_simple(shape), chosen, found)
        return found


def declared_bytes(key: str, dataset: Held, file_bytes: int) -> int:
    """Bytes that the dataset says it holds, refused where the file can't hold them."""
    size = dataset.dtype.itemsize
    for length in dataset.shape:
        size *= int(length)
    if size > file_bytes * MAX_EXPANSION:
        raise Refused(
            f"{key!r} says that it has shape {dataset.shape}, more than a file of {file_bytes} bytes can hold"
        )
    return size


def following(wanted: dict[str, Held]) -> list[str]:
    """Names of pictures that followed steps, where those before them are among the arrays: they are sent last."""
    found = []
    for key, dataset in wanted.items():
        own = wanted.get(key.removeprefix(NEXT))
        fits = own is not None and dataset.dtype == own.dtype == np.uint8 and dataset.shape == own.shape
        if key.startswith(NEXT) and fits and len(dataset.shape) >= 3:
            found.append(key)
    return found


def check_memory(
    wanted: dict[str, Held], shapes: dict[str, list[int]], sizes: dict[str, int], request: dict[str, Any]
) -> int:
    """Bytes that the arrays take in memory, refused where they are too many (the rule: `core.base.unpacking.Unpacked`).

    Pictures, of bytes in three dimensions and more with the rows, are kept as bytes; numbers become float32. Pictures
    that are compared with others (`following`) count where they turn out to be others.
    """
    as_is, numbers, pictures = tuple(request["as_is"]), 0, 0
    for key, dataset in wanted.items():
        if dataset.dtype == np.uint8 and len(dataset.shape) >= 3:
            one = sizes[key] // max(1, shapes[key][0])
            if one > request["picture_limit"]:
                raise TooLarge({"picture": [key, list(dataset.shape[1:]), one]})
            pictures += 0 if key in following(wanted) else sizes[key]
        else:
            numbers += sizes[key] * (1 if key.startswith(as_is) else max(1, 4 // dataset.dtype.itemsize))
    if numbers > request["limit"]:
        raise TooLarge({"numbers": numbers})
    if pictures and numbers + pictures > request["memory_limit"]:
        raise TooLarge({"pictures": numbers + pictures})
    return numbers + pictures


def read(request: dict[str, Any], path: str, out: BinaryIO) -> None:
    """Write header and arrays of one file to `out`."""
    limit_time(request["seconds"])
    limit_memory(WORKING_MEMORY)
    with h5py.File(path, "r") as file:
        names = dataset_names(file)
        prefixes = tuple(request["prefixes"])
        pattern = re.compile(request["pattern"])
        keys = set(request["keys"])
        found = [name for name in names if name in keys or name.startswith(prefixes) or pattern.fullmatch(name)]
        wanted = {name: Held.of(file, name) for name in found}
        last = following(wanted)
        wanted = {name: wanted[name] for name in [*(name for name in wanted if name not in last), *last]}
        sizes = {key: declared_bytes(key, dataset, request["file_bytes"]) for key, dataset in wanted.items()}
        shapes = {key: list(dataset.shape) for key, dataset in wanted.items()}
        rows: tuple[int, int] | None = None
        if request.get("rows") is not None:
            first, end = map(int, request["rows"])
            rows = (first, end)
            for key, shape in shapes.items():
                if not shape or shape[0] < end:
                    raise Refused(f"{key!r} has shape {tuple(shape)}, without the rows {first} to {end}")
                sizes[key] = sizes[key] // shape[0] * (end - first)
                shape[0] = end - first
        wanted_now: dict[str, Held] = {} if request.get("shapes_alone") else wanted
        needed = check_memory(wanted_now, shapes, sizes, request)
        at_once = {key: blocks(one, rows, sizes[key]) for key, one in wanted_now.items()}
        limit_memory(2 * max((largest for _, largest in at_once.values()), default=0) + WORKING_MEMORY)
        limit_time(request["seconds"] + needed / request["unpacked_per_second"])
        header = {
            "names": names,
            "attributes": root_attributes(file),
            "arrays": [[key, one.dtype.newbyteorder("=").str, shapes[key]] for key, one in wanted.items()],
            "following": last,
            "bytes": needed + sum(sizes[key] for key in last if key in wanted_now),
        }
        send_header(header, out)
        for key, dataset in wanted_now.items():
            for some in at_once[key][0]:
                out.write(dataset.numbers(some).reshape(-1).view(np.uint8).data)


def blocks(dataset: Held, rows: tuple[int, int] | None, size: int) -> tuple[list[tuple[int, int] | None], int]:
    """First rows and those behind the last of what is read at once, None for all, and bytes of the largest.

    Args:
        dataset: to read.
        rows: the first and behind the last of those that are wanted, or None: all.
        size: bytes of these.
    """
    if len(dataset.shape) < 3 or size <= BLOCK_BYTES:
        return [rows], size
    first, end = rows or (0, dataset.shape[0])
    one = size // (end - first)
    together = dataset.id.get_create_plist()
    least = together.get_chunk()[0] if together.get_layout() == h5py.h5d.CHUNKED else 1
    step = -(-max(1, BLOCK_BYTES // one) // least) * least
    return [(start, min(start + step, end)) for start in range(first, end, step)], min(size, step * one)


def send_header(header: dict[str, Any], out: BinaryIO) -> None:
    """Write the length and the JSON text."""
    text = json.dumps(header).encode()
    out.write(len(text).to_bytes(8, "little") + text)


def main() -> int:
    """Read what the arguments ask for; 0 when all was sent, else on stderr 3 and the reason, or 4 and JSON of sizes."""
    request, path = json.loads(sys.argv[1]), sys.argv[2]
    try:
        read(request, path, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except TooLarge as refusal:
        print(json.dumps(refusal.args[0]), file=sys.stderr)
        return 4
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 3
    except MemoryError:
        print("reading it asks for more memory than its size explains; it is damaged", file=sys.stderr)
        return 3
    except Exception as error:  # h5py raises many kinds on damaged files; each means: can't be read
        reason = (str(error).splitlines() or [""])[0]
        print(f"HDF5 can't read it ({type(error).__name__}: {reason})", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
