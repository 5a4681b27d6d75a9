"""What is trained is on the disk before anything is estimated, and an estimate that fails takes nothing with it."""

from __future__ import annotations

import errno
import json
import pathlib
import re
import resource
import shutil
import types
from typing import Any

import numpy as np
import pytest
import torch
from test_training import FAST, SMALL, pendulum

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.native import native
from surefoot.evaluation import RunData
from surefoot.evaluation.estimates import estimate_lines
from surefoot.offline import IQL
from surefoot.runs import finishing, summary
from surefoot.runs.processes import workers
from surefoot.runs.run import Run, split
from surefoot.runs.start import resume
from surefoot.runs.trainers import offline as offline_trainer
from surefoot.studies import auto, select_model
from surefoot.studies import select as selecting

Capture = pytest.CaptureFixture[str]
OPTIONS: dict[str, Any] = {"env": None, "steps": 20, "seeds": 1, **FAST}


def out_of_memory(make: Any) -> Any:
    """What `make` raises where this process may not grow by more than 64 MB."""

    def estimate(*_: Any, **__: Any) -> Any:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), limits[1]))
        try:
            return make()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    return estimate


def raising(error: Exception) -> Any:
    def estimate(*_: Any, **__: Any) -> Any:
        raise error

    return estimate


FAILING = {
    "numpy": (out_of_memory(lambda: np.ones(1 << 30)), r"the memory was not enough \(Unable to allocate 8\.00 GiB"),
    "torch": (out_of_memory(lambda: torch.ones(1 << 30)), r"the memory was not enough \(.*allocate memory"),
    "the system": (raising(OSError(errno.ENOMEM, "Cannot allocate memory")), r"the memory was not enough"),
    "linear algebra": (raising(np.linalg.LinAlgError("Singular matrix")), r"LinAlgError: Singular matrix"),
    "the policy": (raising(EnvironmentMismatchError("the action is not finite")), r"the action is not finite"),
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", FAILING)
def test_policy_and_summary_outlive_an_estimate_that_fails(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing, reason = FAILING[kind]
    folder, told, there = tmp_path / "run", list[str](), list[bool]()

    def watched(*given: Any, **named: Any) -> Any:
        path, result = folder / "policy/seed0.safetensors", folder / "seeds/0/result.json"
        there.append(path.is_file() and result.is_file() and (folder / "seeds/0/checkpoint.safetensors").is_file())
        return failing(*given, **named)

    monkeypatch.setattr(offline_trainer, "fitted_q_estimate", watched)
    data = pendulum()
    run = fit(IQL(data, **SMALL), data, out=folder, listener=lambda e: told.append(e.get("text", "")), **OPTIONS)
    assert there == [True], "all that was trained is on the disk before the estimate"
    assert run.complete
    assert run.policy(0).action_dim == 1
    assert read_json(folder / "seeds/0/result.json").keys() >= {"validation", "jacobian", "missing"}
    assert finishing.UNFINISHED not in read_json(folder / "seeds/0/result.json")
    found = RunData.load(folder)
    assert found.fitted_q is not None
    assert found.fitted_q["mean"] is None
    assert found.fitted_q["method"].startswith("none: no fitted-Q estimate of the policy of seed 0: ")
    assert any(text.startswith("no fitted-Q estimate of the policy of seed 0: ") for text in told)
    assert any(re.search(reason, text) for text in told)
    assert found.data_discounted_return is not None
    assert any("none: no fitted-Q estimate" in line and "the data's: mean" in line for line in estimate_lines(found))
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "no fitted-Q estimate of the policy of seed 0" in capsys.readouterr().out
    assert "no fitted-Q estimate of the policy of seed 0" in (tmp_path / "page.html").read_text()
    assert main(["results", str(folder), "-o", str(tmp_path / "table.csv")]) == 0


@pytest.mark.usefixtures("in_process")
def test_one_seed_whose_estimate_fails_is_named_and_the_other_keeps_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = offline_trainer.fitted_q_estimate

    def second_fails(policy: Any, dataset: Any, steps: int, seed: int, **named: Any) -> Any:
        if seed == 1:
            raise MemoryError("Unable to allocate 2 GiB")
        return made(policy, dataset, steps, seed, **named)

    monkeypatch.setattr(offline_trainer, "fitted_q_estimate", second_fails)
    data = pendulum()
    run = fit(IQL(data, **SMALL), data, out=tmp_path / "run", **{**OPTIONS, "seeds": 2})
    assert len(read_json(run.seed_folder(0) / "result.json")["fitted_q"]) > 0
    assert run.summary["fitted_q"]["method"] == (
        "none: no fitted-Q estimate of the policy of seed 1: the memory was not enough (Unable to allocate 2 GiB); "
        "free some, or train on fewer rows"
    )


@pytest.mark.usefixtures("in_process")
def test_losses_of_episodes_held_out_and_a_jacobian_that_fail_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(offline_trainer, "validation_losses", raising(MemoryError("Unable to allocate 2 GiB")))
    monkeypatch.setattr("surefoot.runs.trainers.trainer.measured", raising(RuntimeError("no such kernel")))
    monkeypatch.setattr(IQL, "judged_on", raising(FloatingPointError("overflow")))
    data = pendulum()
    fit(IQL(data, **SMALL), data, out=tmp_path / "run", **OPTIONS)
    found = RunData.load(tmp_path / "run")
    assert found.validation == {}
    assert found.fitted_q is not None
    assert found.fitted_q["mean"] is not None, "what did not fail is there"
    memory = "the memory was not enough (Unable to allocate 2 GiB); free some, or train on fewer rows"
    assert set(found.missing) == {
        f"no validation losses of the episodes held out of seed 0: {memory}",
        "no Jacobian of the policy of seed 0: RuntimeError: no such kernel",
        "no calibration of the model on the episodes held out of seed 0: FloatingPointError: overflow",
    }
    assert set(found.missing) <= set(estimate_lines(found))
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 0
    assert "no Jacobian of the policy of seed 0" in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("in_process")
def test_the_datas_own_return_that_fails_leaves_the_policys_estimate(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pendulum()
    monkeypatch.setattr(summary, "own_returns", raising(MemoryError()))
    run = fit(IQL(data, **SMALL), data, out=tmp_path / "cut", **OPTIONS)
    assert run.summary["data_discounted_return"]["past_time_limits"] is False, "those that were cut off stand there"
    monkeypatch.setattr(summary, "data_return", raising(MemoryError()))
    fit(IQL(data, **SMALL), data, out=tmp_path / "none", **OPTIONS)
    found = RunData.load(tmp_path / "none")
    assert found.data_discounted_return is None
    lines = estimate_lines(found)
    assert any(line.startswith("no discounted return of the data: the memory was not enough") for line in lines)
    assert any(line.startswith("fitted-Q estimate of the discounted return: ") for line in lines)
    assert main(["report", str(tmp_path / "none"), "-o", str(tmp_path / "page.html")]) == 0


@pytest.mark.usefixtures("in_process")
def test_policies_are_on_the_disk_before_the_last_evaluation(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "evaluate", raising(MemoryError()))
    data = pendulum()
    with pytest.raises(MemoryError):
        fit(IQL(data, **SMALL), data, out=tmp_path / "run", seeds=1, steps=20, **FAST)
    assert Run.open(tmp_path / "run").policy(0).action_dim == 1


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("ended", [1, 2])
def test_a_process_that_is_killed_while_it_estimates_is_tried_again_once(ended: int, tmp_path: pathlib.Path) -> None:
    data = pendulum()
    run = fit(IQL(data, **SMALL), data, out=tmp_path / "run", **OPTIONS)
    copy = tmp_path / "killed"
    shutil.copytree(run.folder, copy)
    (copy / "summary.json").unlink()
    path = copy / "seeds/0/result.json"
    whole = read_json(path)
    known = {k: v for k, v in whole.items() if k not in ("validation", "fitted_q", "fitted_q_drift", "jacobian")}
    write_json(path, {**known, finishing.UNFINISHED: ended})  # as it stands there until the estimates are made
    policy = (copy / "policy/seed0.safetensors").read_bytes()
    again = resume(copy)
    assert again.complete
    assert (copy / "policy/seed0.safetensors").read_bytes() == policy
    if ended == 1:
        assert read_json(path) == whole
        assert again.summary["missing"] == []
        return
    sentence = "no validation losses and estimates of seed 0: 2 processes ended while they made them (killed, or out of"
    assert again.summary["missing"] == [f"{sentence} memory?)"]
    assert f"{sentence} memory?)" in estimate_lines(RunData.load(copy))
    assert "fitted_q" not in again.summary


def test_a_worker_that_was_killed_while_it_estimated_leaves_the_way_to_the_policy(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "seed3.safetensors"
    run = types.SimpleNamespace(policy_path=lambda seed: path, resume_command="surefoot train --resume run")
    worker: Any = types.SimpleNamespace(run=run, seeds=[3])
    assert workers._saved(worker) == ""
    path.touch()
    told = f". Training had ended, and the policy is saved: {path}; for the rest: surefoot train --resume run"
    assert workers._saved(worker) == told


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError("Unable"), "the memory was not enough (Unable)"), (np.linalg.LinAlgError("Singular"), "Singular")],
)
def test_a_portfolio_that_can_not_be_judged_ends_with_the_clone_and_says_so(
    error: Exception, reason: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from surefoot.data import save

    save(pendulum(), tmp_path / "data.hdf5")
    monkeypatch.setattr(selecting, "LEAST_EPISODES", 2)
    monkeypatch.setattr(auto, "select", raising(error))
    command = [
        f"dataset={tmp_path / 'data.hdf5'}",
        "env=none",
        "algo.portfolio=[bc,td3bc]",
        "steps=10",
        "seeds=1",
        "batch_size=8",
    ]
    assert main(["train", "algo=auto", *command, f"out={tmp_path / 'run'}"]) == 0
    out = capsys.readouterr().out
    assert "the policies could not be judged by the data: " in out
    assert reason in out
    run = Run.open(tmp_path / "run")
    assert run.complete
    assert run.plan.algorithm == "bc"
    answer = json.loads((tmp_path / "run" / auto.ANSWER).read_text())
    assert answer["algorithm"] == "bc"
    assert reason in answer["answer"]
    assert Run.open(tmp_path / "run" / auto.RUNS / "td3bc").complete, "what was trained is all there"


def test_the_model_that_judges_is_learned_over_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.library() is None:
        pytest.skip(native.why_not())
    learners: list[Learner] = []

    class SampleAux(Learner):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            learners.append(self)

    monkeypatch.setattr(select_model, "Learner", SampleAux)
    config = select_model.ModelJudgeConfig(members=2, hidden=(8,), updates=5, starts=2)
    select_model.ModelJudge(pendulum(), np.array([-2.0]), np.array([2.0]), config=config)
    assert learners[0].capture.how == "tape"
    assert learners[0].eager_because() == {}


def test_rewards_that_bound_estimates_are_those_of_the_episodes_that_were_trained_on() -> None:
    from surefoot.runs.run import episodes_apart

    data = pendulum()
    learned, held = split(data)
    assert held is not None
    mine, others = episodes_apart(data)
    np.testing.assert_array_equal(data.rewards[np.isin(data.episode_ids, mine)], learned.rewards)
    np.testing.assert_array_equal(data.rewards[np.isin(data.episode_ids, others)], held.rewards)
    assert [len(one) for one in episodes_apart(data.select_episodes(np.array([0])))] == [1, 0]
