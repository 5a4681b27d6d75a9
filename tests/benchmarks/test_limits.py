"""What the speed benchmarks call the limit of a core."""

from __future__ import annotations

import importlib
import pathlib
from types import ModuleType

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def engine_speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("engine_speed")


def test_a_rate_is_divided_by_the_cores_peak_and_not_by_what_torchs_product_reaches(engine_speed: ModuleType) -> None:
    """240 GFLOP/s are 120 updates of 2 GFLOP; 60 of them are half, where a product at 121 would call it 0.99."""
    limit = {"peak_gflops_per_second": 240.0, "torch_product_gflops_per_second": 121.0}
    text = engine_speed.of_the_limit(limit, 2e9, {"ours": 60.0})
    assert "peak of 240 GFLOP/s" in text
    assert "are 120 updates/s" in text
    assert "Reached of it: ours 0.50." in text
    assert "0.50 of the peak" in text


def test_the_limit_is_the_best_of_several_measurements_since_neighbours_only_take(engine_speed: ModuleType) -> None:
    found = [{"peak": 90.0, "product": None}, {"peak": 104.0, "product": None}, {"peak": None, "product": None}]
    assert engine_speed.best_limit(found) == {"peak": 104.0, "product": None}


def test_nothing_is_divided_where_the_peak_is_not_measured(engine_speed: ModuleType) -> None:
    limit = {"peak_gflops_per_second": None, "torch_product_gflops_per_second": 121.0}
    assert engine_speed.of_the_limit(limit, 2e9, {"ours": 60.0}).startswith("The limit of a core is not measured")
