"""Run folders: each is made by one process alone, and locked while it is written.

The lock is `flock` on the hidden file `.lock`, which names who holds it. The operating system gives it up when the last
process that holds it ends, however it ends: workers inherit it, so a folder whose run was killed is free once its
workers are gone too.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import itertools
import json
import os
import pathlib
import shlex
import shutil
import socket
import time
import warnings
from collections.abc import Sequence
from typing import Any

from surefoot.core.base.children import refuse_at_import
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import refuse_null_bytes, remove_asides, why
from surefoot.data.derived import PREPARED

LOCK, SWEEP = ".lock", "sweep.json"
BEFORE_THE_FIRST_STEP = ("config.json", "environment.json", "kernels.json", "dataset.safetensors", "starts.npz")
"""What a run writes before it can be resumed."""
TRAINS = "trains"
"""What is not done by a module that is only being imported: whatever writes a folder here begins by claiming it."""
WAIT = 30.0
"""Seconds for the workers of a run that was killed to notice it."""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


class FolderInUseError(ConfigError):
    """Another process is writing into the folder."""


class Claim:
    """A folder that this process alone writes into until the `with` block ends.

    Where a new run has not started by then, for no `config.json` is in its folder, all that was made for it is removed
    again. The folder of a run that is resumed is left as it is, whatever became of its `config.json` meanwhile.
    """

    def __init__(self, folder: pathlib.Path, made: tuple[pathlib.Path, ...] = (), *, new: bool) -> None:
        """Lock a folder that exists.

        Args:
            folder: absolute.
            made: folders that were made for it, the outermost first.
            new: it is of a run that starts now.

        Raises:
            FolderInUseError: another process holds it.
            ConfigError: it can't be written.
        """
        self.folder, self._made, self._new = folder, made, new
        try:
            self.descriptor = _lock(folder)
        except BaseException:
            _remove_empty(made)
            raise
        """Of the lock, for workers to inherit."""

    def __enter__(self) -> Claim:
        """Nothing more to do."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Give the folder free."""
        removed = self._new and not (self.folder / "config.json").is_file() and self.discard()
        self.give_free()
        if removed:
            _remove_empty(self._made)

    def give_free(self) -> None:
        """Unlock the folder."""
        (self.folder / LOCK).unlink(missing_ok=True)
        os.close(self.descriptor)

    def discard(self) -> bool:
        """Remove what a run that never came to a checkpoint wrote, and nothing else that lies in its folder.

        Returns:
            Whether it was removed: nothing is where there is a checkpoint, a policy or a model.
        """
        _remove_asides(self.folder)
        seeds = self.folder / "seeds"
        if any(path.suffix == ".safetensors" for path in seeds.rglob("*")):
            return False
        for name in BEFORE_THE_FIRST_STEP:
            (self.folder / name).unlink(missing_ok=True)
        for folder in (seeds, self.folder / PREPARED):
            shutil.rmtree(folder, ignore_errors=True)
        return True


def claim_new(out: str | os.PathLike[str]) -> Claim:
    """A folder for a new run: made now, or one that is there and empty.

    Raises:
        FolderInUseError: another process has just started in it.
        MainGuardError: a module that is only being imported calls.
        ConfigError: it exists and holds something, or can't be made.
    """
    refuse_at_import(TRAINS)
    refuse_null_bytes(pathlib.Path(out), ConfigError)
    folder = pathlib.Path(out).expanduser().resolve()
    made = _make(folder)
    if not _empty(folder):
        raise _exists(out)
    claim = Claim(folder, made, new=True)
    if not _empty(folder):  # another process was quicker, and has ended already
        claim.give_free()
        raise _exists(out)
    claim.discard()
    return claim


def claim_named(stem: str, root: str | os.PathLike[str] = "runs") -> Claim:
    """A new folder of its own: root/<stem>-<time>, with a number behind it where that exists.

    Raises:
        MainGuardError: a module that is only being imported calls.
        ConfigError: it can't be made.
    """
    refuse_at_import(TRAINS)
    first = pathlib.Path(root).resolve() / f"{stem}-{dt.datetime.now().strftime('%Y%m%d-%H%M%S')}".lstrip("-")
    for number in itertools.count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if made := _make(folder):
            return Claim(folder, made, new=True)
    raise AssertionError


def claim_begun(folder: str | os.PathLike[str]) -> Claim:
    """The folder of a run that is resumed. Temporary files that a killed process left there are removed.

    Raises:
        FolderInUseError: it is still being trained.
        MainGuardError: a module that is only being imported calls.
        ConfigError: it can't be written.
    """
    refuse_at_import(TRAINS)
    refuse_null_bytes(pathlib.Path(folder), ConfigError)
    claim = Claim(pathlib.Path(folder).resolve(), new=False)
    _remove_asides(claim.folder)
    return claim


def _remove_asides(folder: pathlib.Path) -> None:
    """Those of a run are anywhere in its folder; below a sweep's are jobs, which may be writing still."""
    remove_asides(folder, below=not (folder / SWEEP).is_file())


def remove_lock_of_the_dead(folder: pathlib.Path) -> None:
    """Remove the lock file of a process that was killed after its run was complete; a living one's stays."""
    if (folder / LOCK).exists():
        with contextlib.suppress(ConfigError), claim_begun(folder):
            pass


def _remove_empty(made: Sequence[pathlib.Path]) -> None:
    """Remove folders that were made, outermost first, as far as nothing is in them."""
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:  # another process has put something there
            break


def _make(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Make a folder, and those that it lies in; the new ones, outermost first. Empty where it exists."""
    missing = [folder, *itertools.takewhile(lambda parent: not parent.exists(), folder.parents)]
    made = []
    try:
        for one in reversed(missing):
            try:
                one.mkdir()
                made.append(one)
            except FileExistsError:
                if one is not folder and not one.is_dir():
                    raise
    except FileNotFoundError:  # another process has just removed a folder that it lies in
        return _make(folder)
    except OSError as error:
        raise ConfigError(f"out={folder}: the folder can't be made ({why(error)}); choose another") from error
    return tuple(made) if folder in made else ()


def _exists(out: str | os.PathLike[str]) -> ConfigError:
    return ConfigError(
        f"out={out} exists already; continue it by --resume {shlex.quote(os.fspath(out))}, or choose another"
    )


def _empty(folder: pathlib.Path) -> bool:
    """Whether nothing is in the folder but what a run that was killed before it began left there."""
    left = {name for name in BEFORE_THE_FIRST_STEP if name != "config.json"}
    return folder.is_dir() and all(path.name in left or path.name.startswith(".") for path in folder.iterdir())


def _lock(folder: pathlib.Path) -> int:
    """The descriptor of the lock file, locked."""
    import fcntl

    path, deadline = folder / LOCK, time.monotonic() + WAIT
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise ConfigError(f"{folder}: can't be written ({why(error)})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(descriptor)
            os.close(descriptor)
            if _is_ending(holder) and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise FolderInUseError(
                f"{folder}: is in use by process {holder.get('pid', '?')} on {holder.get('host', 'another machine')}, "
                f"since {holder.get('since', 'a moment ago')}; wait for its end, or stop it"
            ) from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(descriptor)
                raise ConfigError(
                    f"{folder}: can't be locked ({why(error)}); put it on another disk, or try again"
                ) from error
            warnings.warn(f"{folder}: this file system has no locks; resume a run only once at a time", stacklevel=4)
        if _is(descriptor, path):
            break
        os.close(descriptor)  # whoever held it has removed it meanwhile
    since = dt.datetime.now().isoformat(sep=" ", timespec="seconds")
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode(), 0
        )
    except OSError as error:  # a disk that is full at the first byte
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise ConfigError(f"{folder}: can't be written ({why(error)})") from error
    return descriptor


def _is(descriptor: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> dict[str, Any]:
    try:
        value = json.loads(os.pread(descriptor, 1000, 0))
    except (ValueError, OSError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_ending(holder: dict[str, Any]) -> bool:
    """Whether who holds a lock is no more, so that only its workers do, which are about to end."""
    if holder.get("host") != socket.gethostname() or not isinstance(holder.get("pid"), int):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
