"""Runs of algorithms that learn from one sample at a time: folders, seeds, resume, what they start from."""

from __future__ import annotations

import math
import pathlib
import signal
from typing import Any

import forking
import numpy as np
import pytest
import torch
from test_acting_runs import metrics
from test_training import FAST, _checkpoints, _wait_for, _workers_of, same, weights

from surefoot.api.fit import fit
from surefoot.core.base.errors import ConfigError, DivergenceError
from surefoot.core.base.files import read_json
from surefoot.core.engine.agent import Spec
from surefoot.evaluation import RunData
from surefoot.runs.run import Run, load_agent
from surefoot.runs.start import resume
from surefoot.streaming import StreamAC, StreamQ

ENV = "native/pendulum"
PENDULUM = Spec(3, 1, (-2.0,), (2.0,))


def stream(**options: Any) -> StreamAC:
    return StreamAC(PENDULUM, **{"hidden": (16, 16), **options})


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "two"
    return fit(stream(), env=ENV, steps=3000, seeds=2, evaluate_every=1000, out=folder, **FAST)


def test_a_streaming_run_counts_environment_steps_and_leaves_scores_curves_and_policies(two_seeds: Run) -> None:
    summary = two_seeds.summary
    assert summary["algorithm"] == "stream_ac"
    assert summary["steps_of"] == RunData.load(two_seeds.folder).steps_of == "environment steps"
    assert summary["steps_per_second"] == summary["updates_per_second"]
    lines = metrics(two_seeds)
    assert sorted({line["step"] for line in lines if line["kind"] == "eval"}) == [1000, 2000, 3000]
    ended = [line for line in lines if "episode_return" in line["values"]]
    assert {line["values"]["episode_length"] for line in ended} == {200.0}
    assert all(line["values"]["td_error"] > 0 for line in lines if line["kind"] == "train")
    assert (two_seeds.folder / "curves.png").stat().st_size > 5000
    action = two_seeds.policy(1).select_action(np.array([1.0, 0.0, 0.5], np.float32))
    assert action.shape == (1,)
    assert abs(float(action[0])) <= 2


def test_seed_one_of_two_is_the_same_alone(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    alone = fit(stream(), env=ENV, steps=3000, seeds=[1], evaluate_every=1000, out=tmp_path / "alone", **FAST)
    assert alone.summary["per_seed_returns"] == [two_seeds.summary["per_seed_returns"][1]]
    assert same(weights(alone, 1), weights(two_seeds, 1))


@pytest.mark.usefixtures("in_process")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_can_learn_from_no_sample_ends_in_a_sentence(tmp_path: pathlib.Path) -> None:
    agent = StreamAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,))
    with pytest.raises(DivergenceError, match=r"stream_ac: seed 0 learned nothing in its last \d+ steps.*beyond 1e18"):
        fit(agent, env="odd_envs:Huge-v0", steps=200, seeds=1, evaluate_every=100, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.usefixtures("in_process")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_steps_without_learning_are_counted_in_a_row_and_not_across_those_that_learn(tmp_path: pathlib.Path) -> None:
    agent = StreamAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,))
    run = fit(agent, env="odd_envs:HugeTwice-v0", steps=150, seeds=1, evaluate_every=30, out=tmp_path / "run", **FAST)
    assert read_json(run.seed_folder(0) / "result.json")["skipped_samples"] == 60


@pytest.mark.usefixtures("in_process")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_skipped_samples_are_counted_in_metrics_and_result(tmp_path: pathlib.Path) -> None:
    agent = StreamAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,))
    run = fit(agent, env="odd_envs:HugeOnce-v0", steps=120, seeds=1, evaluate_every=60, out=tmp_path / "run", **FAST)
    counted = [line["values"].get("skipped_samples") for line in metrics(run) if line["kind"] == "train"]
    assert counted[-1] == 1
    assert set(counted[:-1]) == {None}
    assert read_json(run.seed_folder(0) / "result.json")["skipped_samples"] == 1


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan, 1e300])
@pytest.mark.usefixtures("in_process")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_lost_reward_takes_its_own_episodes_return_alone(
    reward: float, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odd_envs.Lost.reward", reward)
    agent = StreamAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,))
    run = fit(agent, env="odd_envs:Lost-v0", steps=200, seeds=1, evaluate_every=100, out=tmp_path / "run", **FAST)
    lines = [line["values"] for line in metrics(run) if line["kind"] == "train"]
    assert [line["skipped_samples"] for line in lines if "skipped_samples" in line] == [1]
    found = [(line["episode_return"], line["episode_length"]) for line in lines]
    assert found == [(-20.0, 20.0)] * len(lines)  # of 50 steps each: two or three episodes


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_streaming_runs import stream, ENV, FAST
from surefoot.api.fit import fit
fit(stream(), env=ENV, steps=3000, seeds=2, evaluate_every=1000, out={out!r}, **FAST)
"""


def killed(folder: pathlib.Path, env: str = "ENV") -> None:
    """A run that was killed after its first checkpoint."""
    script = SCRIPT.format(tests=str(pathlib.Path(__file__).parent), out=str(folder)).replace("env=ENV", f"env={env}")
    process = forking.Popen(["-c", script])
    _wait_for(lambda: _checkpoints(folder) >= 1, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _workers_of(folder))


def test_a_killed_run_goes_on_to_the_same_weights_and_curves(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    killed(tmp_path / "killed")
    run = resume(tmp_path / "killed")
    for seed in (0, 1):
        assert same(weights(run, seed), weights(two_seeds, seed))
    assert metrics(run) == metrics(two_seeds)


def test_an_environment_whose_state_is_hidden_begins_a_new_episode_and_the_run_says_so(tmp_path: pathlib.Path) -> None:
    killed(tmp_path / "killed", "'Pendulum-v1'")
    notes: list[str] = []
    run = resume(tmp_path / "killed", listener=lambda event: notes.append(event.get("text", "")))
    assert run.complete
    assert any("new episode" in text for text in notes) == bool([x for x in metrics(run) if x["kind"] == "resumed"])


@pytest.mark.usefixtures("in_process")
def test_stream_q_learns_choices_from_the_front_door(tmp_path: pathlib.Path) -> None:
    agent = StreamQ(Spec.of_choices(4, 2), hidden=(8, 8))
    run = fit(agent, env="CartPole-v1", steps=300, seeds=[3], out=tmp_path / "run", **FAST)
    assert load_agent(run, 3).seeds == (3,)
    assert int(run.policy().select_action(np.zeros(4, np.float32))) in (0, 1)


@pytest.mark.usefixtures("in_process")
def test_it_starts_from_the_weights_and_statistics_of_a_run_of_its_kind(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    notes: list[str] = []
    run = fit(
        stream(optimizer="sgd", learning_rate=1e-12), env=ENV, steps=50, seeds=[1], out=tmp_path / "run",
        init=str(two_seeds.folder), listener=lambda event: notes.append(event.get("text", "")), **FAST,
    )  # fmt: skip
    before, after = load_agent(two_seeds, 1).state_dict(), load_agent(run, 1).state_dict()
    for name in ("actor_weights", "critic_weights"):
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    assert after["observation_count"] > before["observation_count"] + 40
    assert any(text.startswith("init: ") and "statistics" in text for text in notes)


def test_another_family_or_size_is_no_start(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    for agent in (stream(hidden=(8, 8)), StreamQ(Spec.of_choices(4, 2), hidden=(16, 16))):
        env = ENV if isinstance(agent, StreamAC) else "CartPole-v1"
        with pytest.raises(ConfigError, match="streaming algorithms start from runs of the same one"):
            fit(agent, env=env, steps=50, seeds=1, out=tmp_path / "run", init=str(two_seeds.folder), **FAST)
    assert not (tmp_path / "run").exists()


def test_a_dataset_or_no_environment_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="stream_ac learns online"):
        fit(stream(), env=None, steps=50, seeds=1, out=tmp_path / "run", **FAST)
