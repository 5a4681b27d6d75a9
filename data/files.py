"""Files on disk: hashed, and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import time
from collections.abc import Iterable
from typing import Any

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import open_regular, read_json, write_json


def sha256_of(path: pathlib.Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes; of a folder's names and files, whatever the folder itself is called."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        return sha256_of_lines(f"{sha256_of(one)}  {one.relative_to(path).as_posix()}" for one in inside)
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: pathlib.Path) -> str:
    """As `sha256_of`; of a folder, without reading files again whose size and time of change are those of last time.

    What was found is kept by file in the cache (`digests/`), where a file counts as unchanged if its size and its time
    of change, in nanoseconds, are what they were, and it had not changed in the `RACY` seconds before it was hashed.
    Who sets times back by hand deceives it; `sha256_of` and `surefoot datasets verify` read all.
    """
    if not path.is_dir():
        return sha256_of(path)
    kept = kept_digests(path)
    known = _kept(kept)
    found: dict[str, list[Any]] = {}
    lines = []
    for one in sorted(one for one in path.rglob("*") if one.is_file()):
        name, facts = one.relative_to(path).as_posix(), one.stat()
        reported = [facts.st_size, facts.st_mtime_ns]
        before = known.get(name)
        if isinstance(before, list) and len(before) == 3 and before[:2] == reported and _HASH.fullmatch(str(before[2])):
            digest = str(before[2])
        else:
            digest = sha256_of(one)
        if time.time_ns() - facts.st_mtime_ns > RACY * 10**9:
            found[name] = [*reported, digest]
        lines.append(f"{digest}  {name}")
    if found != known:
        with contextlib.suppress(OSError):  # a cache that can't be written costs time and nothing else
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, found)
    return sha256_of_lines(lines)


def kept_digests(path: pathlib.Path) -> pathlib.Path:
    """The file of the cache in which the digests of a folder's files are kept."""
    return cache_folder() / "digests" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:40]}.json"


def _kept(path: pathlib.Path) -> dict[str, Any]:
    """Name of a file -> its size, time and digest of last time; empty where nothing, or nothing readable, is kept."""
    try:
        value = read_json(path) if path.is_file() else {}
    except (OSError, CheckpointError):
        return {}
    return value if isinstance(value, dict) else {}


RACY = 2
"""Seconds within which a second change of a file may leave its time as it is."""
_HASH = re.compile(r"[0-9a-f]{64}")


def sha256_of_lines(lines: Iterable[str]) -> str:
    """Hexadecimal SHA-256 of lines of text."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def cache_folder() -> pathlib.Path:
    """Where fetched datasets are kept: SUREFOOT_CACHE or ~/.cache/surefoot, and datasets inside it."""
    root = os.environ.get("SUREFOOT_CACHE")
    return (pathlib.Path(root) if root else pathlib.Path.home() / ".cache" / "surefoot") / "datasets"
