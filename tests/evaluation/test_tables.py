from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Callable

from rich.console import Console

from surefoot.evaluation import load_runs, tables
from surefoot.evaluation.report import render

MakeRun = Callable[..., pathlib.Path]


def rows_of(make_run: MakeRun) -> list[tables.Row]:
    folders = [
        make_run("a", algorithm="bc", returns={"mean": -1100.0, "low": None, "high": None}),
        make_run("b", dataset="other", behaviour=None, cost={"mean": 3.0, "low": 1.0, "high": 5.0}),
        make_run("c"),
    ]
    return tables.rows(load_runs(folders))


def test_the_behaviour_comes_first_in_each_task_and_once(make_run: MakeRun) -> None:
    listed = rows_of(make_run)
    assert [(row.algorithm, row.dataset) for row in listed] == [
        ("behaviour", "native/pendulum-mixed"),
        ("bc", "native/pendulum-mixed"),
        ("iql", "native/pendulum-mixed"),
        ("iql", "other"),
    ]
    assert listed[0].seeds is None
    assert listed[0].episodes == 250


def test_text_terminal_and_json_show_the_same_numbers(make_run: MakeRun) -> None:
    listed = rows_of(make_run)
    text = tables.to_text(listed)
    console = Console(file=io.StringIO(), width=200)
    console.print(tables.to_rich(listed))
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    for cell in (
        "-160.0 [-184.8, -135.2]",
        "-1060.0 [-1145.0, -976.0]",
        "3.0 [1.0, 5.0]",
        "10,000",
        "return [95 %]",
    ):
        assert cell in text
        assert cell in drawn
    assert "-1100.0 [" not in text  # no interval, no brackets
    parsed = json.loads(tables.to_json(listed))
    assert parsed[2]["returns"]["low"] == -184.8
    assert parsed[0]["updates_per_second"] is None


def test_a_preset_stands_beside_the_algorithm_where_the_run_names_one(make_run: MakeRun) -> None:
    runs = load_runs([make_run("a", algorithm="fisor", preset="small"), make_run("b", preset=None), make_run("c")])
    listed = tables.rows(runs)
    assert [row.preset for row in listed] == [None, "small", None, None]
    text = tables.to_text(listed)
    assert "fisor (small)  native" in text
    assert text.count("iql  ") == 2
    assert "(None)" not in text
    page = render(runs)
    assert '<td class="left">fisor (small)</td>' in page
    assert "a: fisor (small) on" in page


def test_columns_with_nothing_to_say_are_left_out(make_run: MakeRun) -> None:
    listed = tables.rows(load_runs([make_run()]))
    assert "cost" not in tables.to_text(listed)
    assert "normalised" not in tables.to_text(listed)


def test_plain_text_is_aligned(make_run: MakeRun) -> None:
    lines = tables.to_text(rows_of(make_run)).splitlines()
    start = lines[0].index("dataset")
    assert all(line[start - 1] == " " and line[start] != " " for line in lines)


def test_markup_in_a_name_is_printed_and_not_obeyed(make_run: MakeRun) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(tables.to_rich(tables.rows(load_runs([make_run(algorithm="[red]x[/red]")]))))
    assert isinstance(console.file, io.StringIO)
    assert "[red]x[/red]" in console.file.getvalue()
