"""The experiment loop: run folders, seeds, resume, workers."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import forking
import numpy as np
import pytest
import torch

from surefoot.api.fit import fit
from surefoot.core.base import checkpoint
from surefoot.core.base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergenceError,
    EnvironmentMismatchError,
)
from surefoot.core.base.random import generator
from surefoot.core.engine.agent import Agent
from surefoot.data.dataset import Dataset
from surefoot.evaluation import RunData, write_report
from surefoot.evaluation.estimates import estimate_lines
from surefoot.offline import BC, IQL
from surefoot.runs.embedded import generate
from surefoot.runs.machine import at_once
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run, load_agent, split
from surefoot.runs.start import resume
from surefoot.runs.victim import victim
from surefoot.safe import CDT, BCSafe

SMALL = {"hidden": (16, 16)}
FAST = {"episodes": 2, "evaluate_episodes": 1, "batch_size": 32}


def pendulum(transitions: int = 2000, **changes: object) -> Dataset:
    return generate("native/pendulum-mixed", transitions=transitions).replace(**changes)


def weights(run: Run, seed: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(run.checkpoint_path(seed))[0]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    os.environ["SUREFOOT_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")  # as conftest.py sets it
    data = pendulum()
    return fit(IQL(data, **SMALL), data, steps=60, seeds=3, out=tmp_path_factory.mktemp("runs") / "three", **FAST)


def test_a_run_folder_holds_all_that_is_needed_to_repeat_it(three_seeds: Run) -> None:
    summary = three_seeds.summary
    assert summary["algorithm"] == "iql"
    assert summary["environment"] == "surefoot/Pendulum-v0"
    assert len(summary["per_seed_returns"]) == 3
    assert summary["returns"]["low"] < summary["returns"]["mean"] < summary["returns"]["high"]
    assert summary["returns"]["mean"] == pytest.approx(np.mean(summary["per_seed_returns"]))
    assert summary["behaviour"]["episodes"] == 10
    assert {"torch", "numpy", "gymnasium", "surefoot"} <= set(summary["versions"])
    lines = [json.loads(line) for line in (three_seeds.folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    assert sorted({line["step"] for line in evaluations}) == list(range(6, 61, 6))
    assert {"value_loss", "critic_loss", "advantage"} <= set(lines[0]["values"])
    assert (three_seeds.folder / "curves.png").stat().st_size > 5000
    assert (three_seeds.folder / "kernels.json").is_file()


def test_seed_two_of_three_is_the_same_as_seed_two_alone(three_seeds: Run, tmp_path: pathlib.Path) -> None:
    data = pendulum()
    alone = fit(IQL(data, **SMALL), data, steps=60, seeds=[2], out=tmp_path / "alone", **FAST)
    assert alone.summary["per_seed_returns"] == [three_seeds.summary["per_seed_returns"][2]]
    assert same(weights(alone, 2), weights(three_seeds, 2))


def test_the_policy_of_a_run_acts_in_the_environments_units(three_seeds: Run) -> None:
    policy = three_seeds.policy(1)
    actions = policy(torch.from_numpy(pendulum().observations[:100]))
    assert float(actions.abs().max()) <= 2
    assert policy.action_high.tolist() == [2.0]
    with pytest.raises(CheckpointError, match="no seed 7"):
        three_seeds.policy(7)


def test_an_existing_folder_is_refused_and_left_alone(three_seeds: Run) -> None:
    before = sorted(p.name for p in three_seeds.folder.iterdir())
    data = pendulum()
    with pytest.raises(ConfigError, match="--resume"):
        fit(IQL(data, **SMALL), data, steps=60, out=three_seeds.folder, **FAST)
    assert sorted(p.name for p in three_seeds.folder.iterdir()) == before


def test_resuming_a_complete_run_changes_nothing(three_seeds: Run) -> None:
    notes: list[str] = []
    again = resume(three_seeds.folder, listener=lambda event: notes.append(event.get("text", "")))
    assert again.summary == three_seeds.summary
    assert "complete" in notes[0]


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_training import pendulum, SMALL, FAST
from surefoot.offline import IQL
from surefoot.api.fit import fit
data = pendulum()
fit(IQL(data, **SMALL), data, steps=1500, seeds=2, evaluate_every=100, out={out!r}, **FAST)
"""


def test_a_run_killed_twice_resumes_to_the_same_weights_and_leaves_no_orphan(tmp_path: pathlib.Path) -> None:
    data = pendulum()
    whole = fit(IQL(data, **SMALL), data, steps=1500, seeds=2, evaluate_every=100, out=tmp_path / "whole", **FAST)
    folder = tmp_path / "killed"
    script = SCRIPT.format(tests=str(pathlib.Path(__file__).parent), out=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script])
    _wait_for(lambda: _checkpoints(folder) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _workers_of(folder))
    script = f"from surefoot.runs.start import resume; resume({str(folder)!r})"
    resumer = forking.Popen(["-c", script])
    _wait_for(lambda: _workers_of(folder))
    time.sleep(1)
    resumer.send_signal(signal.SIGKILL)
    resumer.wait()
    _wait_for(lambda: not _workers_of(folder))
    run = resume(folder)
    for seed in (0, 1):
        assert same(weights(run, seed), weights(whole, seed))
    assert run.summary["per_seed_returns"] == whole.summary["per_seed_returns"]
    lines = [[json.loads(line) for line in (r.folder / "metrics.jsonl").read_text().splitlines()] for r in (run, whole)]
    assert lines[0] == lines[1]


def _checkpoints(folder: pathlib.Path) -> int:
    return len(list(folder.glob("seeds/*/checkpoint.safetensors")))


def _workers_of(folder: pathlib.Path) -> list[int]:
    import psutil

    mine = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "surefoot.runs.processes.worker" in command and str(folder) in command:
            mine.append(process.pid)
    return mine + [pid for pid, arguments in forking.alive().items() if str(folder) in arguments]


def _wait_for(condition: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.usefixtures("in_process")
def test_without_a_simulator_training_ends_with_validation_losses_and_a_fitted_q_estimate(
    tmp_path: pathlib.Path,
) -> None:
    data = pendulum()
    run = fit(IQL(data, **SMALL), data, env=None, steps=200, seeds=2, out=tmp_path / "run", **FAST)
    summary = run.summary
    assert summary["returns"] is None
    assert set(summary["validation"]) == {"value_loss", "gaussian_actor_loss", "critic_loss"}
    assert np.isfinite(list(summary["validation"].values())).all()
    assert summary["fitted_q"]["low"] <= summary["fitted_q"]["mean"] <= summary["fitted_q"]["high"]
    assert summary["data_discounted_return"]["best"] < 0


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("kind", "options"),
    [(BCSafe, {"hidden": (8,)}), (CDT, {"width": 8, "heads": 2, "layers": 1, "cost_ceiling": 1.0})],
    ids=["bc_safe", "cdt"],
)
def test_a_run_whose_episodes_held_out_are_all_too_costly_is_finished_and_says_so(
    kind: type[Agent], options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    data = pendulum()
    held_out = split(data)[1]
    assert held_out is not None
    first = {tuple(row) for row in held_out.observations[held_out.episode_starts[:-1]].tolist()}
    costly = [tuple(row) in first for row in data.observations[data.episode_starts[:-1]].tolist()]
    data = data.replace(costs=np.repeat(np.array(costly, np.float32), data.episode_lengths), extras={})
    told: list[str] = []
    listener = lambda event: told.append(event.get("text", ""))  # noqa: E731
    made = kind(data, cost_limit=0.0, **options)
    run = fit(made, data, env=None, steps=2, seeds=1, batch_size=4, out=tmp_path / "run", listener=listener)
    assert run.complete
    assert run.summary["validation"] == {}
    assert any(text.startswith("no validation losses of the episodes held out: ") for text in told)


@pytest.mark.usefixtures("in_process")
def test_losses_and_estimates_that_are_not_finite_are_named_and_the_run_is_complete(tmp_path: pathlib.Path) -> None:
    data, told = pendulum(), list[str]()
    order = generator(0, "validation").permutation(len(data.episode_lengths))  # the first is held out
    for name, kind, episode in (("held", IQL, order[0]), ("learned", BC, order[-1])):
        following = data.next_observations.copy()
        following[data.episode_starts[episode + 1] - 1] = 1e25
        odd = data.replace(next_observations=following)
        options: dict[str, Any] = {"steps": 60, "seeds": 2, "listener": lambda event: told.append(event.get("text"))}
        fit(kind(odd, **SMALL), odd, env=None, out=tmp_path / name, **options, **FAST)
    held, learned = (RunData.load(tmp_path / name) for name in ("held", "learned"))
    assert held.validation["critic_loss"] is None
    assert np.isfinite(held.validation["value_loss"])
    assert "seed 1: critic_loss is not finite on the episodes held out; look for outliers in the data" in told
    assert "validation critic_loss: not finite (mean over seeds, on episodes held out)" in estimate_lines(held)
    assert learned.fitted_q is not None
    assert learned.fitted_q["mean"] is None
    said = "none: the critics that judge seeds 0, 1 diverged"
    assert f"fitted-Q estimate of the discounted return: {said}; the data's: mean" in estimate_lines(learned)[1]
    received = dataclasses.replace(learned, fitted_q={**learned.fitted_q, "drift": 1.0})  # of a summary not ours
    assert estimate_lines(received) == estimate_lines(learned)
    write_report([held, learned], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f">{said}<" in page
    assert ">not finite<" in page


@pytest.mark.usefixtures("in_process")
def test_images_without_a_simulator_end_with_validation_losses_and_start_another_run(tmp_path: pathlib.Path) -> None:
    seen = generate("native/pendulum-camera", 0, 600, "expert").replace(env_id=None)
    agent = BC(seen, encoder="small", encoder_features=4, hidden=(8,), learning_rate=0.0)
    options = {"env": None, "steps": 3, "seeds": 1, "batch_size": 4}
    first = fit(agent, seen, out=tmp_path / "first", **options)
    assert np.isfinite(list(first.summary["validation"].values())).all()
    assert "fitted_q" not in first.summary
    second = fit(agent, seen, out=tmp_path / "second", init=str(first.folder), **options)
    before, after = load_agent(first).state_dict(), load_agent(second).state_dict()
    assert any(name.startswith("encoder") for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)
    other = BC(seen, encoder="small", encoder_features=5, hidden=(8,))
    with pytest.raises(ConfigError, match=r"does not fit bc as configured \(encoder\..* differs\)"):
        fit(other, seen, out=tmp_path / "third", init=str(first.folder), **options)


@pytest.mark.usefixtures("in_process")
def test_init_starts_from_another_runs_weights_and_normaliser(tmp_path: pathlib.Path) -> None:
    data = pendulum()
    first = fit(BC(data, **SMALL), data, steps=50, seeds=1, out=tmp_path / "first", **FAST)
    moved = data.replace(observations=data.observations + 1, next_observations=data.next_observations + 1)
    second = fit(
        BC(data, **SMALL, learning_rate=0.0),
        moved,
        steps=2,
        seeds=1,
        out=tmp_path / "second",
        init=str(first.folder),
        **FAST,
    )
    before, after = load_agent(first).state_dict(), load_agent(second).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(ConfigError, match="does not fit"):
        fit(BC(data, hidden=(8, 8)), data, steps=2, seeds=1, out=tmp_path / "third", init=str(first.folder), **FAST)
    assert not (tmp_path / "third").exists()


def test_a_loss_that_turns_infinite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: pathlib.Path) -> None:
    data = pendulum()
    rewards = data.rewards.copy()
    rewards[1234] = 1e25  # finite, but not its square
    data = data.replace(rewards=rewards)
    agent = IQL(data, rewards="none", **SMALL)
    with pytest.raises(DivergenceError, match=r"critic_loss became inf at step \d+ \(seed 0\)"):
        fit(agent, data, steps=2000, seeds=1, out=tmp_path / "run", evaluate_every=5, **FAST)
    tensors, meta = checkpoint.load(tmp_path / "run/seeds/0/checkpoint.safetensors")
    assert meta["step"] >= 5
    assert all(bool(value.isfinite().all()) for value in tensors.values())


def test_bad_plans_are_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    data = pendulum(400)
    out = tmp_path / "run"
    with pytest.raises(EnvironmentMismatchError):
        fit(IQL(data), data, env="MountainCarContinuous-v0", steps=10, out=out)
    with pytest.raises(DeviceError) if not torch.cuda.is_available() else pytest.raises(ConfigError):
        fit(IQL(data), data, steps=10, out=out, device="cuda" if not torch.cuda.is_available() else "tpu")
    with pytest.raises(ConfigError, match="seeds"):
        fit(IQL(data), data, steps=10, seeds=[1, 1], out=out)
    with pytest.raises(ConfigError, match="no option 'expectil'; did you mean 'expectile'"):
        IQL(data, expectil=0.8)
    flat = data.replace(rewards=np.zeros_like(data.rewards))
    with pytest.raises(DataError, match="range of returns"):
        fit(IQL(data), flat, steps=10, out=out)
    assert not out.exists()


def test_a_damaged_or_foreign_checkpoint_is_refused_by_name(three_seeds: Run, tmp_path: pathlib.Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(three_seeds.folder, copy)
    (copy / "summary.json").unlink()
    (copy / "seeds/1/result.json").unlink()
    shutil.copy(copy / "seeds/0/checkpoint.safetensors", copy / "seeds/1/checkpoint.safetensors")
    with pytest.raises(CheckpointError, match="moved from another run"):
        resume(copy)
    damaged = bytearray((copy / "seeds/1/checkpoint.safetensors").read_bytes())
    damaged[-100] ^= 1
    (copy / "seeds/1/checkpoint.safetensors").write_bytes(bytes(damaged))
    with pytest.raises(CheckpointError, match="checksum"):
        resume(copy)


def test_a_run_begun_on_another_machine_is_not_resumed_silently(three_seeds: Run, tmp_path: pathlib.Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(three_seeds.folder, copy)
    (copy / "summary.json").unlink()
    (copy / "seeds/0/result.json").unlink()
    begun = json.loads((copy / "kernels.json").read_text())
    (copy / "kernels.json").write_text(json.dumps({"machine": "another"}))
    with pytest.raises(CheckpointError, match="started on another"):
        resume(copy)
    measured = {**begun, "choices": [["mlp", 256, 3, 8, 1, "native"], ["forward", 256, 3, 8, "numpy"]]}
    (copy / "kernels.json").write_text(json.dumps(measured))
    with pytest.raises(CheckpointError, match=r"started by a surefoot 0\.1\.0 that chose among matrix libraries"):
        resume(copy)
    (copy / "kernels.json").write_text(json.dumps({**begun, "choices": measured["choices"][:1]}))
    assert resume(copy).complete


@pytest.mark.usefixtures("in_process")
def test_a_run_with_critics_can_be_a_victim_and_one_without_can_not(three_seeds: Run, tmp_path: pathlib.Path) -> None:
    data = pendulum(400)
    attacked = victim(three_seeds.folder)
    q = attacked.q_values(torch.from_numpy(data.observations[:5]), torch.from_numpy(data.actions[:5]))
    assert q.shape == (2, 5)
    assert attacked.policy(torch.from_numpy(data.observations[:5])).shape == (5, 1)
    run = fit(BC(data, **SMALL), data, steps=2, seeds=1, out=tmp_path / "bc", **FAST)
    with pytest.raises(ConfigError, match="no critics"):
        victim(run.folder)


def test_a_plan_survives_json() -> None:
    plan = Plan("iql", {"hidden": [16, 16]}, "x.hdf5", seeds=(3, 5))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(ConfigError, match="no field 'stepz'"):
        Plan.from_json({**plan.to_json(), "stepz": 1})


@pytest.mark.parametrize(
    ("seeds", "cores", "workers"), [(1, 2, 1), (2, 2, 2), (3, 2, 3), (4, 2, 2), (8, 2, 2), (3, 4, 3)]
)
def test_workers_share_cores_only_where_one_would_idle(seeds: int, cores: int, workers: int) -> None:
    assert at_once(seeds, cores) == workers


def test_where_evaluation_takes_longer_than_training_a_note_says_so_once() -> None:
    from types import SimpleNamespace

    from surefoot.runs.trainers.trainer import SeedTrainer

    plan = SimpleNamespace(interval=30, steps=300, evaluate_episodes=10, episodes=50)
    for step, seconds, training, seed in [
        (30, 11.0, 0.1, 0),
        (60, 11.0, 0.1, 0),
        (30, 11.0, 20.0, 0),
        (30, 11.0, 0.1, 1),
    ]:
        sent: list[Any] = []
        run: Any = SimpleNamespace(plan=plan, step=step, seconds=training, seeds=[seed], send=sent.append)
        run.plan.seeds = (0, 1)
        SeedTrainer._say_evaluation(run, seconds)
        if (step, training, seed) == (30, 0.1, 0):
            assert (
                "30 training steps take 0.1 s and their evaluation 11 s, all of the run's evaluations about 165 s"
                in (sent[0]["text"])
            )
        else:
            assert sent == []
