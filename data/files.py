"""Files on disk: hashed, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import pathlib


def sha256_of(path: pathlib.Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> pathlib.Path:
    """Where fetched datasets are kept: SUREFOOT_CACHE or ~/.cache/surefoot, and datasets inside it."""
    root = os.environ.get("SUREFOOT_CACHE")
    return (pathlib.Path(root) if root else pathlib.Path.home() / ".cache" / "surefoot") / "datasets"
