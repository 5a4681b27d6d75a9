"""Runs that are asked to stop, and calls that never come back."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from test_training import FAST, _checkpoints, _wait_for, _workers_of, pendulum, same, weights

from surefoot.api.fit import fit
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import ConfigError, SimulatorError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.offline import IQL
from surefoot.online import PPO, SAC
from surefoot.runs.plan import Plan
from surefoot.runs.processes.stopping import Interrupted, Stopped, Terminated, resumable
from surefoot.runs.processes.watchdog import Watchdog
from surefoot.runs.run import Run
from surefoot.runs.start import resume
from surefoot.runs.trainers.choose import seed_trainer
from surefoot.runs.trainers.trainer import never
from surefoot.streaming import StreamAC

PENDULUM = Spec(3, 1, (-2.0,), (2.0,))


class After:
    """Asks to stop when it has been asked so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def in_this_process(monkeypatch: pytest.MonkeyPatch, asked_to_stop: Callable[[], bool]) -> None:
    def work(run: Run, groups: list[list[int]], tell: Any, lock: int) -> None:
        for seeds in groups:
            run.seed_folder(seeds[0]).mkdir(parents=True, exist_ok=True)
            trainer = seed_trainer(run, seeds, tell, asked_to_stop)
            trainer.train()
            trainer.finish()

    monkeypatch.setattr("surefoot.runs.start.work", work)


def agents() -> dict[str, Agent]:
    small: dict[str, Any] = {"hidden": (16, 16)}
    return {
        "iql": IQL(pendulum(), **small),
        "sac": SAC(PENDULUM, **small, num_envs=2, initial_steps=100, updates_per_step=0.5),
        "ppo": PPO(PENDULUM, **small, num_envs=2, horizon=32),
        "stream_ac": StreamAC(PENDULUM, **small),
    }


def undisturbed(name: str) -> tuple[Agent, Any, dict[str, Any]]:
    """An agent, its data, and the options of a run of 600 steps."""
    options: dict[str, Any] = {"steps": 600, "seeds": 1, "evaluate_every": 300, **FAST}
    if name == "iql":
        return agents()[name], pendulum(), options
    return agents()[name], None, {**options, "env": "native/pendulum"}


@pytest.mark.parametrize("name", ["iql", "sac", "ppo", "stream_ac"])
@pytest.mark.parametrize("times", [7, 200])
def test_a_run_stopped_between_two_steps_goes_on_bit_for_bit(
    name: str, times: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, data, options = undisturbed(name)
    in_this_process(monkeypatch, never)
    whole = fit(agent, data, out=tmp_path / "whole", progress=False, **options)
    if name == "ppo":
        times = 4 + times // 40  # it is asked once a block of 64 steps
    in_this_process(monkeypatch, After(times))
    with pytest.raises(Stopped):
        fit(agent, data, out=tmp_path / "stopped", progress=False, **options)
    meta: dict[str, Any] = checkpoint.load(tmp_path / "stopped/seeds/0/checkpoint.safetensors")[1]
    assert 0 < meta["step"] < 600
    assert meta["seconds"] > 0  # of the steps of a stretch that was not ended, too
    in_this_process(monkeypatch, never)
    run = resume(tmp_path / "stopped")
    assert same(weights(run, 0), weights(whole, 0))
    assert run.summary["per_seed_returns"] == whole.summary["per_seed_returns"]


def test_a_run_stopped_in_an_evaluation_makes_it_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, stop = pendulum(), threading.Event()
    agent = IQL(data, hidden=(16, 16))
    options: dict[str, Any] = {"steps": 60, "seeds": 1, "evaluate_every": 20, **FAST}
    from surefoot.runs.trainers import trainer as seeds

    evaluated = seeds.evaluate

    def and_stop(*arguments: Any, **more: Any) -> Any:
        stop.set()
        return evaluated(*arguments, **more)

    with monkeypatch.context() as patched:
        in_this_process(patched, stop.is_set)
        patched.setattr(seeds, "evaluate", and_stop)
        with pytest.raises(Stopped):
            fit(agent, data, out=tmp_path / "stopped", progress=False, **options)
    meta: dict[str, Any] = checkpoint.load(tmp_path / "stopped/seeds/0/checkpoint.safetensors")[1]
    assert (meta["step"], meta["due"]) == (20, True)
    in_this_process(monkeypatch, never)
    run = resume(tmp_path / "stopped")
    steps = [line["step"] for line in _metrics(run) if line["kind"] == "eval"]
    assert steps == [20, 40, 60]


@pytest.mark.parametrize("name", ["iql", "sac", "ppo", "stream_ac"])
def test_checkpoints_between_evaluations_are_gone_on_with_bit_for_bit(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, data, options = undisturbed(name)
    in_this_process(monkeypatch, never)
    whole = fit(agent, data, out=tmp_path / "whole", progress=False, **options)

    def crash(*unused: Any, **more: Any) -> None:
        raise RuntimeError("power failure")

    with monkeypatch.context() as patched:
        patched.setattr("surefoot.runs.trainers.trainer.evaluate", crash)
        with pytest.raises(RuntimeError, match="power failure"):
            fit(agent, data, out=tmp_path / "crashed", progress=False, checkpoint_every=70, **options)
    meta: dict[str, Any] = checkpoint.load(tmp_path / "crashed/seeds/0/checkpoint.safetensors")[1]
    assert meta["step"] == (256 if name == "ppo" else 280)  # in blocks of 64 steps
    run = resume(tmp_path / "crashed")
    assert same(weights(run, 0), weights(whole, 0))
    assert run.summary["per_seed_returns"] == whole.summary["per_seed_returns"]
    assert [line["step"] for line in _metrics(run) if line["kind"] == "eval"] == [
        line["step"] for line in _metrics(whole) if line["kind"] == "eval"
    ]


def _metrics(run: Run) -> list[dict[str, Any]]:
    from small_runs import metrics

    return metrics(run)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_a_checkpoint_and_a_sentence(
    number: signal.Signals, code: int, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    options = ["algo.hidden=[16,16]", "algo.initial_steps=100", "episodes=1", "evaluate_episodes=1", "seeds=1", "-q"]
    command = [sys.executable, "-m", "surefoot", "train", "algo=sac", "env=native/pendulum", "steps=100000", *options]
    process = subprocess.Popen(  # a forked one does not always end
        [*command, "evaluate_every=100000", f"out={folder}"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    _wait_for((folder / "metrics.jsonl").is_file)  # it has taken its first steps; a checkpoint comes with the last
    assert not _checkpoints(folder)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert errors.strip().endswith(f"resume with: surefoot train --resume {folder}")
    assert "Traceback" not in errors
    assert not _workers_of(folder)
    meta: dict[str, Any] = checkpoint.load(folder / "seeds/0/checkpoint.safetensors")[1]
    assert 0 < meta["step"] < 100_000
    assert not (folder / ".lock").exists()


def test_what_a_signal_raises_says_how_to_resume_only_where_a_run_has_begun(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt) as plain, resumable(tmp_path):
        raise KeyboardInterrupt
    assert not isinstance(plain.value, Interrupted)
    (tmp_path / "config.json").touch()
    with pytest.raises(Interrupted, match="resume with: surefoot train --resume"), resumable(tmp_path):
        raise KeyboardInterrupt
    several = resumable(tmp_path, lambda: "all of them")
    with pytest.raises(Interrupted, match="resume with: all of them"), several, resumable(tmp_path):
        raise KeyboardInterrupt
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as ended, resumable(tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert "terminated; resume with" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_advice_to_resume_asks_for_trust_where_resuming_does(finished_run: pathlib.Path) -> None:
    run = Run.open(finished_run)
    assert run.resume_command == f"surefoot train --resume '{finished_run}'"  # its name has a space
    own = Run(run.folder, dataclasses.replace(run.plan, algorithm="own_agent:AWR"))
    assert own.resume_command == f"{run.resume_command} --trust"


def test_a_step_that_never_comes_back_ends_the_run_and_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    notes: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "eval":
            (tmp_path / "hangs").touch()
        notes.append(event.get("text", ""))

    agent = SAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8, 8), initial_steps=10)
    with pytest.raises(SimulatorError, match=r"has not come back for 4 s.*--resume"):
        fit(
            agent,
            env="hanging_env:Hanging-v0",
            steps=1_000_000,
            seeds=1,
            evaluate_every=200,
            out=tmp_path / "run",
            patience=4,
            listener=listen,
            **FAST,
        )
    assert any("has not come back for 0 s" in text for text in notes)  # stated a tenth of the time
    assert "hanging_env.py" in (tmp_path / "run/seeds/0/log.txt").read_text()
    assert _checkpoints(tmp_path / "run") == 1


def call(function: Callable[[], None]) -> None:
    """Call it from what looks like surefoot's code."""
    names: dict[str, Any] = {"__name__": "surefoot.pretended"}
    exec("def call(function):\n    function()\n    [0 for _ in range(10)]", names)
    names["call"](function)


def test_a_slow_call_is_mentioned_and_one_that_never_comes_back_given_up() -> None:
    said: list[str] = []
    given_up = threading.Event()

    def give_up(text: str) -> None:
        said.append(text)
        given_up.set()

    watchdog = Watchdog(1.0, said.append, give_up)
    watchdog.start()
    call(lambda: time.sleep(0.5))  # slow
    assert not given_up.is_set()
    assert len(said) == 1
    end = time.monotonic() + 2.5
    while time.monotonic() < end:  # many quick calls
        call(lambda: time.sleep(0.01))
    assert not given_up.is_set()
    call(lambda: given_up.wait(30) and None)
    assert given_up.is_set()
    assert "Condition.wait" in said[-1]
    assert "test_stopping.py" in said[-1]
    watchdog.stop()


def test_patience_is_a_number_of_seconds() -> None:
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="patience"):
            Plan("iql", {}, patience=wrong)
