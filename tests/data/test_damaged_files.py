"""Randomly damaged files load soundly or are refused (benchmarks/fuzz_files.py runs more)."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    path = ROOT / "benchmarks" / "fuzz_files.py"
    spec = importlib.util.spec_from_file_location("fuzz_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_files"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("index", "count"), [(0, 60), (1, 60), (2, 40)])
def test_damaged_files_are_refused_or_load_soundly(
    fuzz: ModuleType, tmp_path: pathlib.Path, index: int, count: int
) -> None:
    target = fuzz.TARGETS[index]
    outcome = fuzz.run(target, count, seed=1000, folder=tmp_path)
    assert outcome.failures == []
    assert outcome.counts["refused"] > count / 4
    assert outcome.counts["loaded"] == 0 or not target.ours


def test_the_harness_notices_a_damaged_file_of_ours_that_loads(fuzz: ModuleType, tmp_path: pathlib.Path) -> None:
    blind = fuzz.Target("blind", fuzz.our_hdf5, lambda path: None, ours=True)
    assert fuzz.run(blind, 4, seed=0, folder=tmp_path).counts["failed"] == 4
