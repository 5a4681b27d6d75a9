"""The best policy of a run: chosen by evaluations while it trains, measured on episodes that did not choose it."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import metrics, small_dataset

import surefoot
from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.evaluation import Episodes, RunData, evaluate
from surefoot.offline import BC
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run
from surefoot.runs.trainers.best import Best

Capture = pytest.CaptureFixture[str]


class Saved:
    """A policy that notes where it was written."""

    def __init__(self) -> None:
        self.paths: list[pathlib.Path] = []

    def save(self, path: pathlib.Path) -> None:
        self.paths.append(path)


def episodes(returns: list[float], costs: list[float] | None = None) -> Episodes:
    return Episodes(
        np.array(returns), np.full(len(returns), 7), None if costs is None else np.array(costs, dtype=np.float64)
    )


def heard(plan: Plan, found: list[Episodes]) -> tuple[Best, Saved]:
    """The evaluations of steps 10, 20, ..."""
    best, policy = Best(Run(pathlib.Path("run"), plan), [4]), Saved()
    for number, one in enumerate(found, start=1):
        best.observe_outcome(4, 10 * number, one, lambda: policy)  # type: ignore[arg-type,return-value]
    return best, policy


def keeping(**options: Any) -> Plan:
    return Plan(algorithm="bc", config=options, keep_best=True, environment="native/pendulum")


def test_the_highest_mean_is_kept_and_of_equal_ones_the_first() -> None:
    best, policy = heard(keeping(), [episodes([1.0, 3.0]), episodes([2.5, 3.5]), episodes([6.0, 0.0]), episodes([0.0])])
    assert best.chosen == {4: {"step": 20, "returns": [2.5, 3.5], "cost": None}}
    assert policy.paths == [pathlib.Path("run/best/seed4.safetensors")] * 2


def test_under_a_limit_a_policy_that_keeps_it_is_better_and_without_one_the_lower_cost_is() -> None:
    """Limit 5: costs 9, 7, 8 break it, of which 7 is the least; 5 keeps it, and 6 of return 50 does not."""
    broken = [episodes([30.0], [9.0]), episodes([10.0], [7.0]), episodes([40.0], [8.0])]
    kept = [*broken, episodes([2.0], [5.0]), episodes([50.0], [6.0])]
    assert heard(keeping(cost_limit=5.0), broken)[0].chosen[4]["step"] == 20
    assert heard(keeping(cost_limit=5.0), kept)[0].chosen[4]["step"] == 40
    assert heard(keeping(), kept)[0].chosen[4]["step"] == 50


def test_nothing_is_kept_of_a_run_that_does_not_ask_for_it() -> None:
    best, policy = heard(dataclasses.replace(keeping(), keep_best=False), [episodes([1.0])])
    assert not best.chosen
    assert not policy.paths


OPTIONS: dict[str, Any] = {
    "env": "native/pendulum", "steps": 40, "evaluate_every": 10, "evaluate_episodes": 3, "episodes": 4,
    "batch_size": 16, "seeds": [0, 5], "keep_best": True,
}  # fmt: skip


def trained(folder: pathlib.Path, **options: Any) -> Run:
    data = small_dataset()
    return surefoot.fit(BC(data, hidden=(8,), learning_rate=0.03), data, out=folder, **{**OPTIONS, **options})


@pytest.mark.usefixtures("in_process")
def test_the_best_policy_is_that_of_the_best_evaluation_and_its_score_is_of_new_episodes(
    tmp_path: pathlib.Path,
) -> None:
    run = trained(tmp_path / "run")
    best = run.summary["best"]
    for position, seed in enumerate(run.plan.seeds):
        curve = {line["step"]: line["values"]["return_mean"] for line in metrics(run)
                 if line["kind"] == "eval" and line["seed"] == seed}  # fmt: skip
        assert best["per_seed_chosen_by"][position] == pytest.approx(max(curve.values()))
        assert curve[best["per_seed_steps"][position]] == max(curve.values())
        policy = surefoot.load_policy(run.folder, seed, best=True)
        (new,) = evaluate([policy], "native/pendulum", 4, seed=1)
        assert best["per_seed_returns"][position] == pytest.approx(float(new.returns.mean()))
        result = json.loads((run.seed_folder(seed) / "result.json").read_text())["best"]
        assert (result["policy"], result["chosen_by"]["episodes"]) == (f"best/seed{seed}.safetensors", 3)
    assert best["returns"]["mean"] == pytest.approx(np.mean(best["per_seed_returns"]))
    data = RunData.load(run.folder)
    assert data.of_best().per_seed_returns == tuple(best["per_seed_returns"])
    assert data.per_seed_returns == tuple(run.summary["per_seed_returns"])


class Killed(Exception):
    """At the third evaluation, after which no checkpoint was written yet."""


@pytest.mark.usefixtures("in_process")
def test_a_run_that_was_killed_keeps_the_best_policy_of_one_that_was_not(tmp_path: pathlib.Path) -> None:
    whole = trained(tmp_path / "whole", seeds=[5])
    seen: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        seen.extend([event["step"]] if event["kind"] == "eval" else [])
        if len(seen) == 3:
            raise Killed

    with pytest.raises(Killed):
        trained(tmp_path / "killed", seeds=[5], listener=kill)
    resumed = surefoot.resume(tmp_path / "killed")
    assert resumed.summary["best"] == whole.summary["best"]
    policies = [surefoot.load_policy(run.folder, best=True).state_dict() for run in (whole, resumed)]
    assert all(torch.equal(value, policies[1][name]) for name, value in policies[0].items())


@pytest.mark.usefixtures("in_process")
def test_reports_results_and_evaluations_say_which_policies_they_are_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    run, plain = trained(tmp_path / "run"), trained(tmp_path / "plain", keep_best=False)
    best = run.summary["best"]
    steps = ", ".join(map(str, best["per_seed_steps"]))
    assert main(["report", "run"]) == 0
    assert f"best policies by evaluations in training, of steps {steps}: return" in capsys.readouterr().out
    assert "which is too high by luck; the last ones:" in pathlib.Path("report.html").read_text()
    assert main(["report", "run", "--best"]) == 0
    assert ", best policies" in capsys.readouterr().out
    assert main(["results", "run", "plain", "--best", "-o", "table.csv"]) == 0
    shown = capsys.readouterr()
    assert "plain: kept its last policies alone" in shown.err
    assert ", best policies" in shown.out
    rows = [
        row
        for row in csv.DictReader(pathlib.Path("table.csv").read_text().splitlines())
        if row["metric"] == "best/return"
    ]
    assert [(int(row["step"]), float(row["value"])) for row in rows] == list(
        zip(best["per_seed_steps"], best["per_seed_returns"], strict=True)
    )
    assert main(["evaluate", "run", "--best", "-q", "--episodes", "2"]) == 0
    assert f"of steps {steps}; these episodes chose none of them" in capsys.readouterr().out
    assert main(["evaluate", "run", "--best", "-q", "--episodes", "2", "--seed", "0"]) == 0
    assert "are the initial states that chose them, so that these means are too high" in capsys.readouterr().out
    assert main(["evaluate", str(plain.folder), "--best"]) == 2
    assert "keep_best=true keeps the best ones too" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="kept its last policies alone"):
        surefoot.load_policy(plain.folder, best=True)


def test_without_a_simulator_there_is_nothing_to_choose_by(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="keep_best=true chooses by evaluations in a simulator"):
        trained(tmp_path / "run", env=None)
    assert not list(tmp_path.iterdir())
