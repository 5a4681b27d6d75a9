"""A log of one's own, from the command line: drafted, cloned without rewards, rewarded by a function of one's own."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
from small_runs import small_dataset

from surefoot.cli import main
from surefoot.core.base.errors import CheckpointError
from surefoot.data import from_arrays, load, save
from surefoot.runs.inputs import resolve_bounds
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run
from surefoot.runs.start import read_again

TINY = ["steps=4", "seeds=1", "batch_size=8", "algo.hidden=[8,8]", "env=none"]


@pytest.fixture
def log(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A log of 12 trials and its drafted mapping, in the folder where we are, with a module of rewards beside them."""
    monkeypatch.chdir(tmp_path)
    lines = ["t,trial,q,dq,torque"]
    lines += [f"{k / 10},{k // 10},{np.cos(k):.4f},{np.sin(k):.4f},{-np.cos(k):.4f}" for k in range(120)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "their_rewards.py").write_text("def upright(o, a, after):\n    return -after[:, 0] ** 2\n")
    assert main(["datasets", "draft", "log.csv", "-o", "log.yaml"]) == 0
    return tmp_path / "log.yaml"


def test_a_log_without_rewards_is_cloned_and_nothing_is_said_of_returns(
    log: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "algo=bc", "dataset=log.yaml", "out=run", *TINY]) == 0
    printed = capsys.readouterr()
    assert "no rewards" in printed.out + printed.err
    assert "fitted-Q" not in printed.out
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert summary["behaviour"] is None
    assert "fitted_q" not in summary
    for told in (
        json.loads(pathlib.Path("run/config.json").read_text())["dataset"],
        json.loads(pathlib.Path("run/policy/seed0.json").read_text()),
    ):
        assert (told["observation_names"], told["action_names"]) == (["q", "dq"], ["torque"])


def test_a_log_of_one_episode_says_that_nothing_is_held_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_process: None
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{0.1 * step},{-0.1 * step}" for step in range(30)]
    pathlib.Path("log.csv").write_text("\n".join(["observation_0,action_0", *lines, ""]))
    assert main(["train", "algo=bc", "dataset=log.csv", "out=run", *TINY]) == 0
    assert "log.csv is one episode: none is held out" in "".join(capsys.readouterr())
    assert json.loads(pathlib.Path("run/summary.json").read_text())["validation"] == {}


def test_actions_that_use_little_of_their_range_are_told_of_where_no_environment_says_it() -> None:
    plan = Plan(algorithm="td3bc", config={}, dataset="log", action_low=-1, action_high=[1, 1, 50])
    told: list[str] = []
    actions = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    actions[:, 1] *= 0.02
    actions[0, 2] = 50  # an outlier
    ends = np.arange(200) % 20 == 19
    data = from_arrays(actions, actions, np.zeros(200), None, ends)
    low, high = resolve_bounds(plan, data, lambda line: told.append(line["text"]))
    assert (low.tolist(), high.tolist()) == ([-1, -1, -1], [1, 1, 50])
    (text,) = told
    assert "99 % of action 1 and 1 more lie within -0.0" in text
    plan = Plan(algorithm="td3bc", config={}, dataset="log", action_low=-1, action_high=1)
    resolve_bounds(plan, data.replace(actions=np.clip(actions[:, :1], -1, 1)), lambda line: told.append(line["text"]))
    assert len(told) == 1


def test_what_learns_from_rewards_says_how_to_give_them(log: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "algo=iql", "dataset=log.yaml", "out=run", *TINY]) == 2
    assert "no rewards, which iql learns from; give them by a function of yours, reward=" in capsys.readouterr().err
    assert not pathlib.Path("run").exists()
    assert main(["train", "algo=bc", "algo.fraction=0.1", "dataset=log.yaml", "out=run", *TINY]) == 2
    assert "no rewards, by which the best of its episodes" in capsys.readouterr().err


def test_a_function_in_the_working_directory_rewards_what_is_trained_on(log: pathlib.Path) -> None:
    options = [*TINY, "reward=their_rewards:upright"]
    assert main(["train", "algo=iql", "dataset=log.yaml", "out=run", *options]) == 0
    data = load(log)
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    expected = np.add.reduceat(-(data.next_observations[:, 0] ** 2), data.episode_starts[:-1]).mean()
    assert summary["behaviour"]["mean"] == pytest.approx(float(expected), rel=1e-5)
    assert main(["datasets", "convert", "log.yaml", "log.npz", "--reward", "their_rewards:upright"]) == 0
    converted = load("log.npz")
    np.testing.assert_allclose(converted.rewards, -(data.next_observations[:, 0] ** 2), rtol=1e-6)
    assert converted.attributes["rewards"] == "their_rewards:upright"


def test_a_run_of_a_lerobot_folder_does_not_go_on_with_other_data(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    folder, data = tmp_path / "pend", small_dataset()
    save(data, folder, "lerobot")
    assert main(["train", "algo=bc", f"dataset={folder}", f"out={tmp_path / 'run'}", *TINY]) == 0
    run = Run.open(tmp_path / "run")
    run.columns_path.unlink(missing_ok=True)
    read_again(run, lambda event: None)
    run.columns_path.unlink()
    shutil.rmtree(folder)
    save(data.replace(rewards=data.rewards + 1), folder, "lerobot")
    with pytest.raises(CheckpointError, match=r"pend: not the file that .* began with \(SHA-256 differs\)"):
        read_again(run, lambda event: None)
    config = json.loads((run.folder / "config.json").read_text())
    config["dataset"]["sha256"] = None
    (run.folder / "config.json").write_text(json.dumps(config))
    read_again(run, lambda event: None)  # started before such folders had one


def test_training_names_the_columns_that_it_leaves_out_and_how_to_take_them_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_process: None
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("log.csv").write_text("q,u,effort\n" + "".join(f"{k},{k % 3 / 2},{k}\n" for k in range(30)))
    pathlib.Path("log.yaml").write_text("files: log.csv\nobservations: q\nactions: u\nmax_episode_steps: 10\n")
    assert main(["train", "algo=bc", "dataset=log.yaml", "out=run", *TINY]) == 0
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "also left out: effort (numbers); to take one in, name them in log.yaml" in printed
    assert main(["datasets", "info", "log.yaml"]) == 0
    assert "left out effort (numbers)" in " ".join(capsys.readouterr().out.split())


def test_a_conversion_says_how_many_last_steps_it_leaves_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = np.arange(30) % 10 == 9
    save(from_arrays(np.arange(30.0)[:, None], np.ones((30, 1)), np.ones(30), timeouts=ends), tmp_path / "a.npz")
    assert main(["datasets", "convert", "a.npz", "b.npz", "--layout", "ogbench"]) == 0
    assert "no place for 3 last steps of which nothing says what followed" in capsys.readouterr().err
    assert main(["datasets", "convert", "a.npz", "c.hdf5"]) == 0
    assert "last steps" not in capsys.readouterr().err
    assert load("c.hdf5").transitions.sum() == 27
