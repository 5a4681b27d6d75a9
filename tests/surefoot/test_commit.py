"""The commit that a run's environment.json names."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

import surefoot.runs.run
from surefoot.runs.commit import commit_of


def git(folder: pathlib.Path, *command: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *who, *command], cwd=folder, env=own, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """A project of somebody else's, whose settings, filters and hooks execute a command; surefoot lies in it."""
    folder = tmp_path / "project"
    (folder / ".venv" / "surefoot").mkdir(parents=True)
    (folder / ".venv" / "surefoot" / "run.py").write_text("ours = 1\n")
    (folder / "theirs.py").write_text("theirs = 1\n")
    (folder / ".gitattributes").write_text("*.py filter=odd diff=odd\n")
    git(folder, "init", "-q")
    git(folder, "add", "theirs.py", ".gitattributes")
    git(folder, "commit", "-q", "-m", "first")
    command = f"touch {tmp_path / 'executed'}; cat"
    settings = ("core.fsmonitor", "filter.odd.clean", "filter.odd.smudge", "diff.odd.textconv", "diff.external")
    for name in settings:
        git(folder, "config", name, command)
    hook = folder / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\n{command}\n")
    hook.chmod(0o755)
    return folder


def test_the_commit_of_the_project_around_is_not_ours_and_executes_nothing(project: pathlib.Path) -> None:
    ours, theirs = project / ".venv" / "surefoot" / "run.py", project / "theirs.py"
    assert commit_of(ours) is None
    (project / "theirs.py").write_text("theirs = 2\n")
    assert commit_of(ours) is None
    assert commit_of(theirs) == git(project, "rev-parse", "--short=12", "HEAD") + "+"
    os.utime(project / "theirs.py", (0, 0))
    assert commit_of(theirs) is not None
    assert not (project.parent / "executed").exists()
    git(project, "status")  # the trap itself works
    assert (project.parent / "executed").exists()


def test_a_tracked_file_has_its_commit_and_a_plus_where_something_was_changed(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "run.py").write_text("a = 1\n")
    git(folder, "init", "-q")
    assert commit_of(folder / "run.py") is None
    git(folder, "add", "run.py")
    assert commit_of(folder / "run.py") is None
    git(folder, "commit", "-q", "-m", "first")
    first = git(folder, "rev-parse", "HEAD")[:12]
    index = (folder / ".git" / "index").read_bytes()
    os.utime(folder / "run.py", (0, 0))  # the same content at another time
    assert commit_of(folder / "run.py") == first
    assert (folder / ".git" / "index").read_bytes() == index
    git(folder, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    (folder / "run.py").write_text("a = 2\n")
    assert commit_of(folder / "run.py") == first + "+"
    assert commit_of(tmp_path / "other" / "run.py") == first
    git(folder, "pack-refs", "--all")
    assert commit_of(tmp_path / "other" / "run.py") == first
    git(tmp_path / "other", "checkout", "-q", "--detach")
    assert commit_of(tmp_path / "other" / "run.py") == first


def test_without_git_or_with_a_damaged_repository_there_is_no_commit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.py"
    file.write_text("a = 1\n")
    (tmp_path / ".git").mkdir()
    assert commit_of(file) is None
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert commit_of(file) is None
    (tmp_path / ".git" / "HEAD").write_text("0" * 40)
    (tmp_path / ".git" / "index").write_bytes(b"DIRC")
    assert commit_of(file) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(pathlib.Path(surefoot.runs.run.__file__)) is None
