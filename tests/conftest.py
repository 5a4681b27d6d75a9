"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Helper modules beside the tests are importable under the importlib import mode.
sys.path[:0] = [str(path) for path in sorted(pathlib.Path(__file__).parent.iterdir()) if path.is_dir()]


def seed() -> None:
    """As `torch.manual_seed(0)`, which takes three stack traces where there is no device: a third of an empty test."""
    if torch.cuda.is_initialized():
        torch.manual_seed(0)
    else:
        torch.default_generator.manual_seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file of tests draws as it is read (networks to be parameters of a test) is the same in every run."""
    if isinstance(collector, pytest.Module):
        seed()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nine thousand tests are not looked through for garbage: a third of the time in which a worker reads them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One torch thread a test worker, and the same global random numbers for every test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    seed()
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

    Processes that tests start by `subprocess` have workers as users have them; see `forking`.
    """
    import forking

    from surefoot.runs.processes import workers

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        server = forking.Server(f"{folder}/fork")
        patch.setattr(forking, "SERVER", server)
        patch.setattr(workers, "start_python", server.start_python)
        yield
        server.close()


@pytest.fixture(scope="session", autouse=True)
def _one_table_of_operators() -> Iterator[None]:
    """The exporter to ONNX reads its table of operators once, not for each file: that took it a fifth of its time."""
    from surefoot.core.policy import export

    to_onnx = export._onnx
    with pytest.MonkeyPatch.context() as patch:

        def first(*arguments: Any) -> bytes:
            patch.setattr(export, "_onnx", to_onnx)
            with contextlib.suppress(ImportError, AttributeError):  # of another torch
                from torch.onnx._internal.exporter._registration import ONNXRegistry

                once = functools.cache(ONNXRegistry.from_torchlib)
                patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(once))
            return to_onnx(*arguments)

        patch.setattr(export, "_onnx", first)
        yield
