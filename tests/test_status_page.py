"""docs/status.md is what docs/status.toml says, and every test and result that it names exists."""

from __future__ import annotations

import copy
import functools
import importlib.util
import pathlib
import tomllib
from types import ModuleType
from typing import Any

import pytest

from surefoot.runs.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).resolve().parents[1]


@functools.cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("status_page", ROOT / "tools" / "status_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data() -> dict[str, Any]:
    return tomllib.loads((ROOT / "docs" / "status.toml").read_text(encoding="utf-8"))


def test_every_algorithm_has_a_row_and_all_that_is_named_exists(data: dict[str, Any]) -> None:
    assert script().problems(data, ALGORITHMS) == []


def test_the_committed_page_is_up_to_date(data: dict[str, Any]) -> None:
    written = (ROOT / "docs" / "status.md").read_text(encoding="utf-8")
    assert written == script().page(data), "run python tools/status_page.py"


def test_cells_are_short(data: dict[str, Any]) -> None:
    for name, row in data["algorithm"].items():
        assert len(row["compared"]) <= 80, name
        assert len(row["golden"] + row["known"]) > 0, name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.pop("iql"), "iql: has no row"),
        (lambda rows: rows.update(iqll=rows["iql"]), "iqll: no algorithm has this name"),
        (lambda rows: rows["iql"]["golden"].append("tests/offline/test_losses.py::test_gone"), "has no test test_gone"),
        (lambda rows: rows["iql"]["known"].append("tests/test_gone.py"), "iql: tests/test_gone.py is not there"),
        (lambda rows: rows["iql"]["known"].append("as iqll"), "iql: there is no row 'iqll'"),
        (lambda rows: rows["iql"]["learning"].append("gone"), "iql: benchmarks/results/gone.md is not there"),
        (lambda rows: rows["iql"].pop("compared"), "iql: has"),
    ],
)
def test_what_is_missing_is_named(data: dict[str, Any], change: Any, said: str) -> None:
    changed = copy.deepcopy(data)
    change(changed["algorithm"])
    assert any(said in problem for problem in script().problems(changed, ALGORITHMS))
