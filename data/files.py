"""Files on disk: hashed, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Iterable

from surefoot.core.base.files import open_regular


def sha256_of(path: pathlib.Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes; of a folder's names and files, whatever the folder itself is called."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        return sha256_of_lines(f"{sha256_of(one)}  {one.relative_to(path).as_posix()}" for one in inside)
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_lines(lines: Iterable[str]) -> str:
    """Hexadecimal SHA-256 of lines of text."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def cache_folder() -> pathlib.Path:
    """Where fetched datasets are kept: SUREFOOT_CACHE or ~/.cache/surefoot, and datasets inside it."""
    root = os.environ.get("SUREFOOT_CACHE")
    return (pathlib.Path(root) if root else pathlib.Path.home() / ".cache" / "surefoot") / "datasets"
