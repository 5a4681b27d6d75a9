"""Recording of benchmarks' data: the same numbers from one seed however it is done, and no work lost by a kill."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.envs.suites import parse
from surefoot.envs.suites.names import OGBenchName
from surefoot.envs.suites.shards import Recording

pytest.importorskip("ogbench", reason="needs the extra ogbench: pip install 'surefoot[ogbench]'")

from surefoot.envs.suites import collect
from surefoot.envs.suites.ogbench import make, rewards_of

MAZE = "ogbench/pointmaze-medium-navigate"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of 40 steps."""
    monkeypatch.setattr(collect, "STEPS", 40)


def task(name: str) -> OGBenchName:
    found = parse(name)
    assert isinstance(found, OGBenchName)
    return found


def test_an_episode_follows_from_seed_and_number_alone(short: None) -> None:
    first = collect.episode(MAZE, 3, 2)
    collect.episode(MAZE, 3, 5)
    np.random.seed(0)  # noqa: NPY002
    again = collect.episode(MAZE, 3, 2)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
    others = [collect.episode(MAZE, 3, 3), collect.episode(MAZE, 4, 2)]
    assert all(not np.array_equal(first["observations"], other["observations"]) for other in others)


def test_rows_are_states_before_actions_and_the_end_is_a_cut(short: None) -> None:
    rows = collect.episode(MAZE, 0, 0)
    assert rows["observations"].shape == (41, 2)
    np.testing.assert_array_equal(rows["observations"][:-1], rows["qpos"])  # a point's observation is where it is
    assert rows["truncations"].tolist() == [False] * 39 + [True]
    assert not rows["terminations"].any()
    assert not rows["rewards"].any()
    assert np.abs(rows["actions"]).max() <= 1
    moved = np.linalg.norm(np.diff(rows["observations"], axis=0), axis=1)
    assert 0.02 < moved.mean() < 0.3  # a fifth of an action of about 1


def test_goals_of_a_point_are_not_in_corridors_and_it_gets_about() -> None:
    recorder = collect.recorder_of(MAZE)
    assert (1, 1) in recorder.places  # type: ignore[attr-defined]
    assert (2, 5) in recorder.cells  # type: ignore[attr-defined]
    free = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    assert collect._corridor(free, 1, 1)
    rows = collect.episode(MAZE, 0, 0)
    visited = {tuple(cell) for cell in np.round(rows["observations"] / 4).astype(int)}
    assert len(visited) > 8


def test_the_number_of_workers_changes_nothing(tmp_path: pathlib.Path) -> None:
    found = []
    for workers in (1, 2):
        recording = Recording(MAZE, 7, tmp_path / str(workers))
        seen: list[int] = []
        recording.record(2, workers, lambda done, total, seen=seen: seen.append(done))
        assert (seen[0], seen[-1], seen) == (0, 2, sorted(seen))
        found.append(recording.rows(range(2)))
    for key, value in found[0][0].items():
        np.testing.assert_array_equal(value, found[1][0][key])
    np.testing.assert_array_equal(found[0][1], [1000, 1000])


def test_a_killed_recording_goes_on_and_ends_as_one_that_was_not(tmp_path: pathlib.Path) -> None:
    script = (
        "import pathlib, sys\nfrom surefoot.envs.suites.shards import Recording\n"
        f"Recording({MAZE!r}, 1, pathlib.Path(sys.argv[1])).record(400, 1)\n"
    )
    parts = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(parts)])
    recording = Recording(MAZE, 1, parts)
    try:
        until = time.monotonic() + 120
        while len(recording.missing(400)) > 399 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = 400 - len(recording.missing(400))
    assert 1 <= kept < 400
    wanted = kept + 1
    recording.record(wanted, 1)
    whole = Recording(MAZE, 1, tmp_path / "whole")
    whole.record(wanted, 1)
    for key, value in recording.rows(range(wanted))[0].items():
        np.testing.assert_array_equal(value, whole.rows(range(wanted))[0][key])


def test_parts_of_another_seed_and_damaged_parts_are_refused(tmp_path: pathlib.Path, short: None) -> None:
    recording = Recording(MAZE, 1, tmp_path)
    recording.record(2, 1)
    with pytest.raises(ConfigError, match=r"with seed 1 .*not of .* with seed 2"):
        Recording(MAZE, 2, tmp_path).record(2, 1)
    path = recording.path(1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"episode000001\.npz.*Delete it"):
        recording.rows(range(2))
    path.unlink()
    with pytest.raises(DataError, match=r"episode000001\.npz: is missing"):
        recording.rows(range(2))
    for episodes, workers in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            recording.record(episodes, workers)


def test_what_cannot_be_recorded_is_named_with_what_can() -> None:
    with pytest.raises(ConfigError, match="no scripted behaviour records 'ogbench/antmaze-large-navigate'"):
        collect.check_recordable("ogbench/antmaze-large-navigate")
    for size in ("medium", "large", "giant", "teleport"):  # whose recorder walks to far goals, as navigate does
        with pytest.raises(ConfigError, match=f"did you mean 'ogbench/pointmaze-{size}-navigate'"):
            collect.check_recordable(f"ogbench/pointmaze-{size}-stitch")
    with pytest.raises(ConfigError, match="did you mean 'ogbench/scene-noisy'"):
        collect.check_recordable("ogbench/scene-navigate")
    with pytest.raises(ConfigError, match=r"names a task.*record ogbench/scene-play"):
        collect.check_recordable("ogbench/scene-play-singletask-task2-v0")


def same_as_the_packages(base: str, behaviour: str) -> int:
    """Compare all five tasks' rewards with ogbench's own labels; how many rows solve some task."""
    from ogbench.relabel_utils import relabel_dataset

    rows = collect.episode(f"ogbench/{base}-{behaviour}", 0, 0)
    solved_rows = 0
    for number in range(1, 6):
        env = make(f"ogbench/{base}-singletask-task{number}-v0")
        theirs: dict[str, Any] = dict(rows)
        relabel_dataset(f"{base}-singletask-task{number}-v0", env, theirs)
        rewards, solved = rewards_of(task(f"ogbench/{base}-singletask-task{number}"), rows)
        np.testing.assert_array_equal(rewards, theirs["rewards"])
        np.testing.assert_array_equal(solved, theirs["masks"] == 0)
        sparse, _ = rewards_of(task(f"ogbench/{base}-singletask-task{number}-sparse"), rows)
        np.testing.assert_array_equal(sparse, np.where(solved, 0, -1))
        solved_rows += int(solved.sum())
    return solved_rows


def test_rewards_of_a_maze_are_those_of_the_package() -> None:
    assert same_as_the_packages("pointmaze-medium", "navigate") > 0


@pytest.mark.slow
def test_rewards_of_manipulation_are_those_of_the_package_and_its_episodes_repeat(short: None) -> None:
    same_as_the_packages("scene", "play")
    first, again = (collect.episode("ogbench/scene-play", 0, 0) for _ in range(2))
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])


@pytest.mark.slow
@pytest.mark.parametrize("base", ["cube-single", "scene", "puzzle-3x3"])
def test_noisy_behaviour_is_recorded_too(base: str, short: None) -> None:
    rows = collect.episode(f"ogbench/{base}-noisy", 0, 0)
    assert len(rows["actions"]) == 40
    assert ("button_states" in rows) == (base != "cube-single")


def test_states_of_another_environment_give_no_rewards() -> None:
    name = task("ogbench/pointmaze-medium-singletask-task1")
    with pytest.raises(DataError, match=r"'qpos' of 2 numbers.*shape \(3, 7\)"):
        rewards_of(name, {"qpos": np.zeros((3, 7))})
    with pytest.raises(DataError, match="none"):
        rewards_of(name, {})
    with pytest.raises(ConfigError, match="names no task"):
        rewards_of(task("ogbench/pointmaze-medium"), {"qpos": np.zeros((3, 2))})


def test_an_episode_in_which_the_cube_is_lost_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def recorder(seed: int, number: int) -> Any:
        asked.append(seed)
        return {"actions": np.zeros((1, 2))} if len(asked) > 2 else None

    monkeypatch.setattr(collect, "recorder_of", lambda name: recorder)
    assert collect.episode("ogbench/scene-play", 0, 0)["actions"].shape == (1, 2)
    assert len(set(asked)) == 3  # new numbers each time


def test_a_demonstration_of_ocbench_ends_solved_or_cut() -> None:
    pytest.importorskip("ocbench", reason="needs the extra ocbench: pip install 'surefoot[ocbench]'")
    rows = collect.episode("ocbench/block-lite", 0, 0)
    again = collect.episode("ocbench/block-lite", 0, 0)
    assert rows["observations"].shape == (len(rows["actions"]) + 1, 28)
    assert rows["terminations"][-1] != rows["truncations"][-1]
    assert not (rows["terminations"] | rows["truncations"])[:-1].any()
    assert rows["rewards"].sum() == rows["terminations"].sum()
    for key, value in rows.items():
        np.testing.assert_array_equal(value, again[key])
