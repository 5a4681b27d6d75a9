"""Benchmarks' data from the command line: recorded, labelled, trained from."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from small_runs import TINY

from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import load
from surefoot.data.dataset import NO_TASK, REWARDS
from surefoot.evaluation import RunData
from surefoot.runs import recorded as suites
from surefoot.runs.embedded import load as load_any
from surefoot.runs.inputs import dataset_of
from surefoot.runs.plan import Plan
from surefoot.runs.trust import allow

MAZE = "ogbench/pointmaze-medium-navigate"
TASK = f"{MAZE}-singletask-task1-v0"


def needs_ogbench() -> None:
    pytest.importorskip("ogbench", reason="needs the extra ogbench: pip install 'surefoot[ogbench]'")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three episodes of a point in a maze."""
    needs_ogbench()
    path = tmp_path_factory.mktemp("data") / "maze.hdf5"
    arguments = ["datasets", "generate", MAZE, "--episodes", "3", "--workers", "1", "--seed", "1", "-o", str(path)]
    assert main(arguments) == 0
    return path


def test_data_are_recorded_without_rewards_and_no_parts_are_left(
    recorded: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load(recorded)
    assert (len(found), found.observation_dim, found.action_dim) == (3000, 2, 2)
    assert found.episode_lengths.tolist() == [1000] * 3
    assert found.attributes[REWARDS] == NO_TASK
    assert found.env_id == TASK  # the default task
    assert [item.name for item in recorded.parent.iterdir()] == [recorded.name]
    assert main(["datasets", "verify", str(recorded)]) == 0


def test_the_rewards_of_a_task_can_be_stored_and_exchanged(recorded: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "task3.hdf5"
    name = f"{MAZE}-singletask-task3-v0"
    assert main(["datasets", "relabel", str(recorded), "--env", name, "-o", str(output)]) == 0
    found, plain = load(output), load(recorded)
    solved = np.linalg.norm(plain.observations - [4 * 2 - 4 + 0.0, 4 * 4 - 4], axis=1) <= 1.0  # cell (4, 2)
    np.testing.assert_array_equal(found.terminations, solved)
    np.testing.assert_array_equal(found.rewards, solved - 1.0)
    assert 0 < found.attributes["solved_rows"] == solved.sum()
    assert "judged before" in found.attributes["success"]
    assert found.env_id == name
    # labelled again for another task it is as if it had never had the first
    other = suites.relabelled(found, suites.parse(TASK))  # type: ignore[arg-type]
    direct = suites.relabelled(plain, suites.parse(TASK))  # type: ignore[arg-type]
    for key in ("rewards", "terminations", "truncations", "episode_ids", "observations"):
        np.testing.assert_array_equal(getattr(other, key), getattr(direct, key))
    exchanged = tmp_path / "task3.npz"
    assert main(["datasets", "convert", str(output), str(exchanged), "--layout", "ogbench"]) == 0
    np.testing.assert_array_equal(load(exchanged).terminations, solved)


def test_training_finds_the_rewards_of_the_environments_task_and_reports_success(
    recorded: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], in_process: None
) -> None:
    task = f"{MAZE}-singletask-task3-post-v0"
    command = ["train", "algo=iql", f"dataset={recorded}", f"env={task}", "seeds=1", f"out={tmp_path / 'run'}", *TINY]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert f"rewards of {task}, dense" in told
    assert "judged after the action" in told
    run = RunData.load(tmp_path / "run")
    assert run.success is not None
    assert 0 <= run.success["low"] <= run.success["mean"] <= run.success["high"] <= 1
    assert run.environment == task
    notes = json.loads((tmp_path / "run" / "config.json").read_text())["notes"]
    assert any("solve it" in note for note in notes)


def test_a_function_of_the_users_own_wins_over_the_rewards_of_the_task(
    recorded: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_maze.py").write_text("def east(o, a, after):\n    return after[:, 0] - o[:, 0]\n")
    allow("my_maze:east")
    task = f"{MAZE}-singletask-task3-v0"
    plan = Plan("iql", {}, str(recorded), task, reward="my_maze:east")
    said: list[Any] = []
    found = dataset_of(plan, None, said.append)
    np.testing.assert_allclose(found.rewards, found.next_observations[:, 0] - found.observations[:, 0])
    solved = suites.relabelled(load(recorded), suites.parse(task))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.terminations, solved.terminations)  # where the task ends in the environment
    assert not said, "of the task's rewards there is nothing to say"


def test_a_run_without_a_task_is_told_that_there_are_no_rewards(recorded: pathlib.Path) -> None:
    dataset = load(recorded)
    same, notes = suites.with_rewards(dataset, None)
    assert same is dataset
    assert notes[0].startswith("warning:")
    assert "no rewards" in notes[0]
    with pytest.raises(ConfigError, match="no rewards, which iql learns from; name a task that gives some"):
        dataset_of(Plan("iql", {}, str(recorded), None), None, lambda _: None)
    assert dataset_of(Plan("iql", {}, str(recorded), TASK), None, lambda _: None).has_rewards


def test_a_task_that_no_row_solves_is_warned_of(recorded: pathlib.Path) -> None:
    dataset = load(recorded)
    kept = np.flatnonzero(dataset.episode_ids == 0)[:20]
    few = dataset.select_episodes(np.array([0]))
    far = few.replace(extras={**few.extras, "qpos": few.extras["qpos"] + 1000})
    labelled, notes = suites.with_rewards(far, TASK)
    assert len(kept) == 20
    assert any(note.startswith("warning:") and "no row solves" in note for note in notes)
    assert (labelled.rewards == -1).all()
    assert "qpos" not in labelled.extras  # of no use in training


def test_states_of_another_environment_are_not_labelled(recorded: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"was recorded in .*pointmaze-medium.* whose states say nothing of .*large"):
        suites.with_rewards(load(recorded), "ogbench/pointmaze-large-singletask-task1-v0")


def test_a_name_is_recorded_into_the_cache_or_the_error_says_how(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_ogbench()
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    monkeypatch.setitem(suites.EPISODES, "ogbench", 2)
    found = load_any(TASK)
    assert len(found) == 2000
    assert found.env_id == TASK
    assert set(np.unique(found.rewards)) <= {-1.0, 0.0}
    assert suites.cached_path(MAZE).is_file()
    assert main(["datasets", "convert", MAZE, str(tmp_path / "copy.csv")]) == 0
    assert len(load(tmp_path / "copy.csv")) == 2000
    capsys.readouterr()
    assert main(["datasets", "generate", MAZE]) == 2
    assert "is recorded already" in capsys.readouterr().err
    for arguments, match in (
        (["datasets", "generate", "ogbench/scene-play", "--transitions", "5"], "--transitions is of native"),
        (["datasets", "generate", "ogbench/scene-play", "--episodes", "5"], "add -o FILE"),
        (["datasets", "generate", "native/pendulum", "--episodes", "5"], "give --transitions instead"),
        (["datasets", "info", "ogbench/scene-play"], "surefoot datasets generate ogbench/scene-play"),
        (["datasets", "info", "ogbench/scene"], "names no behaviour"),
        (["datasets", "relabel", "x.hdf5", "--env", "Hopper-v5", "-o", "y.hdf5"], "only tasks of ogbench"),
    ):
        assert main(arguments) == 2
        assert match in capsys.readouterr().err


def test_benchmarks_are_listed_without_their_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "list", "scene-play", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["environment"] == "ogbench/scene-play-singletask-task2-v0"
    assert main(["envs", "list", "ogbench/scene", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["observations"], row["actions"], row["steps"]) == (40, 5, 750)
    assert main(["envs", "list", "ocbench/", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5


def test_demonstrations_of_ocbench_end_in_terminations_with_reward_one(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("ocbench", reason="needs the extra ocbench: pip install 'surefoot[ocbench]'")
    path = tmp_path / "block.hdf5"
    arguments = ["datasets", "generate", "ocbench/block-lite", "--episodes", "2", "--workers", "1", "-o", str(path)]
    assert main(arguments) == 0
    found = load(path)
    assert found.env_id == "ocbench/block-lite-single-task1-v0"
    assert found.episode_returns.tolist() == found.terminations[found.episode_starts[1:] - 1].astype(float).tolist()
    assert found.observation_dim == 28
