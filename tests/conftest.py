"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Folder of the real datasets; tests that need it are reported as skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("SUREFOOT_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "hopper-v5-medium-sb3.hdf5").exists():
        pytest.skip(f"real datasets are not at {folder}; set SUREFOOT_SHARED_DATA")
    return folder


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache out of the tests, and the tests out of the user's cache."""
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
