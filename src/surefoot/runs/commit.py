"""The git commit that a file of ours is of, found without what the repository around it sets.

surefoot often lies inside of another project, in its `.venv`. That project's commit is not ours, and git would follow
its settings: `core.fsmonitor`, filters and hooks name commands. So git is given a folder of its own, with the
repository's objects and a copy of its index, and no settings.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import tempfile

from surefoot.core.base.files import read_regular
from surefoot.core.base.schema import MOST_BYTES

DIGITS, SECONDS = 12, 10.0
"""Digits of a commit that are given, and how long git may take for an answer."""
_HASH = re.compile(r"[0-9a-f]{40}")


def commit_of(file: pathlib.Path) -> str | None:
    """First digits of the commit that is checked out around a file, with + where tracked files were changed since.

    None: the file lies in no checkout or is not tracked there, git is not installed, or can't say it.
    """
    file = file.resolve()
    try:
        top = next((folder for folder in file.parents if (folder / ".git").exists()), None)
        if top is None:
            return None
        own, shared = _folders(top / ".git")
        commit = _head(own, shared)
        if commit is None:
            return None
        with tempfile.TemporaryDirectory() as temporary:
            git = pathlib.Path(temporary)
            for name in ("objects", "refs"):
                (git / name).mkdir()
            (git / "HEAD").write_text(commit + "\n", encoding="ascii")
            (git / "index").write_bytes(read_regular(own / "index", MOST_BYTES))
            if not _succeeds(git, top, shared, "ls-files", "--error-unmatch", "--", str(file)):
                return None
            _succeeds(git, top, shared, "update-index", "-q", "--refresh", "--ignore-submodules")
            same = _succeeds(git, top, shared, "diff-index", "--quiet", "--ignore-submodules", "HEAD", "--")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return commit[:DIGITS] + ("" if same else "+")


def _folders(place: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """(folder of the checkout's HEAD and index, folder of the objects), which differ in a worktree."""
    own = place if place.is_dir() else place.parent / _text(place).removeprefix("gitdir:").strip()
    common = own / "commondir"
    return own, own / _text(common) if common.is_file() else own


def _head(own: pathlib.Path, shared: pathlib.Path) -> str | None:
    """The commit that HEAD leads to; None where there is none yet, or git keeps it in another way."""
    found = _text(own / "HEAD")
    if found.startswith("ref:"):
        name = found.removeprefix("ref:").strip()
        loose = next((folder / name for folder in (own, shared) if (folder / name).is_file()), None)
        if loose is not None:
            found = _text(loose)
        else:
            packed = (line.split() for line in _text(shared / "packed-refs").splitlines())
            found = next((words[0] for words in packed if words[1:] == [name]), "")
    return found if _HASH.fullmatch(found) else None


def _text(path: pathlib.Path) -> str:
    return read_regular(path, MOST_BYTES).decode("utf-8").strip()


def _succeeds(git: pathlib.Path, top: pathlib.Path, shared: pathlib.Path, *command: str) -> bool:
    """Whether a command of git's ends well, that knows no settings but its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    places = {"GIT_DIR": str(git), "GIT_WORK_TREE": str(top), "GIT_OBJECT_DIRECTORY": str(shared / "objects")}
    none = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
    ended = subprocess.run(
        ["git", *command], cwd=top, env={**own, **places, **none}, capture_output=True, timeout=SECONDS, check=False
    )
    return ended.returncode == 0
