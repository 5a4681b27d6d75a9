from __future__ import annotations

import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from surefoot.evaluation import cost_interval, hierarchical_interval, load_runs, names, tables
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
    console.print(*tables.to_rich(listed, width=200))
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    for cell in (
        "-160.0 [-184.8, -135.2]",
        "-1060.0 [-1145.0, -976.0]",
        "3.0 [1.0, 5.0]",
        "10,000",
    ):
        assert cell in text
        assert cell in drawn
    assert "-1100.0 [" not in text  # no interval, no brackets
    parsed = json.loads(tables.to_json(listed))
    assert parsed[2]["returns"]["low"] == -184.8
    assert parsed[0]["updates_per_second"] is None


def test_a_preset_stands_beside_the_algorithm_where_the_run_names_one(make_run: MakeRun) -> None:
    runs = load_runs([make_run("a", algorithm="fisor", preset="small"), make_run("b", preset=None)])
    listed = tables.rows(runs)
    assert [row.preset for row in listed] == [None, "small", None]
    text = tables.to_text(listed)
    assert "fisor (small)  native" in text
    assert text.count("iql  ") == 1
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
    console.print(*tables.to_rich(tables.rows(load_runs([make_run(algorithm="[red]x[/red]")]))))
    assert isinstance(console.file, io.StringIO)
    assert "[red]x[/red]" in console.file.getvalue()


SAFETY = {"episodes": 150, "mean": 12.3, "percentile_95": 88.1, "largest": 120.0, "violated": 0.42, "per_step": 0.0321,
          "per_episode": 3.21, "limit": 25.0, "normalized": 0.49, "over_limit": 0.1}  # fmt: skip


def swept(make_run: MakeRun, name: str, expectile: float, **changes: Any) -> pathlib.Path:
    folder = make_run(name, preset=None, options={"expectile": expectile}, **changes)
    plan = {"config": {"expectile": expectile, "hidden": [256, 256]}, "steps": 10000}
    (folder / "config.json").write_text(json.dumps({"plan": plan}))
    return folder


@pytest.mark.parametrize("width", [60, 80, 110])
def test_no_number_is_cut_in_a_narrow_terminal(make_run: MakeRun, width: int) -> None:
    wide = {"mean": -1185.2, "low": -3021.7, "high": 2601.3}
    run = swept(
        make_run, "00-a", 0.9, returns=wide, normalized={"mean": 83.2, "low": -12.3, "high": 160.2},
        cost={"mean": 12.3, "low": 0.0, "high": 124.9}, safety=SAFETY, steps=1_000_000,
    )  # fmt: skip
    listed = tables.rows(load_runs([run]))
    console = Console(file=io.StringIO(), width=width)
    for table in tables.to_rich(listed, details=True, width=width):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    for column in tables.columns_of(listed, details=True)[1:]:
        for row in listed:
            assert any(column.cell(row) in line for line in lines), column.heading


def test_runs_of_a_sweep_are_told_apart_by_what_was_varied(make_run: MakeRun) -> None:
    runs = load_runs([swept(make_run, "00-a", 0.7), swept(make_run, "01-b", 0.9), make_run("02-c", algorithm="bc")])
    assert [row.label for row in tables.rows(runs)] == ["behaviour", "iql (expectile=0.7)", "iql (expectile=0.9)", "bc"]
    page = render(runs)
    assert page.count("iql (expectile=0.9)") >= 3  # table, comparisons, details
    again = load_runs([swept(make_run, "x", 0.7), swept(make_run, "y", 0.7)])
    assert names.labels(again) == ["iql (expectile=0.7) (x)", "iql (expectile=0.7) (y)"]


def test_one_seed_gets_no_comparison_and_no_interval_without_width(make_run: MakeRun) -> None:
    alone = {"seeds": [0], "returns": {"mean": -150.0, "low": -150.0, "high": -150.0}, "per_seed_returns": [-150.0]}
    runs = load_runs([make_run("a", **alone), make_run("b", algorithm="bc", **alone)])
    page = render(runs)
    assert "Probability of improvement" not in page
    assert "nothing can be reported about other seeds" in page
    assert "of one training seed" in page
    assert "over seeds; the band" not in page
    assert tables.format_bounds(runs[0].returns) == "-150.0"


def test_the_page_says_what_every_column_means(make_run: MakeRun) -> None:
    runs = load_runs([make_run("a", cost={"mean": 1.0, "low": 0.5, "high": 1.5}, safety=SAFETY)])
    page = render(runs)
    for column in tables.columns_of(tables.rows(runs), details=True):
        if column.heading not in ("dataset", "environment"):
            assert f"<dt>{column.heading}</dt><dd>{column.meaning[:20]}" in page


def test_the_interval_of_a_cost_does_not_go_below_nothing() -> None:
    costs = [np.array([0.0, 0.0, 9.0]), np.array([0.0, 1.0, 0.0])]
    assert hierarchical_interval(costs).low < 0.0
    assert cost_interval(costs).low == 0.0
    assert cost_interval(costs).high == hierarchical_interval(costs).high


def test_a_row_of_one_seed_is_told_to_have_its_interval_over_episodes(make_run: MakeRun) -> None:
    bounds = {"mean": -150.0, "low": -160.0, "high": -140.0, "method": "Student t over 4 episodes"}
    one = make_run("one", seeds=[0], per_seed_returns=[-150.0], returns=bounds)
    three = make_run("three")
    assert tables.alone(tables.rows(load_runs([one])))
    assert not tables.alone(tables.rows(load_runs([three])))
    said = "Intervals of one seed are over its episodes, and say nothing of other seeds."
    assert said in render(load_runs([one, three]))
    assert said not in render(load_runs([three]))
    without = {**bounds, "low": None, "high": None}
    assert not tables.alone(
        tables.rows(load_runs([make_run("bare", seeds=[0], per_seed_returns=[1.0], returns=without)]))
    )
