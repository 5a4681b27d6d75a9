"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Helper modules beside the tests are importable under the importlib import mode.
sys.path[:0] = [str(path) for path in sorted(pathlib.Path(__file__).parent.iterdir()) if path.is_dir()]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One torch thread a test worker, and the same global random numbers for every test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


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


@pytest.fixture(scope="session", autouse=True)
def _forked_workers() -> Iterator[None]:
    """Runs that tests start in this process have workers that are forked, so that each need not import torch anew.

    Runs that tests start by the command line in a process of its own have workers as users have them.
    """
    from forking import Server

    from surefoot.experiment import workers

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        server = Server(pathlib.Path(folder))
        patch.setattr(workers, "subprocess", server)
        yield
        server.close()
