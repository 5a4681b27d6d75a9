"""A study's results survive kills and several writers, and a cell that is there is never computed twice."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import sys
from typing import Any

import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def read(path: pathlib.Path) -> dict[str, Any]:
    from cells import read_cells

    return read_cells(path)


def append(path: pathlib.Path, name: str, result: dict[str, Any]) -> bool:
    from cells import append_cell

    return append_cell(path, name, result)


def test_cells_come_back_in_the_order_in_which_they_were_written(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "new" / "study.jsonl"
    assert read(file) == {}
    results = {"b": {"returns": [0.1, 1e-300, 3]}, "a": {"cell": "no key of ours", "last": None}}
    assert all(append(file, name, result) for name, result in results.items())
    assert list(read(file).items()) == list(results.items())
    assert [json.loads(line)["cell"] for line in file.read_text().splitlines()] == ["b", "a"]


def test_a_half_written_last_line_is_ignored_and_then_replaced(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "study.jsonl"
    append(file, "first", {"value": 1})
    whole = file.read_bytes()
    append(file, "second", {"value": 2})
    for length in range(len(whole), len(file.read_bytes())):
        killed = tmp_path / f"killed-{length}.jsonl"
        killed.write_bytes(file.read_bytes()[:length])
        assert read(killed) == {"first": {"value": 1}}
        assert append(killed, "second", {"value": 2})
        assert killed.read_bytes() == file.read_bytes()


def test_a_cell_that_is_there_is_not_written_again(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "study.jsonl"
    assert append(file, "one", {"value": 1})
    assert not append(file, "one", {"value": 2})
    assert read(file) == {"one": {"value": 1}}


@pytest.mark.parametrize("line", ["{", '{"name": "a"}', "[]", '{"cell": "a"}'])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: pathlib.Path, line: str) -> None:
    file = tmp_path / "study.jsonl"
    append(file, "one", {})
    file.write_text(file.read_text() + line + "\n" + '{"cell":"two","result":{}}\n')
    with pytest.raises(SystemExit, match=r"study\.jsonl, line 2: not a cell"):
        read(file)


def test_a_cell_that_is_there_twice_is_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "study.jsonl"
    append(file, "one", {})
    file.write_text(file.read_text() * 2)
    with pytest.raises(SystemExit, match=r"line 2: cell one is there twice"):
        read(file)


def test_results_that_json_does_not_have_are_refused_and_leave_no_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "study.jsonl"
    append(file, "one", {})
    with pytest.raises(ValueError, match="JSON"):
        append(file, "two", {"value": float("nan")})
    assert list(read(file)) == ["one"]


def _fill(path: str, writer: int) -> int:
    """How many of 30 cells this writer wrote; in a process of its own."""
    sys.path.insert(0, str(BENCHMARKS))
    from cells import append_cell

    return sum(append_cell(pathlib.Path(path), f"cell-{k}", {"by": writer, "fill": "x" * 5_000}) for k in range(30))


def test_processes_that_write_at_once_lose_and_double_nothing(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "study.jsonl"
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        written = list(pool.map(_fill, [str(file)] * 4, range(4)))
    found = read(file)
    assert sum(written) == len(found) == 30
    assert [sum(one["by"] == k for one in found.values()) for k in range(4)] == written


def test_a_study_computes_only_what_is_missing(tmp_path: pathlib.Path) -> None:
    import study

    file, computed = tmp_path / "study.jsonl", []
    append(file, "b", {"value": "kept"})

    def result(name: str) -> dict[str, Any]:
        computed.append(name)
        return {"value": name}

    cells = [study.Cell(name, lambda name=name: result(name)) for name in "abc"]
    study.carry_out(cells, file, jobs=1)
    study.carry_out(cells, file, jobs=2)
    assert computed == ["a", "c"]
    assert read(file) == {"b": {"value": "kept"}, "a": {"value": "a"}, "c": {"value": "c"}}


def test_each_cell_has_one_core_and_what_was_said_before_holds_after(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import study

    monkeypatch.setenv("SUREFOOT_CORES", "64")
    cells = [study.Cell(name, lambda: {"cores": study.cores()}) for name in "ab"]
    study.carry_out(cells, tmp_path / "study.jsonl", jobs=2)
    assert [found["cores"] for found in read(tmp_path / "study.jsonl").values()] == [1, 1]
    assert os.environ["SUREFOOT_CORES"] == "64"
