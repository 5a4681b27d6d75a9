from __future__ import annotations

import csv
import json
import math
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import Episodes, RunData, hierarchical_interval
from surefoot.evaluation.overview import curve, render, write_overview
from surefoot.evaluation.pooling import Pooled, pooled, pooled_interval, repeated, repeated_seeds
from surefoot.evaluation.results import NUMBERS, collect, groups, run_folders, write

MakeRun = Callable[..., pathlib.Path]


def test_every_logged_number_is_a_row_and_final_scores_too(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("first")
    found = collect([tmp_path])
    assert len(found.numbers) == 6 + 1 + 3
    rows = [dict(zip(NUMBERS, row, strict=True)) for row in found.numbers]
    train = next(row for row in rows if row["metric"] == "train/value_loss")
    assert (train["seed"], train["step"], train["value"], train["episode"]) == (0, 100, 1.0, None)
    finals = [row for row in rows if row["metric"] == "final/return"]
    assert [(row["seed"], row["value"]) for row in finals] == [(0, -150), (1, -160), (2, -170)]
    assert {row["step"] for row in finals} == {10000}
    assert {row["split"] for row in rows} == {"none"}
    assert len(collect([tmp_path], episodes=True).numbers) == len(rows) + 6 * 4


def test_damaged_and_unfinished_runs_are_named_and_left_out(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("whole")
    (make_run("torn") / "summary.json").write_text('{"algorithm": "iq')
    (make_run("unfinished") / "summary.json").unlink()
    (make_run("cut") / "metrics.jsonl").write_text('{"seed": 0, "st')
    (make_run("empty") / "config.json").write_text("")
    found = collect([tmp_path])
    assert [run.name for run in found.runs] == ["whole"]
    assert {pathlib.Path(name).name for name in found.left_out} == {"torn", "unfinished", "cut", "empty"}
    assert "has not finished" in found.left_out[str(tmp_path / "unfinished")]
    assert "metrics.jsonl, line 1" in found.left_out[str(tmp_path / "cut")]


def test_runs_inside_runs_are_found_and_none_twice(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("outer")
    make_run("inner").rename(tmp_path / "outer" / "inner")
    assert [run.name for run in collect([tmp_path, tmp_path / "outer"]).runs] == ["outer", "inner"]


def test_the_run_that_auto_hands_over_counts_once(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("chosen")
    (tmp_path / "chosen" / "config.json").write_text(json.dumps({"plan": {"algorithm": "bc"}}))
    (tmp_path / "chosen" / "portfolio").mkdir()
    for name in ("bc", "td3bc"):
        make_run(name).rename(tmp_path / "chosen" / "portfolio" / name)
    assert len(list(run_folders([tmp_path]))) == 3
    (tmp_path / "chosen" / "auto.json").write_text("{}")
    assert [folder.name for folder in run_folders([tmp_path])] == ["chosen", "td3bc"]


def test_runs_of_a_tuning_study_say_which_seeds_they_have(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    study = tmp_path / "study"
    for place in ("trials", "test"):
        (study / place).mkdir(parents=True)
        make_run(place).rename(study / place / "a")
    (study / "tune.json").write_text(json.dumps({"seeds": [0], "test_seeds": [5]}))
    found = collect([study])
    assert {pathlib.Path(row[0]).parent.name: row[9] for row in found.table} == {"trials": "tune", "test": "test"}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_numbers_are_read_back_bit_for_bit(make_run: MakeRun, tmp_path: pathlib.Path, ending: str) -> None:
    values = [0.1 + 0.2, 1 / 3, -1e-310, 1.7976931348623157e308]
    make_run("run", seeds=[0, 1, 2, 7], per_seed_returns=values)
    found = collect([tmp_path])
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path, runs = write(found, tmp_path / f"table.{ending}")
    assert runs.name == f"table-runs.{ending}"
    if ending == "csv":
        with open(path, newline="") as file:
            back = [float(row["value"]) for row in csv.DictReader(file)]
    elif ending == "jsonl":
        back = [json.loads(line)["value"] for line in path.read_text().splitlines()]
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        assert table.column_names == list(NUMBERS)
        back = table.column("value").to_pylist()
        assert table.column("episode").to_pylist() == [None] * len(back)
    assert back == [row[-1] for row in found.numbers]
    assert back[-4:] == values


def test_a_number_that_is_none_stays_so_in_json_lines(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    folder = make_run("run")
    line = {"seed": 0, "step": 1, "kind": "eval", "values": {"return_mean": math.nan}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    path, _ = write(collect([tmp_path]), tmp_path / "t.jsonl")
    assert None in [json.loads(text)["value"] for text in path.read_text().splitlines()]


def test_runs_that_differ_in_seeds_alone_are_one_setting(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for name, seeds, expectile in (("a", [0, 1, 2], 0.7), ("b", [3, 4, 5], 0.7), ("c", [0, 1, 2], 0.9)):
        folder = make_run(name, seeds=seeds)
        (folder / "config.json").write_text(json.dumps({"plan": {"config": {"expectile": expectile, "x": 1}}}))
    (found,) = groups(collect([tmp_path])).values()
    assert {label: [run.name for run in runs] for label, runs in found.items()} == {
        "iql (expectile=0.7)": ["a", "b"],
        "iql (expectile=0.9)": ["c"],
    }


def test_runs_of_other_collectors_are_not_pooled(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    plans = {"a": {}, "b": {"workers": 1, "collect_steps": 32}, "c": {"workers": 4}, "d": {"collect_steps": 1}}
    for k, (name, plan) in enumerate(plans.items()):
        folder = make_run(name, seeds=[3 * k, 3 * k + 1, 3 * k + 2])
        (folder / "config.json").write_text(json.dumps({"plan": {"config": {}, "collectors": "processes", **plan}}))
    (found,) = groups(collect([tmp_path])).values()
    assert sorted([run.name for run in runs] for runs in found.values()) == [["a", "b"], ["c"], ["d"]]


def test_seeds_that_several_folders_hold_are_told(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("a", seeds=[0, 1], per_seed_returns=[1.0, 2.0])
    make_run("b", seeds=[1, 2, 3], per_seed_returns=[5.0, 3.0, 4.0], episodes=9)
    make_run("c", seeds=[2, 3, 4], per_seed_returns=[6.0, 6.0, 7.0])
    a, b, c = (tmp_path / name for name in "abc")
    runs = [RunData.load(folder) for folder in (a, b, c)]
    assert list(pooled(runs, "per_seed_returns").values()) == [1, 2, 3, 4, 7]
    said = [
        f"seed 1 occurs in {a}, {b}: counted once, as in {a}",
        f"seeds 2, 3 occur in {b}, {c}: counted once, as in {b}",
    ]
    assert repeated(runs) == said
    assert repeated(runs[:1]) == []
    found = collect([tmp_path])
    assert all(f'<p class="note">1. iql: {one}</p>' in render(found) for one in said)
    assert repeated_seeds(found) == [f"native/pendulum-mixed in Pendulum-v1, iql: {one}" for one in said]


def test_runs_that_learned_from_other_data_or_rewards_are_not_pooled(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for name, sha, reward in (("a", "1" * 64, None), ("b", "2" * 64, None), ("c", "2" * 64, "mine:reward")):
        folder = make_run(name, dataset="/a/log.hdf5" if name == "a" else "/b/log.hdf5")
        plan = {"config": {"x": 1}, "reward": reward}
        (folder / "config.json").write_text(json.dumps({"plan": plan, "dataset": {"sha256": sha}}))
    found = groups(collect([tmp_path]))
    assert {task: sorted(settings) for task, settings in found.items()} == {
        f"log in Pendulum-v1 (SHA-256 {'1' * 12})": ["iql"],
        f"log in Pendulum-v1 (SHA-256 {'2' * 12})": ["iql (reward=mine:reward)", "iql (reward=null)"],
    }


def test_tuning_seeds_are_not_pooled_with_test_seeds(
    make_run: MakeRun, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, seeds in (("trials", [0, 1, 2]), ("test", [3, 4, 5])):
        (tmp_path / "study" / place).mkdir(parents=True)
        make_run(place, seeds=seeds).rename(tmp_path / "study" / place / "a")
    (tmp_path / "study" / "tune.json").write_text(json.dumps({"seeds": [0, 1, 2], "test_seeds": [3, 4, 5]}))
    (found,) = groups(collect([tmp_path])).values()
    assert {label: runs[0].seeds for label, runs in found.items()} == {
        "iql, test seeds": (3, 4, 5),
        "iql, tuning seeds": (0, 1, 2),
    }
    monkeypatch.chdir(tmp_path / "study" / "trials")
    assert [row[9] for row in collect(["."]).table] == ["tune"]


def test_the_page_has_all_settings_and_says_what_is_left_out(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    for i in range(9):
        folder = make_run(f"run{i}")
        (folder / "config.json").write_text(json.dumps({"plan": {"config": {"expectile": i / 10}}}))
    (make_run("torn <b>") / "summary.json").write_text("{")
    page = render(collect([tmp_path]))
    assert page.count("iql (expectile=") >= 9
    assert "The pictures show the 7 best of 9 settings" in page
    assert "torn &lt;b&gt;" in page
    assert "0 (3 of 3 got there)" in page  # the first evaluation is above the data's mean return
    write_overview(collect([tmp_path]), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_bands_of_few_seeds_are_not_to_be_relied_on_and_one_seed_has_none(
    make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    make_run("three", steps=10000)
    folder = make_run("one", seeds=[0], per_seed_returns=[-140.0])
    (folder / "config.json").write_text(json.dumps({"plan": {"config": {"expectile": 0.9}}}))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["seed"] == 0))
    one, three = curve([RunData.load(folder)]), curve([RunData.load(tmp_path / "three")])
    assert [(point.step, point.mean) for point in one] == [(0, -1000), (5000, -500)]
    assert all(math.isnan(point.low) and math.isnan(point.high) for point in one)
    assert all(point.low < point.mean < point.high for point in three)
    said = "One seed has none. With only 3 seeds such bands are too narrow; trust the table."
    assert render(collect([tmp_path])).count(said) == 2, "below the curves and below the profile"
    many = {f"many{k}": list(range(5 * k, 5 * k + 5)) for k in range(2)}
    for name, seeds in many.items():
        folder = make_run(name, seeds=seeds, per_seed_returns=[-150.0 - seed for seed in seeds])
        line = {"step": 0, "kind": "eval", "values": {"return_mean": -1000.0}}
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"seed": s, **line}) + "\n" for s in seeds))
    page = render(collect([tmp_path / name for name in many]))
    assert "95 % band" in page
    assert "too narrow" not in page


def test_intervals_of_shares_and_costs_end_where_they_can(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("run", per_seed_success=[1.0, 1.0, 0.7], per_seed_costs=[0.0, 0.1, 5.0])
    page = render(collect([tmp_path])).replace("<span>", "").replace("</span>", "")
    assert "90 [47, 100]" in page  # of 90 +- 4.303 * 17.32 / sqrt(3)
    assert "1.7 [0.0, 8.8]" in page  # of 1.7 +- 4.303 * 2.858 / sqrt(3)


def test_the_page_has_the_intervals_of_the_terminal(make_run: MakeRun, tmp_path: pathlib.Path) -> None:
    make_run("run")  # whose episodes are not there, but its summary is
    run = RunData.load(tmp_path / "run")
    assert pooled_interval([run], "per_seed_returns") == Pooled(run.returns)
    page = render(collect([tmp_path])).replace("<span>", "").replace("</span>", "")
    assert "-160.0 [-184.8, -135.2]<" in page


def test_pooled_runs_have_the_interval_of_one_run_with_all_their_seeds(
    make_run: MakeRun, tmp_path: pathlib.Path
) -> None:
    generator = np.random.default_rng(0)
    table = generator.normal(size=(4, 1)) + 5 * generator.normal(size=(1, 6))  # initial states tell, seeds hardly
    for name, seeds in (("a", (0, 1)), ("b", (2, 3))):
        folder = make_run(name, seeds=list(seeds), per_seed_returns=[float(table[seed].mean()) for seed in seeds])
        for seed in seeds:
            (folder / f"seeds/{seed}").mkdir(parents=True)
            found = Episodes(table[seed], np.ones(6, np.int64), costs=np.abs(table[seed]))
            (folder / f"seeds/{seed}/result.json").write_text(json.dumps({"evaluation": found.to_json()}))
    runs = [RunData.load(tmp_path / name) for name in ("a", "b")]
    assert pooled_interval(runs, "per_seed_returns") == Pooled(hierarchical_interval(list(table)).to_json())
    assert pooled_interval(runs, "per_seed_success") == Pooled(None)
    (tmp_path / "b/seeds/3/result.json").unlink()
    alone = pooled_interval(runs, "per_seed_returns")
    assert alone.seeds_alone
    assert (
        alone.bounds
        == hierarchical_interval([row.mean(keepdims=True) for row in table], shared_episodes=False).to_json()
    )
    assert "] over seeds alone" in render(collect([tmp_path])).replace("<span>", "").replace("</span>", "")


def test_what_holds_no_run_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        collect([tmp_path / "absent"])
    with pytest.raises(ConfigError, match="no finished run"):
        render(collect([tmp_path]))
    with pytest.raises(ConfigError, match=r"names no format; tables are written to \.csv, \.jsonl, \.parquet"):
        write(collect([tmp_path]), tmp_path / "t.xlsx")
