"""The share of solved episodes in a run's files, tables and report."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
from small_runs import metrics

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError
from surefoot.data import Dataset
from surefoot.evaluation import RunData, tables, write_report
from surefoot.evaluation.results import collect
from surefoot.offline import BC
from surefoot.runs.embedded import generate

ENV = "lucky_env:SurefootLucky-v0"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of behaviour cloning that is evaluated where luck alone decides."""
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "evaluation"))
    generator = np.random.default_rng(0)
    rows, ends = 200, np.arange(200) % 5 == 4
    numbers = generator.normal(size=(rows, 2)).astype(np.float32)
    dataset = Dataset(
        numbers, np.zeros((rows, 1), np.float32), np.zeros(rows, np.float32), numbers, ends, np.zeros(rows, bool),
        np.arange(rows) // 5, np.ones(rows, bool), env_id=ENV,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "lucky"
    surefoot.fit(
        BC(dataset), dataset, steps=2, seeds=1, batch_size=4, episodes=20, out=folder, progress=False, trust=True
    )
    return folder


def test_a_run_keeps_the_rate_in_its_results_its_summary_and_its_report(
    run_folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(next(run_folder.rglob("result.json")).read_text())
    summary = json.loads((run_folder / "summary.json").read_text())
    assert summary["per_seed_success"] == [np.mean(result["evaluation"]["successes"])]
    assert summary["success"]["low"] < summary["success"]["mean"] < summary["success"]["high"]
    run = RunData.load(run_folder)
    curve = run.success_curve()
    assert [point.step for point in curve] == [1, 2]
    assert all(0 <= point.mean <= 1 for point in curve)
    row = tables.run_row(run)
    assert tables.format_share(row.success) == "{:.0f} [{:.0f}, {:.0f}]".format(
        *(100 * summary["success"][key] for key in ("mean", "low", "high"))
    )
    assert "success in % [95 %]" in tables.to_text([row])
    write_report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "share of episodes that end solved" in page.lower()
    from surefoot.cli import main

    assert main(["evaluate", str(run_folder), "--episodes", "10", "--quiet"]) == 0
    assert "% of them solved" in capsys.readouterr().out


def test_a_share_above_one_in_a_summary_is_damage(run_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "per_seed_success": [1.5]}))
    with pytest.raises(CheckpointError, match="per_seed_success"):
        RunData.load(copy)


def test_costs_and_lengths_have_curves_where_the_environment_has_costs(
    tmp_path: pathlib.Path, in_process: None
) -> None:
    dataset = generate("native/quadrotor-2d-mixed", transitions=200)
    run = surefoot.fit(
        BC(dataset, hidden=(8,)), dataset, steps=2, seeds=2, batch_size=4, episodes=2, evaluate_episodes=3,
        evaluate_every=1, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    values = [line["values"] for line in metrics(run) if line["kind"] == "eval"]
    assert len(values) == 4
    assert all(one["cost_mean"] == np.mean(one["costs"]) and len(one["costs"]) == 3 for one in values)
    assert all(one["length_mean"] >= 1 for one in values)
    points = RunData.load(run.folder).cost_curve()
    assert [point.step for point in points] == [1, 2]
    assert points[-1].mean == pytest.approx(np.mean([one["cost_mean"] for one in values[2:]]))
    assert all(point.low >= 0 for point in points)
    logged = {(row[8], row[9]) for row in collect([run.folder], episodes=True).numbers}
    assert {("eval/cost_mean", None), ("eval/length_mean", None), ("eval/cost", 2)} <= logged
    write_report([RunData.load(run.folder)], tmp_path / "report.html")
    assert "Mean cost of an evaluation episode" in (tmp_path / "report.html").read_text()


def test_evaluate_until_shows_no_interval_but_the_one_that_holds_at_every_look(
    run_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", str(run_folder), "--until", "0.2", "--trust", "-q"]
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    row = shown["rows"][0]
    assert {key: shown["until"][key] for key in ("mean", "low", "high", "method")} == row["success"]
    assert "holds at every look" in row["success"]["method"]
    assert (row["returns"]["low"], row["returns"]["high"]) == (None, None)
    assert main(command) == 0
    text = capsys.readouterr().out
    share = tables.format_share(row["success"])
    assert share in text
    assert text.count("[") - text.count("[95 %]") == 2, "of the success, in the table and below it"
    assert "Other means have no interval" in text
