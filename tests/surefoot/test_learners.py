"""Learners that share each batch of a run: one that dies ends the run with a sentence, and the run continues."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.runs.plan import Plan
from surefoot.runs.start import _cores_note

RUN = ["algo=bc", "learners=2", "seeds=1", *[one for one in TINY if not one.startswith(("steps", "evaluate_every"))]]


@pytest.mark.slow
def test_a_learner_that_is_killed_ends_the_run_with_a_sentence_and_it_goes_on(
    tmp_path: pathlib.Path, dataset_path: pathlib.Path
) -> None:
    out = tmp_path / "run"
    settings = [*RUN, f"dataset={dataset_path}", "steps=100000", "evaluate_every=50", f"out={out}"]
    command = [sys.executable, "-m", "surefoot", "train", "-q", *settings]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "seeds" / "0" / "checkpoint.safetensors").is_file():
            assert process.poll() is None
            time.sleep(0.1)
        (worker,) = psutil.Process(process.pid).children()
        (other,) = [one for one in worker.children() if "surefoot.runs.processes.worker" in one.cmdline()]
        os.kill(other.pid, signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "another of the 2 processes that share each batch has ended" in said
    assert f"then continue: surefoot train --resume {out}" in said
    assert not worker.is_running()
    config = (out / "config.json").read_text()
    (out / "config.json").write_text(config.replace('"steps": 100000', '"steps": 1'))  # where it stands is the end
    assert main(["train", "-q", "--resume", str(out)]) == 0
    assert (out / "summary.json").is_file()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["algo=td3bc"], "the losses of td3bc are not means over the rows of one batch"),
        (["batch_size=9"], "batch_size=9: can't be shared equally among learners=2"),
        (["kernels=false", "compiled=true"], "leave out compiled"),
    ],
)
def test_what_learners_can_not_share_is_said(
    more: list[str], said: str, tmp_path: pathlib.Path, dataset_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {one.partition("=")[0] for one in more}
    rest = [one for one in RUN if one.partition("=")[0] not in names]
    assert main(["train", "-q", *rest, *more, f"dataset={dataset_path}", f"out={tmp_path / 'run'}"]) == 2
    assert said in capsys.readouterr().err


def test_learners_without_a_core_each_are_told_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_CORES", "1")
    two = Plan(algorithm="ppo", config={}, environment="native/pendulum", steps=10, learners=2, device="cpu")
    (said,) = _cores_note(two)
    assert "have 1 core:" in said
    assert "five times as long" in said
    assert not _cores_note(dataclasses.replace(two, learners=1))
