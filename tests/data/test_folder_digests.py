"""The digest of a folder: that of all its files, which are read again only where size or time of change differ."""

from __future__ import annotations

import os
import pathlib

import pytest

from surefoot.data import files
from surefoot.data.files import cache_folder, digest_of, sha256_of


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Three files that changed long ago, in one folder and one inside it."""
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "data"
    for name in ("a", "b", "videos/c"):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        os.utime(path, (1e9, 1e9))
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed, as they are."""
    found: list[str] = []
    real = files.sha256_of

    def noted(path: pathlib.Path) -> str:
        found.append(path.name)
        return real(path)

    monkeypatch.setattr(files, "sha256_of", noted)
    return found


def test_it_is_the_digest_of_the_whole_and_is_found_again_without_reading(
    folder: pathlib.Path, read: list[str]
) -> None:
    wanted = sha256_of(folder)
    read.clear()
    assert digest_of(folder) == wanted
    assert read == ["a", "b", "c"]
    assert digest_of(folder) == wanted
    assert read == ["a", "b", "c"]


def test_files_that_changed_are_read_again_and_others_are_not(folder: pathlib.Path, read: list[str]) -> None:
    digest_of(folder)
    read.clear()
    (folder / "a").write_bytes(b"A")  # of the same size, now
    (folder / "d").write_bytes(b"new")
    changed = digest_of(folder)
    assert read == ["a", "d"]
    (folder / "b").unlink()
    assert digest_of(folder) != changed
    read.clear()
    assert digest_of(folder) == sha256_of(folder)
    assert read[:2] == ["a", "d"]  # changed a moment ago: a second change might not show


def test_a_damaged_cache_costs_time_and_nothing_else(folder: pathlib.Path, read: list[str]) -> None:
    wanted = digest_of(folder)
    (kept,) = (cache_folder() / "digests").iterdir()
    for text in ("{", "[]", '{"a": [1, 2]}', '{"a": [1, 1000000000000000000, "x"]}'):
        kept.write_text(text)
        read.clear()
        assert digest_of(folder) == wanted
        assert "a" in read
