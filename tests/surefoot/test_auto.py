"""`surefoot train algo=auto`: a portfolio, the choice by the data, and a run folder like any other."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.runs.run import Run
from surefoot.studies import auto
from surefoot.studies import select as selecting
from surefoot.studies.select import Estimate, Selection

Capture = pytest.CaptureFixture[str]


def estimate(name: str, seed: int, value: float, spread: float = 1.0, implausible: bool = False) -> Estimate:
    shared = np.random.default_rng(seed).standard_normal(24)
    members = value + spread * shared
    return Estimate(f"{name} {seed}", name, members, value - 3, value + 3, value, value, 10.0, 0.1, implausible, None)


def chosen(*estimates: Estimate) -> tuple[str, dict[str, tuple[float, float, float]]]:
    found = Selection(list(estimates), 0.0, 0.0, 1.0, 100.0, 0.99, 24)
    return auto.choose(found, {one.group: one.group for one in estimates})


def test_another_than_the_clone_is_handed_over_only_with_confidence() -> None:
    clones = [estimate("bc", seed, 10 + 0.1 * seed) for seed in (0, 1)]
    better = [estimate("iql", seed, 13 + 0.1 * seed) for seed in (0, 1)]
    name, compared = chosen(*clones, *better)
    assert name == "iql"
    assert compared["iql"][0] == pytest.approx(3)
    assert compared["iql"][1] > 0
    noisy = [estimate("iql", seed, 13 + 8 * seed) for seed in (0, 1)]  # the seeds differ by more than that
    assert chosen(*clones, *noisy)[0] == "bc"
    wild = [estimate("iql", seed, 13, spread=5.0) for seed in (0, 1)]  # so do the critics
    assert chosen(*clones, *wild)[0] == "bc"
    beyond = [estimate("iql", seed, 130, implausible=True) for seed in (0, 1)]
    name, compared = chosen(*clones, *beyond)
    assert name == "bc"
    assert "not believed" not in auto.in_words(name, compared, {})
    assert "judged on data that they were trained on" in auto.in_words("iql", compared, {})
    failed = [dataclasses.replace(one, impossible=True) for one in clones]
    assert chosen(*failed, *better)[0] == "bc", "critics that fail on the clone say nothing of what is better"
    doubtful = [*clones, *[dataclasses.replace(one, impossible=True) for one in better]]
    assert chosen(*doubtful)[0] == "bc"

    high = [dataclasses.replace(one, implausible=True) for one in clones]
    assert chosen(*high, *better)[0] == "bc", "nor do those that put the clone above all that the data hold"


@pytest.mark.parametrize(
    ("group", "field", "words"),
    [
        (
            "iql",
            "implausible",
            "not believed). Not believed: iql, whose estimate lies above the best return in the data",
        ),
        ("iql", "impossible", "Not believed: iql, whose estimate lies below the least that the data's rewards allow"),
        (
            "bc",
            "implausible",
            "clone's own estimate lies above the best return in the data, so nothing can be determined",
        ),
        ("bc", "impossible", "lies below the least that the data's rewards allow, so nothing can be determined"),
    ],
)
def test_what_is_not_believed_is_named_with_where_its_estimate_lies(group: str, field: str, words: str) -> None:
    estimates = [estimate("bc", 0, 10), estimate("iql", 0, 13)]
    estimates = [dataclasses.replace(one, **{field: one.group == group}) for one in estimates]
    found = Selection(estimates, 0.0, 0.0, 1.0, 100.0, 0.99, 24)
    groups = {"bc": "bc", "iql": "iql"}
    name, compared = auto.choose(found, groups)
    told = auto.in_words(name, compared, auto.doubted(found, groups))
    assert told.startswith("the clone (bc) is handed over: by this data no other is better with confidence (iql +3 ")
    assert words in told
    assert told.endswith("judged on data that they were trained on, which flatter them")


@pytest.fixture(autouse=True)
def two_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared dataset of these tests has two episodes."""
    monkeypatch.setattr(selecting, "LEAST_EPISODES", 2)


@pytest.fixture
def trained(
    in_process: None, monkeypatch: pytest.MonkeyPatch, dataset_path: pathlib.Path, tmp_path: pathlib.Path
) -> pathlib.Path:
    """A folder of algo=auto, whose choice is made for it: judging is tested elsewhere."""
    monkeypatch.setattr(auto, "select", lambda *_: Selection(made(tmp_path / "run"), 0.0, 0.0, 1.0, 50.0, 0.99, 24))
    arguments = [f"dataset={dataset_path}", "env=none", "algo.portfolio=[bc,td3bc]", "algo.budget=80", "seeds=2"]
    arguments += ["batch_size=8", f"out={tmp_path / 'run'}"]
    assert main(["train", "--quiet", "algo=auto", *arguments]) == 0
    return tmp_path / "run"


def made(folder: pathlib.Path) -> list[Estimate]:
    values = {"bc": 1.0, "td3bc": 20.0}
    return [estimate(str(folder / auto.RUNS / name), s, v) for name, v in values.items() for s in (0, 1)]


def test_the_folder_is_a_run_like_any_other(trained: pathlib.Path, capsys: Capture, tmp_path: pathlib.Path) -> None:
    run = Run.open(trained)
    assert (run.plan.algorithm, run.plan.steps, run.plan.seeds) == ("td3bc", 20, (0, 1))
    assert run.complete
    answer = json.loads((trained / auto.ANSWER).read_text())
    assert answer["algorithm"] == "td3bc"
    assert answer["differences"]["td3bc"]["low"] > 0
    assert answer["answer"] in json.loads((trained / "config.json").read_text())["notes"]
    own, copied = (Run.open(place).policy(1).state_dict() for place in (trained / auto.RUNS / "td3bc", trained))
    assert all(bool((copied[name] == value).all()) for name, value in own.items())
    assert main(["report", str(trained), "-o", str(tmp_path / "report.html")]) == 0
    assert main(["train", "--resume", str(trained), "--quiet"]) == 0, "it is complete"
    capsys.readouterr()


def test_a_model_judges_where_it_is_asked_to(
    in_process: None, monkeypatch: pytest.MonkeyPatch, dataset_path: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(
        auto, "select_by_model", lambda *_: Selection(made(folder), 0.0, 0.0, 1.0, 50.0, 1.0, 24, "model")
    )
    arguments = [f"dataset={dataset_path}", "env=none", "algo.portfolio=[bc,td3bc]", "algo.budget=80", "seeds=2"]
    arguments += ["batch_size=8", f"out={folder}", "algo.judge=model"]
    assert main(["train", "--quiet", "algo=auto", *arguments]) == 0
    assert auto.Auto.read(folder).judge == "model", "with which it would continue"
    answer = json.loads((folder / auto.ANSWER).read_text())
    assert answer["judge"] == "model"
    assert "its return in a model learned from them is +19" in answer["answer"]
    began = json.loads((folder / auto.FILE).read_text())
    del began["judge"]  # as folders were before there was a choice
    (folder / auto.FILE).write_text(json.dumps(began))
    assert auto.Auto.read(folder).judge == "critics"


def test_a_killed_portfolio_goes_on_with_what_is_missing(
    trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (trained / auto.RUNS / "bc" / "policy" / "seed0.safetensors").stat().st_mtime_ns
    before = Run.open(trained).policy(0).state_dict()
    for name in ("config.json", "summary.json"):  # as if killed while it was handing over
        (trained / name).unlink()
    assert auto.started(trained)
    assert main(["train", "--resume", str(trained), "--quiet"]) == 0
    assert (trained / auto.RUNS / "bc" / "policy" / "seed0.safetensors").stat().st_mtime_ns == kept
    after = Run.open(trained).policy(0).state_dict()
    assert all(bool((after[name] == value).all()) for name, value in before.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algo.portfolio=[iql,td3bc]"], "bc among them"),
        (["algo.portfolio=[bc,sac]"], "sac does not learn a policy from data alone"),
        (["algo.portfolio=[bc,iqll]"], "did you mean"),
        (["algo.expectile=0.9"], "auto has no option 'algo.expectile'"),
        (["algo.judge=oracle"], "algo.judge=oracle"),
        (["algo.budget=600", "steps=5"], "leave out one"),
        (["algo.budget=3"], "at least one for each of 12 runs"),
        (["preset=antmaze"], "preset= is of one algorithm"),
        (["-m"], "leave out -m"),
        (["stepz=3"], "unknown option 'stepz'"),
        (["algo.portfolio=[bc,qc]"], "policies of qc remember"),
        (["env=native/quadrotor-2d"], "observations don't fit"),
    ],
)
def test_what_it_can_not_do_is_said(
    arguments: list[str], message: str, dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    command: list[Any] = ["train", "algo=auto", f"dataset={dataset_path}", "env=none", f"out={tmp_path / 'run'}"]
    assert main([*command, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_where_an_algorithm_is_meant_auto_says_what_it_is(capsys: Capture) -> None:
    assert main(["train", "-m", "algo=auto,bc", "dataset=native/pendulum-mixed"]) == 2
    assert "`surefoot train algo=auto dataset=FILE` makes by itself" in capsys.readouterr().err
    assert main(["algorithms", "auto"]) == 0
    assert "algo.portfolio" in capsys.readouterr().out
    assert main(["algorithms", "--json"]) == 0
    assert "auto" in {row["name"] for row in json.loads(capsys.readouterr().out)}


def test_data_that_can_not_be_judged_on_are_refused_before_training(
    dataset_path: pathlib.Path, tmp_path: pathlib.Path, capsys: Capture
) -> None:
    from surefoot.data import load, save

    save(load(dataset_path).select_episodes(np.arange(1)), tmp_path / "few.hdf5")
    command = ["train", "algo=auto", f"dataset={tmp_path / 'few.hdf5'}", "env=none", f"out={tmp_path / 'run'}"]
    assert main(command) == 2
    assert "1 episodes are too few" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
