"""Files written whole or not at all, and read with an error that names them."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import pathlib
import platform
import re
import stat
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

from surefoot.core.base.errors import CheckpointError, SurefootError
from surefoot.core.base.memory import enough_memory
from surefoot.core.base.schema import MOST_BYTES, Kind, check, parse

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk or quota that is full."""
UMASK = os.umask(0)
"""What files of this process are not to allow; it can't be asked without being set."""
os.umask(UMASK)
ASIDE = re.compile(r"\..*\.(?P<place>[0-9a-f]{8})(-(?P<pid>\d+)-[0-9a-f]{8})?(\.\w+)?|\.tmp[0-9A-Za-z]{6}")
"""Names of the temporary files of `written_aside`, and of those that safetensors writes beside its own."""


@contextlib.contextmanager
def written_aside(path: str | os.PathLike[str], error: type[SurefootError] = SurefootError) -> Iterator[pathlib.Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and vanishes when not.

    Args:
        path: what is to be written.
        error: the exception to raise.

    Raises:
        SurefootError: `path` is a folder, the disk is full, or the folder can't be written; `path` is as it was.
    """
    path = pathlib.Path(path)
    refuse_null_bytes(path, error)
    if path.is_dir():
        raise error(f"{path}: is a folder; give the name of a file")
    aside = path.with_name(f".{path.stem}.{_place()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~UMASK)  # safetensors makes files that only their owner can read
        os.replace(aside, path)
    except OSError as failure:
        raise error(f"{path}: can't be written: {why(failure)}. Nothing was changed") from failure
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def refuse_null_bytes(path: pathlib.Path, error: type[SurefootError]) -> None:
    """Raise an error of the kind `error` for a path that no file can have."""
    if "\0" in str(path):
        raise error(f"{path}: a name can't have a null byte in it; choose another")


def remove_asides(folder: str | os.PathLike[str], below: bool = True) -> None:
    """Remove temporary files that a process which was killed while it wrote left in `folder`, and `below` it.

    No one else may be writing there.
    """
    place = pathlib.Path(folder)
    for path in place.rglob(".*") if below else place.glob(".*"):
        if ASIDE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def remove_asides_of_the_dead(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files in `folder` of processes that were killed, where others may be writing.

    A file's name says which process writes it, and on what machine, since when, and among which processes: only those
    of here can be known to be dead. What can't be removed stays.
    """
    with contextlib.suppress(OSError):
        for path in pathlib.Path(folder).glob(".*"):
            found = ASIDE.fullmatch(path.name)
            if found is None or found["pid"] is None or found["place"] != _place() or not path.is_file():
                continue
            try:
                os.kill(int(found["pid"]), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except (OSError, OverflowError):  # it lives, and is another user's
                continue


@functools.cache
def _place() -> str:
    """Eight digits that tell this machine, since it was started, and the processes that see one another's numbers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return f"{zlib.crc32(' '.join(parts).encode()):08x}"


def why(failure: BaseException) -> str:
    """The reason of an input or output error as a clause that says what to do."""
    number = getattr(failure, "errno", None)
    if number in FULL:
        return "the disk is full (or a quota is); free some space"
    if number in (errno.EACCES, errno.EROFS, errno.EPERM):
        return "no permission to write there; choose another place"
    return getattr(failure, "strerror", None) or str(failure) or type(failure).__name__


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file, or its first `most` + 1 bytes where it has more.

    Neither a device, which may have no end, nor a pipe, which may never say anything, is read.

    Raises:
        OSError: it is no regular file, or can't be read.
    """
    with open_regular(path) as file:
        return file.read(min(os.fstat(file.fileno()).st_size, most) + 1)


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A regular file, open to be read.

    Raises:
        OSError: it is no regular file, or can't be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name has a null byte", repr(path)) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise OSError(errno.EINVAL, f"it is {what}, not a file", os.fspath(path))
    return os.fdopen(handle, "rb")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=False, allow_nan=False)
    with written_aside(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str], kind: Kind | None = None) -> Any:
    """Read a JSON file and check that it holds what it must.

    Raises:
        CheckpointError: the file is missing, not JSON, larger than anything that surefoot writes, or not of this kind.
    """
    try:
        with enough_memory(path, CheckpointError):
            value = parse(read_regular(path, MOST_BYTES), path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); restore it from a copy") from error
    return value if kind is None else check(value, kind, path)


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text in UTF-8, without their ends.

    Line feeds and carriage returns end them, and nothing else: a text in a line of JSON may hold U+2028, U+2029 or
    U+0085, where `str.splitlines` would cut it.

    Raises:
        OSError: it is no regular file, or can't be read.
        UnicodeDecodeError: it is not in UTF-8.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
        return [line.removesuffix("\n") for line in file]


def read_json_lines(
    path: str | os.PathLike[str], error: type[SurefootError] = CheckpointError
) -> Iterator[tuple[int, Any]]:
    """Number and value of each line of a file of JSON lines, but for empty ones.

    Raises:
        SurefootError: of the kind `error`: there is no such file, it is no text in UTF-8, or a line is no JSON, or
            larger than anything that surefoot writes; names the line.
    """
    try:
        with enough_memory(path, error):
            lines = read_lines(path)
    except FileNotFoundError as failure:
        raise error(f"{path}: there is no such file") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{path}: is not text in UTF-8: {failure}") from failure
    except OSError as failure:
        raise error(f"{path}: can't be read: {why(failure)}") from failure
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, parse(line, f"{path}, line {number}", error)


def stem_of(path: str | os.PathLike[str]) -> pathlib.Path:
    """A path without the ending of either file of a pair of safetensors and JSON."""
    path = pathlib.Path(path)
    return path.with_suffix("") if path.suffix in {".safetensors", ".json"} else path


def beside(stem: pathlib.Path, ending: str) -> pathlib.Path:
    """The file of a pair that has this ending."""
    return stem.parent / (stem.name + ending)
