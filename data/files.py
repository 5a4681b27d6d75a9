"""Files on disk: written aside and renamed, hashed, and kept in the user's cache."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pathlib
import uuid
from collections.abc import Iterator

from surefoot.core.errors import DataError


@contextlib.contextmanager
def written_aside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary path beside `path` to write to; renamed to it at the end, removed on failure.

    Raises:
        DataError: the folder is missing, read-only or full.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give the name of a file")
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        os.replace(aside, path)
    except OSError as error:
        raise DataError(f"{path}: can't be written: {why(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def why(error: BaseException) -> str:
    """The reason of an input or output error as a clause that says what to do."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk is full (or a quota is); free some space"
    if number in (errno.EACCES, errno.EROFS, errno.EPERM):
        return "no permission to write there; choose another place"
    return str(error) or type(error).__name__


def sha256_of(path: pathlib.Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> pathlib.Path:
    """Where fetched datasets are kept: SUREFOOT_CACHE or ~/.cache/surefoot, and datasets inside it."""
    root = os.environ.get("SUREFOOT_CACHE")
    return (pathlib.Path(root) if root else pathlib.Path.home() / ".cache" / "surefoot") / "datasets"
