"""Listeners that end training: the run is complete up to that step, says who ended it, and can continue."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.core.base.errors import ConfigError
from surefoot.envs.training import make_training
from surefoot.online import SAC, spec_of
from surefoot.runs import progress_events, trust
from surefoot.runs.extend import extend
from surefoot.runs.loggers import to_all
from surefoot.runs.run import Run
from surefoot.runs.start import resume
from surefoot.runs.trainers import trainer

PENDULUM = "native/pendulum"
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "training.md"
SHORT: dict[str, Any] = {"episodes": 1, "evaluate_episodes": 1, "evaluate_every": 1000, "seeds": 1}


def agent() -> SAC:
    return SAC(spec_of(make_training(PENDULUM, 1)), hidden=(8,), initial_steps=20)


def summary(folder: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_allowed", set())


def stop_at_once(event: dict[str, Any]) -> bool:
    return event["kind"] != "progress"


def test_false_ends_training_and_what_was_trained_is_a_complete_run_that_goes_on(tmp_path: pathlib.Path) -> None:
    folder, heard = tmp_path / "run", []

    def listener(event: dict[str, Any]) -> bool:
        heard.append(event)
        return stop_at_once(event)

    run = surefoot.fit(agent(), env=PENDULUM, steps=600, out=folder, listener=listener, **SHORT)
    stopped = summary(folder)["stopped"]
    assert stopped["by"].endswith("listener")
    assert 0 < stopped["steps"]["0"] < 600 == stopped["planned"]
    assert run.complete
    assert run.plan.steps == stopped["steps"]["0"] == summary(folder)["steps"]
    assert len(summary(folder)["per_seed_returns"]) == 1
    assert run.policy(0).select_action([1.0, 0.0, 0.0]).shape == (1,)
    assert any("stopped by" in event.get("text", "") and "--resume" in event["text"] for event in heard)
    assert Run.open(resume(folder).folder).plan.steps == run.plan.steps  # there is nothing left to do
    with pytest.raises(ConfigError, match=r"its replay buffer is of that size.*steps=600"):
        extend(folder, run.plan.steps + 40)
    longer = extend(folder, 600)
    assert (longer.plan.steps, summary(folder)["steps"]) == (600, 600)


def test_only_the_seed_whose_event_it_is_ends(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"

    def first_alone(event: dict[str, Any]) -> bool:
        return not (event["kind"] == "progress" and event["seed"] == 0 and event["step"] >= 100)

    surefoot.fit(
        agent(), env=PENDULUM, steps=2_000, out=folder, listener=first_alone,
        **{**SHORT, "seeds": 2},
    )  # fmt: skip
    steps = summary(folder)["stopped"]["steps"]
    assert steps["0"] < 2_000 == steps["1"] == Run.open(folder).plan.steps


def test_what_none_or_a_late_false_returns_changes_nothing(tmp_path: pathlib.Path) -> None:
    def late(event: dict[str, Any]) -> bool | None:
        return False if event["kind"] in ("done", "summary") else None

    surefoot.fit(agent(), env=PENDULUM, steps=60, out=tmp_path / "run", listener=late, **SHORT)
    assert summary(tmp_path / "run")["stopped"] is None
    assert Run.open(tmp_path / "run").plan.steps == 60


def test_what_a_listener_raises_ends_the_run_with_a_checkpoint(tmp_path: pathlib.Path) -> None:
    def broken(event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        surefoot.fit(agent(), env=PENDULUM, steps=100_000, out=tmp_path / "run", listener=broken, **SHORT)
    run = Run.open(tmp_path / "run")
    assert not run.complete
    assert run.checkpoint_path(0).is_file()


def test_several_listeners_hear_all_and_the_first_that_says_false_is_named() -> None:
    heard: list[str] = []

    def quiet(event: dict[str, Any]) -> None:
        heard.append(event["kind"])

    both = to_all([quiet, to_all([stop_at_once]), quiet])
    assert both({"kind": "start"}) is None
    assert both({"kind": "progress"}) is False
    assert heard == ["start", "start", "progress", "progress"]
    assert both.stopped_by is not None
    assert both.stopped_by.endswith(":stop_at_once")


def test_the_example_of_the_page_ends_a_run_on_the_command_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = page.split("# good_enough.py\n")[1].split("```")[0]
    (tmp_path / "good_enough.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = ["algo.hidden=[8]", "algo.initial_steps=20", "seeds=1", "episodes=1", "evaluate_episodes=1"]
    command = ["train", "algo=sac", f"env={PENDULUM}", "steps=50000", "evaluate_every=100", *given, "-q"]
    assert main([*command, "listener=good_enough:Patience", "out=run"]) == 0
    stopped = summary(tmp_path / "run")["stopped"]
    assert stopped["by"] == "good_enough:Patience"
    assert stopped["steps"]["0"] < 50_000
    monkeypatch.setattr(trust, "_allowed", set())
    with pytest.raises(ConfigError, match=r"names 'good_enough:Patience', which would be called.*--trust"):
        extend(tmp_path / "run", 50_000)
    capsys.readouterr()
    assert main([*command, "listener=good_enough:Missing", "out=other"]) == 2
    assert "listener=good_enough:Missing can't be imported" in capsys.readouterr().err
    assert main([*command, "listener=patience", "out=other"]) == 2
    assert "give module:function" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_no_progress_is_told_while_evaluation_runs_so_that_its_time_is_in_no_rate(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    during: list[int] = []
    evaluated = trainer.evaluate

    def evaluate(*given: Any, **named: Any) -> Any:
        before = len(heard)
        found = evaluated(*given, **named)
        during.append(len(heard) - before)
        return found

    monkeypatch.setattr(progress_events, "EVERY", -1.0)  # whoever asks is given at once
    monkeypatch.setattr(trainer, "evaluate", evaluate)
    given = {**SHORT, "evaluate_every": 30}
    surefoot.fit(agent(), env=PENDULUM, steps=60, out=tmp_path / "run", listener=heard.append, **given)
    assert during == [0, 0]
    assert sum(event["kind"] == "progress" for event in heard) > 4
