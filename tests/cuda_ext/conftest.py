"""Fixtures that several files of these tests ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_cuda import FakeCuda, installed
from levels import LEVELS, LIBRARY

from surefoot.cuda_ext import cubin


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run at each instruction set of this machine."""
    best = LIBRARY.level()
    LIBRARY.set_level(request.param)
    assert LIBRARY.level() == request.param
    yield request.param
    LIBRARY.set_level(best)


@pytest.fixture
def nvrtc() -> None:
    """Skip where NVIDIA's compiler is not installed."""
    try:
        cubin.compiler()
    except cubin.MissingPackageError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, nvrtc: None) -> FakeCuda:
    """CUDA without a driver, for tensors of the processor."""
    return installed(monkeypatch)
