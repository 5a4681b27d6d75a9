"""Runs of algorithms that act: folders, seeds, resume, what they start from, and what is refused."""

from __future__ import annotations

import json
import pathlib
import re
import signal
from typing import Any

import forking
import numpy as np
import pytest
import torch
from odd_envs import Counting
from small_runs import metrics
from test_training import FAST, _checkpoints, _wait_for, _workers_of, same, weights

from surefoot.api.fit import fit
from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError, SimulatorError
from surefoot.core.engine.agent import Spec
from surefoot.evaluation import RunData, evaluate
from surefoot.offline import IQL
from surefoot.online import PPO, SAC, WSRL
from surefoot.runs.embedded import generate
from surefoot.runs.inputs import elsewhere
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run, load_agent
from surefoot.runs.start import resume
from surefoot.runs.warm_start import advice

ENV = "native/pendulum"
PENDULUM = Spec(3, 1, (-2.0,), (2.0,))
TINY = {"hidden": (16, 16), "num_envs": 2, "initial_steps": 40, "updates_per_step": 0.5}


def sac(**options: Any) -> SAC:
    return SAC(PENDULUM, **{**TINY, **options})


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "two"
    return fit(sac(), env=ENV, steps=600, seeds=2, evaluate_every=200, out=folder, **FAST)


def test_seeds_that_decide_in_chunks_and_count_steps_of_their_own_have_one_curve(tmp_path: pathlib.Path) -> None:
    agent = PPO(Spec(4, 1, (-1.0,), (1.0,)), num_envs=4, horizon=8, minibatches=2, hidden=(8, 8), chunk=7)
    options: dict[str, Any] = {"evaluate_every": 400, "evaluate_episodes": 2, "episodes": 2}
    run = fit(
        agent, env="native/cartpole-balance", steps=1200, seeds=2, out=tmp_path / "run", progress=False, **options
    )
    steps = {line["seed"]: set[int]() for line in metrics(run)}
    for line in metrics(run):
        steps[line["seed"]] |= {line["step"]} if line["kind"] == "eval" else set()
    assert not steps[0] & steps[1]  # episodes ended at other times
    assert len(RunData.load(run.folder).learning_curve()) == 3
    assert (run.folder / "curves.png").is_file()


def test_a_run_that_acts_counts_environment_steps_and_has_no_dataset(two_seeds: Run) -> None:
    summary = two_seeds.summary
    assert summary["dataset"] is None
    assert summary["behaviour"] is None
    assert summary["steps"] == 600
    assert summary["steps_of"] == RunData.load(two_seeds.folder).steps_of == "environment steps"
    assert len(summary["per_seed_returns"]) == 2
    assert summary["steps_per_second"] == pytest.approx(600 / 280 * summary["updates_per_second"], rel=0.01)
    lines = metrics(two_seeds)
    assert sorted({line["step"] for line in lines if line["kind"] == "eval"}) == [200, 400, 600]
    ended = [line for line in lines if "episode_return" in line["values"]]
    assert {line["values"]["episode_length"] for line in ended} == {200.0}  # nothing is given where no episode ended
    assert (two_seeds.folder / "curves.png").stat().st_size > 5000
    assert not two_seeds.columns_path.exists()


def test_seed_one_of_two_is_the_same_alone(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    alone = fit(sac(), env=ENV, steps=600, seeds=[1], evaluate_every=200, out=tmp_path / "alone", **FAST)
    assert alone.summary["per_seed_returns"] == [two_seeds.summary["per_seed_returns"][1]]
    assert same(weights(alone, 1), weights(two_seeds, 1))


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_acting_runs import sac, ENV, FAST
from surefoot.api.fit import fit
fit(sac(), env=ENV, steps=600, seeds=2, evaluate_every=200, out={out!r}, **FAST)
"""


def test_a_killed_run_goes_on_to_the_same_weights_and_curves(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "killed"
    script = SCRIPT.format(tests=str(pathlib.Path(__file__).parent), out=str(folder))
    process = forking.Popen(["-c", script])
    _wait_for(lambda: _checkpoints(folder) >= 1, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _workers_of(folder))
    run = resume(folder)
    for seed in (0, 1):
        assert same(weights(run, seed), weights(two_seeds, seed))
    assert metrics(run) == metrics(two_seeds)


def test_an_environment_whose_state_is_hidden_begins_a_new_episode_and_the_run_says_so(tmp_path: pathlib.Path) -> None:
    script = SCRIPT.format(tests=str(pathlib.Path(__file__).parent), out=str(tmp_path / "killed"))
    script = script.replace("env=ENV", "env='Pendulum-v1'").replace("seeds=2", "seeds=1")
    process = forking.Popen(["-c", script])
    _wait_for(lambda: _checkpoints(tmp_path / "killed") >= 1, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not _workers_of(tmp_path / "killed"))
    notes: list[str] = []
    run = resume(tmp_path / "killed", listener=lambda event: notes.append(event.get("text", "")))
    assert any("episode" in text for text in notes)
    assert [line for line in metrics(run) if line["kind"] == "resumed"]


@pytest.mark.usefixtures("in_process")
def test_losses_in_half_precision_are_others_and_the_run_ends(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    half = fit(
        sac(), env=ENV, steps=600, seeds=[0], evaluate_every=200, out=tmp_path / "half", mixed_precision=True, **FAST
    )
    assert not same(weights(half, 0), weights(two_seeds, 0))


def test_an_actor_learns_choices_and_leaves_a_policy_that_chooses(tmp_path: pathlib.Path) -> None:
    agent = PPO(Spec.of_choices(4, 2), hidden=(8, 8), num_envs=2, horizon=32)
    run = fit(agent, env="CartPole-v1", steps=128, seeds=1, out=tmp_path / "run", **FAST)
    choice = run.policy().select_action(np.zeros(4, np.float32))
    assert choice.dtype == np.int64
    assert int(choice) in (0, 1)
    assert "leaked" not in (run.seed_folder(0) / "log.txt").read_text(encoding="utf-8")


def test_a_run_of_choices_is_evaluated_rolled_out_and_exported(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = PPO(Spec.of_choices(4, 2), hidden=(8, 8), num_envs=2, horizon=32)
    run = fit(agent, env="CartPole-v1", steps=128, seeds=1, out=tmp_path / "run", **FAST)
    capsys.readouterr()
    assert main(["evaluate", str(run.folder), "--episodes", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["returns"]["mean"] >= 8
    assert main(["rollout", str(run.folder), "--envs", "4"]) == 0
    assert "4 of" in capsys.readouterr().out
    assert main(["export", str(run.folder), "-o", str(tmp_path / "policy.pt2")]) == 0
    assert "-> choices (batch), int64" in capsys.readouterr().out
    assert main(["rollout", str(run.folder), "--env", "Pendulum-v1"]) == 2
    assert "this policy chooses one of 2" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_no_step_of_the_environment_is_taken_beside_training_and_evaluation(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "steps", 0)
    options = {**FAST, "kernels": True, "episodes": 1, "evaluate_episodes": 1}
    agent = SAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,), initial_steps=300)
    fit(agent, env="odd_envs:Counting-v0", steps=305, seeds=1, evaluate_every=305, out=tmp_path / "run", **options)
    assert Counting.steps == 305 + 2 * 20


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("agent", [SAC, PPO])
def test_whole_numbers_are_observed_as_others(agent: Any, tmp_path: pathlib.Path) -> None:
    small = (
        {"initial_steps": 20} if agent is SAC else {"horizon": 32, "minibatches": 2, "normalize_observations": False}
    )
    made = agent(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,), **small)
    assert fit(made, env="odd_envs:Whole-v0", steps=64, seeds=1, out=tmp_path / "run", **FAST).complete


@pytest.mark.usefixtures("in_process")
def test_an_error_of_the_users_environment_is_named_as_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "fails_at", Counting.steps + 50)
    made = SAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,), initial_steps=20)
    said = r"Counting-v0: its step raised ConnectionError: the arm does not answer"
    with pytest.raises(SimulatorError, match=said):
        fit(made, env="odd_envs:Counting-v0", steps=100, seeds=1, out=tmp_path / "run", **FAST)


def test_a_plan_that_only_a_worker_finds_bad_leaves_no_folder_behind(tmp_path: pathlib.Path) -> None:
    data = generate("native/pendulum-mixed", transitions=400)
    kept = tmp_path / "here" / ".git"
    kept.mkdir(parents=True)
    for out in (tmp_path / "run", kept.parent):
        with pytest.raises(ConfigError, match="sac keeps no offline data"):
            fit(sac(), data, env=ENV, steps=80, seeds=1, out=out, **FAST)
    assert not (tmp_path / "run").exists()
    assert list(kept.parent.iterdir()) == [kept]  # what was there before stays


def test_an_agent_of_another_problem_and_unknown_options_are_refused(tmp_path: pathlib.Path) -> None:
    other = SAC(Spec(7, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(8,))
    with pytest.raises(
        EnvironmentMismatchError, match="observations 7 numbers against 3 numbers and action_dim 2 against 1"
    ):
        fit(other, env=ENV, steps=200, out=tmp_path / "run", **FAST)
    with pytest.raises(ConfigError, match="make the agent with num_envs="):
        fit(sac(), env=ENV, steps=200, out=tmp_path / "run", envs=4, **FAST)
    with pytest.raises(ConfigError, match="fit has no option 'episode'; did you mean 'episodes'"):
        fit(sac(), env=ENV, steps=200, out=tmp_path / "run", episode=4)


def test_a_block_longer_than_the_run_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"steps is 100, and a block is 128: algo\.horizon 64 in each of 2 env"):
        fit(PPO(PENDULUM, hidden=(8,), num_envs=2, horizon=64), env=ENV, steps=100, out=tmp_path / "run", **FAST)


@pytest.mark.usefixtures("in_process")
def test_what_comes_from_another_task_is_told_even_where_its_sizes_agree(
    two_seeds: Run, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = generate("native/pendulum-mixed", transitions=2000).replace(env_id="Reacher-v5")
    notes: list[str] = []
    tell = {"listener": lambda event: notes.append(event.get("text", ""))}
    fit(IQL(data, hidden=(8,)), data, env=ENV, steps=2, seeds=1, out=tmp_path / "iql", **FAST, **tell)
    assert any("warning: native/pendulum-mixed comes from Reacher-v5, and this run is in" in text for text in notes)
    assert elsewhere("Pendulum-v1", "surefoot/Pendulum-v0", "it") == []
    assert elsewhere("Walker2d-v5", "HalfCheetah-v5", "it")
    assert elsewhere("ocbench/block-lite-single-task1-v0", "ocbench/block-lite-v0", "it") == []
    assert elsewhere("ogbench/scene-play-singletask-task1-v0", "ogbench/scene-singletask-task1-sparse-v0", "it") == []
    assert elsewhere("ogbench/scene-play-singletask-task1-v0", "ogbench/scene-play-singletask-task2-v0", "it")


def test_a_run_that_is_not_finished_says_so(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "config.json").write_bytes((two_seeds.folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match="not complete; continue: surefoot train --resume"):
        Run.open(folder).policy()
    with pytest.raises(CheckpointError, match="has no checkpoint of seed 0 yet; continue"):
        load_agent(Run.open(folder))


@pytest.mark.usefixtures("in_process")
def test_it_starts_from_a_run_of_its_kind_and_says_what_came_along(two_seeds: Run, tmp_path: pathlib.Path) -> None:
    notes: list[str] = []
    agent = sac(actor_learning_rate=0.0, critic_learning_rate=0.0, learn_temperature=False, target_rate=0.0)
    run = fit(
        agent, env=ENV, steps=80, seeds=1, out=tmp_path / "run", init=str(two_seeds.folder), **FAST,
        listener=lambda event: notes.append(event.get("text", "")),
    )  # fmt: skip
    before, after = load_agent(two_seeds).state_dict(), load_agent(run).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(text == "init: actor, critic, target_critic, temperature of sac in two" for text in notes)
    assert any(
        re.search(r"starts from returns -?\d.*\[.*\]; its data's return here is not known", text) for text in notes
    )
    lines = [line for line in metrics(run) if line["kind"] == "eval"]
    assert lines[0]["step"] == 0
    assert len(lines) > 2
    assert len({line["values"]["return_mean"] for line in lines}) == 1  # it learns nothing, at rates of 0


@pytest.mark.usefixtures("in_process")
def test_a_policy_that_never_acted_is_evaluated_before_it_is_compared_with_its_data(tmp_path: pathlib.Path) -> None:
    data = generate("native/pendulum-mixed", transitions=2000)
    offline = fit(IQL(data, hidden=(16, 16)), data, env=None, steps=2, seeds=2, out=tmp_path / "iql", **FAST)
    assert offline.summary["returns"] is None
    plan = Plan("iql_online", {}, None, ENV, evaluate_episodes=3)
    (text,) = advice(offline, plan)
    found = evaluate([offline.policy(seed) for seed in (0, 1)], ENV, 3, seed=0)
    assert f"returns {np.mean([one.returns for one in found]):.1f} [" in text
    assert f"its data {data.episode_returns.mean():.1f} [" in text


@pytest.mark.usefixtures("in_process")
def test_a_policy_of_another_family_is_no_start(tmp_path: pathlib.Path) -> None:
    data = generate("native/pendulum-mixed", transitions=400)
    offline = fit(IQL(data, hidden=(16, 16)), data, steps=2, seeds=1, out=tmp_path / "iql", **FAST)
    with pytest.raises(ConfigError, match="its iql agent does not fit sac"):
        fit(sac(), env=ENV, steps=80, seeds=1, out=tmp_path / "run", init=str(offline.folder), **FAST)
    ppo = PPO(PENDULUM, hidden=(16, 16), horizon=32)
    with pytest.raises(ConfigError, match="a gaussian actor is no"):
        fit(ppo, env=ENV, steps=80, seeds=1, out=tmp_path / "run", init=str(offline.folder), **FAST)
    assert not (tmp_path / "run").exists()


def interval(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


@pytest.mark.parametrize(
    ("policy", "data", "dataset", "says"),
    [
        (interval(100, 5), interval(50, 5), None, "the policy is better, so protect it"),
        (interval(50, 5), interval(100, 5), None, "warning: .*the data is better.*discards it"),
        (interval(50, 5), interval(100, 5), "kept.hdf5", "^the policy .*the data is better, so keep learning"),
        (interval(100, 50), interval(120, 5), None, "warning: .*100.0 .*120.0 .*the data may be the better"),
        (interval(130, 50), interval(120, 5), None, "^the policy .*neither is clearly better"),
        (interval(100, 50), interval(120, 5), "kept.hdf5", "^the policy .*neither is clearly better"),
    ],
)
def test_the_better_of_policy_and_data_is_to_be_kept(
    policy: dict[str, float], data: dict[str, float], dataset: str | None, says: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "summary.json").write_text(
        json.dumps({"returns": policy, "behaviour": data, "environment": ENV}), encoding="utf-8"
    )
    plan = Plan("sac", {}, dataset, ENV)
    (text,) = advice(Run(tmp_path, plan), plan)
    assert re.search(says, text)


def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    data = generate("native/pendulum-mixed", transitions=400)
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="learns online: name an environment"):
        fit(sac(), steps=10, out=out)
    with pytest.raises(ConfigError, match="ppo takes no dataset"):
        fit(PPO(PENDULUM), data, env=ENV, steps=10, out=out)
    with pytest.raises(ConfigError, match="wsrl starts from a trained run"):
        fit(WSRL(PENDULUM), env=ENV, steps=10, out=out)
    with pytest.raises(ConfigError, match="sac learns continuous actions"):
        fit(sac(), env="CartPole-v1", steps=10, out=out)
    with pytest.raises(ConfigError, match="has no gap 'gravty2'; did you mean 'gravity2'"):
        fit(sac(), env=ENV, steps=10, out=out, gap="gravty2")
    with pytest.raises(ConfigError, match="Pendulum-v1 has no dynamics gaps"):
        fit(sac(), env="Pendulum-v1", steps=10, out=out, gap="gravity2")
    with pytest.raises(ConfigError, match="iql learns from data alone, and gap="):
        fit(IQL(data), data, steps=10, out=out, gap="gravity2")
    with pytest.raises(EnvironmentMismatchError, match="no finite bounds"):
        fit(sac(), env="unbounded:Unbounded-v0", steps=10, out=out)
    with pytest.raises(ConfigError, match=r"steps is 41, algo.initial_steps 40 .* 0.5: nothing would be learned"):
        fit(sac(), env=ENV, steps=41, out=out)
    with pytest.raises(ConfigError, match=r"mixed_precision is for agents .* and ppo learns from"):
        fit(PPO(PENDULUM), env=ENV, steps=100, out=out, mixed_precision=True)
    assert not out.exists()
