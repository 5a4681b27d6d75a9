"""Randomly damaged files load soundly or are refused (benchmarks/fuzz_files.py runs more)."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))  # a benchmark's own modules lie beside it
    return importlib.import_module("fuzz_files")


def outcomes(fuzz: ModuleType, target: Any, count: int, folder: pathlib.Path) -> Counter[str]:
    """How many cases of a kind of file ended how; a failure is given."""
    originals = target.make(folder)
    cases = [fuzz.one(target, originals, 1000 + number, folder / "executed") for number in range(count)]
    for case in cases:
        if case["outcome"] == "failed":
            print(case)
    return Counter(case["outcome"] for case in cases)


@pytest.mark.parametrize(
    ("name", "count"),
    [("HDF5 of others", 24), ("HDF5 of ours", 24), ("NPZ", 24), ("CSV", 40), ("policy", 60)]
    + [("prompts and feedback", 60), ("sweeps and studies", 60), ("Parquet", 30)],
)
def test_damaged_files_are_refused_or_load_soundly(
    fuzz: ModuleType, tmp_path: pathlib.Path, name: str, count: int
) -> None:
    target = next(target for target in fuzz.TARGETS if target.name == name)
    found = outcomes(fuzz, target, count, tmp_path)
    assert found["failed"] == 0
    assert found["refused"] > count / 4


def test_the_harness_notices_a_damaged_file_of_ours_that_loads(fuzz: ModuleType, tmp_path: pathlib.Path) -> None:
    kinds = importlib.import_module("fuzz_kinds")
    blind = fuzz.Target("blind", kinds.own_hdf5, lambda path: None, kinds.bytes_damaged, ours=True)
    found = outcomes(fuzz, blind, 8, tmp_path)
    assert found["failed"] == 8 - found["unchanged"] >= 6
