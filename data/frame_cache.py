"""A cache of decoded and scaled pictures on disk, which are mapped: the disk bounds them, not the memory.

    CACHE/KEY/frames.bin    pictures one after another, uint8
    CACHE/KEY/index.json    how many of which size, the rule that scaled them, what they are made of, and a SHA-256

KEY is a digest of the source's content, the camera, the size and the rule: other data, or another rule, are other
files. What is built lies in `.KEY.building` beside it and takes the name when it is whole; `journal.json` in it says
how many pictures are safe, and the same call continues behind them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError, SurefootError
from surefoot.core.base.files import read_json, why, write_json
from surefoot.core.base.scaling import RULE
from surefoot.core.base.schema import Many, Number, Record, Text
from surefoot.core.base.unpacking import check_picture
from surefoot.data.derived import mapped
from surefoot.data.files import cache_folder, sha256_of

Array = np.ndarray[Any, Any]
Done = Callable[[int, int], None]

FRAMES, INDEX, JOURNAL, LOCK = "frames.bin", "index.json", "journal.json", "lock"
VERSION = 1
PLACE = "surefoot_cache"
"""Attribute of an array that is a whole cache: where that is, and its SHA-256."""
BLOCK_BYTES = 64 << 20
"""Bytes of pictures that are on the disk before the next are started."""
SPARE = 64 << 20
"""Bytes of the disk that a cache leaves free."""
_SHAPE = Many(Number(1, 2**31, whole=True), 2, 5)
_INDEX = Record(
    {
        "shape": _SHAPE,
        "rule": Text(20),
        "camera": Text(200),
        "source": Text(200),
        "bytes": Number(0, whole=True),
        "changed_ns": Number(whole=True),
        "sha256": Text(64),
    },
    newest=VERSION,
)
_JOURNAL = Record({"frames": Number(0, whole=True), "shape": _SHAPE})


def frames_folder() -> pathlib.Path:
    """Where caches are kept: `frames` in SUREFOOT_CACHE or ~/.cache/surefoot."""
    return cache_folder().parent / "frames"


def cached(
    name: str,
    source: str,
    camera: str,
    frames: int,
    size: tuple[int, int] | None,
    pictures: Callable[[], Iterator[Array]],
    folder: str | os.PathLike[str] | None = None,
    done: Done | None = None,
) -> Array:
    """(F, ...) uint8 pictures of a camera, mapped from the cache, which is built where it is not there.

    Args:
        name: of the data, for errors.
        source: what tells their content, such as a SHA-256.
        camera: key of the camera.
        frames: how many there are, F.
        size: (H, W) that they are scaled to, part of the key; None: as they are.
        pictures: gives them one after another, scaled.
        folder: of the caches; None: `frames_folder`.
        done: called with the pictures that are on the disk, and F.

    Raises:
        ConfigError: another process builds it.
        DataError: the disk is too small or full, pictures are more, fewer or of different sizes, or the cache was
            scaled by another rule, or changed.
    """
    root = frames_folder() if folder is None else pathlib.Path(folder)
    reported = [source, camera, frames, None if size is None else list(size), RULE, VERSION]
    key = hashlib.sha256(json.dumps(reported).encode()).hexdigest()[:40]
    place = root / key
    if not (place / INDEX).is_file():
        try:
            root.mkdir(parents=True, exist_ok=True)
            _build(name, place, frames, pictures, {"camera": camera, "source": source}, done)
        except OSError as failure:
            raise DataError(
                f"{name}: its pictures of {camera!r} can't be kept in {root}: {why(failure)}; what was written is "
                "kept, and the same call continues behind it: free some space, or set SUREFOOT_CACHE to another disk"
            ) from failure
    return opened(place)


def opened(place: pathlib.Path) -> Array:
    """The pictures of a cache, mapped.

    Raises:
        DataError: it is not there, damaged, changed, or was scaled by another rule than this version's.
    """
    index, path = _index(place), place / FRAMES
    try:
        facts = path.stat()
        same = facts.st_size == index["bytes"] == math.prod(index["shape"])
        if same and facts.st_mtime_ns != index["changed_ns"]:
            same = sha256_of(path) == index["sha256"]
        if not same:
            raise DataError(f"{path}: is not what was written: damaged or changed since; delete {place}")
        found = mapped(path, np.uint8, index["shape"], private=False)
    except OSError as failure:
        raise DataError(f"{path}: can't be read: {why(failure)}; delete {place}") from failure
    setattr(found, PLACE, (place, index["sha256"]))  # of the whole: parts of it have no such attribute
    return found


def _index(place: pathlib.Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = read_json(place / INDEX, _INDEX)
    except CheckpointError as error:
        raise DataError(f"{error}; delete {place}, and it is built again") from error
    if index["rule"] != RULE:
        raise DataError(
            f"{place}: its pictures were scaled by the rule {index['rule']!r}, and this version's is {RULE!r}: delete "
            "it, and it is built again"
        )
    return index


def place_of(array: Array) -> tuple[pathlib.Path, str] | None:
    """The cache that an array is the whole of, and its SHA-256; None of others."""
    found: tuple[pathlib.Path, str] | None = getattr(array, PLACE, None)
    return found


def in_the_way(name: str, needed: int, root: pathlib.Path) -> None:
    """Refuse pictures that the disk has no room for; raises DataError."""
    free = shutil.disk_usage(root).free
    if needed + SPARE > free:
        raise DataError(
            f"{name}: its pictures take {needed / 1e9:,.2f} GB of disk in {root}, and {free / 1e9:,.2f} GB are free: "
            "free some space, set SUREFOOT_CACHE to another disk, or give a smaller image_size"
        )


def _build(
    name: str,
    place: pathlib.Path,
    frames: int,
    pictures: Callable[[], Iterator[Array]],
    facts: dict[str, str],
    done: Done | None,
) -> None:
    """Write pictures, a block at a time, behind those that are safe."""
    aside = place.with_name(f".{place.name}.building")
    aside.mkdir(exist_ok=True)
    with open(aside / LOCK, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{name}: another process decodes its pictures of {facts['camera']!r}; wait for it"
            ) from None
        safe, shape = _safe(aside)
        path, count = aside / FRAMES, safe
        waiting: list[Array] = []

        def put(file: Any) -> None:
            for one in waiting:
                file.write(np.ascontiguousarray(one).data)
            file.flush()
            os.fsync(file.fileno())
            try:
                write_json(aside / JOURNAL, {"frames": count, "shape": shape})
            except SurefootError as failure:
                raise failure.__cause__ if isinstance(failure.__cause__, OSError) else failure from None
            waiting.clear()
            if done is not None:
                done(count, frames)

        with open(path, "r+b" if path.is_file() else "w+b") as file:
            file.truncate(safe * math.prod(shape) if shape else 0)
            file.seek(0, os.SEEK_END)
            for one in itertools.islice(pictures(), safe, None):
                if not shape:
                    shape = [int(length) for length in one.shape]
                    check_picture(f"{name}: {facts['camera']!r}", shape, DataError)
                    in_the_way(name, frames * one.size, aside)
                if list(one.shape) != shape or count == frames:
                    raise DataError(
                        f"{name}: picture {count} of {facts['camera']!r} is one too many, or {list(one.shape)} where "
                        f"the first is {shape}: give image_size"
                    )
                waiting.append(one)
                count += 1
                if len(waiting) * one.size >= BLOCK_BYTES:
                    put(file)
            if count != frames or not shape:
                raise DataError(f"{name}: has {count} pictures of {facts['camera']!r} for {frames} steps")
            put(file)
        index = {"format": VERSION, "shape": [frames, *shape], "rule": RULE, **facts, "bytes": path.stat().st_size}
        index |= {"changed_ns": path.stat().st_mtime_ns, "sha256": sha256_of(path)}
        write_json(aside / INDEX, index)
        (aside / JOURNAL).unlink()
        with contextlib.suppress(FileNotFoundError):
            (aside / LOCK).unlink()
        os.rename(aside, place)


def _safe(aside: pathlib.Path) -> tuple[int, list[int]]:
    """How many pictures of which shape are on the disk; 0 where nothing that fits is."""
    try:
        state = read_json(aside / JOURNAL, _JOURNAL) if (aside / JOURNAL).is_file() else None
    except CheckpointError:
        state = None
    path = aside / FRAMES
    if state is None or not path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)
        return 0, []
    if path.stat().st_size < state["frames"] * math.prod(state["shape"]):
        return 0, []
    return int(state["frames"]), list(state["shape"])


def size_of(value: int | Sequence[int] | None) -> tuple[int, int] | None:
    """(H, W) of an `image_size`, one number or two.

    Raises:
        ConfigError: it is neither.
    """
    if value is None:
        return None
    both = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else ()
    both = 2 * both if len(both) == 1 else both
    if len(both) != 2 or any(not isinstance(one, int) or isinstance(one, bool) or not 1 <= one <= 8192 for one in both):
        raise ConfigError(f"image_size={value!r}: must be a number of pixels from 1 to 8192, or [height, width]")
    return both[0], both[1]
