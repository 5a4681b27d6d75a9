"""reward=RUN: a classifier's run rewards datasets and environments, and ends episodes where it finds success."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from surefoot import data
from surefoot.cli import main
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.rewarded import Rewarded
from surefoot.envs.vector import make_vec
from surefoot.online import HIL
from surefoot.runs.inputs import inputs_of, training_environment
from surefoot.runs.plan import Plan
from surefoot.runs.success_reward import SuccessReward, is_run


def frames(episodes: int = 40, steps: int = 10) -> Dataset:
    """Success where the first number is above 0.5."""
    source, count = np.random.default_rng(0), episodes * steps
    walked = source.uniform(-1, 1, (count + 1, 2)).astype(np.float32)
    ends = np.arange(count) % steps == steps - 1
    made = from_arrays(
        walked[:-1], np.zeros((count, 1), np.float32), np.zeros(count, np.float32), ends & False, ends,
        next_observations=walked[1:],
    )  # fmt: skip
    return made.replace(extras={"success": walked[1:, 0] > 0.5})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("classifier")
    data.save(frames(), folder / "frames.hdf5")
    options = ["algo.learning_rate=0.01", "algo.hidden=[32]", "steps=300", "seeds=1", "batch_size=64", "device=cpu"]
    assert (
        main(["train", "algo=classifier", f"dataset={folder / 'frames.hdf5'}", f"out={folder / 'run'}", *options]) == 0
    )
    return folder / "run"


def test_a_dataset_gets_its_rewards_and_ends_where_success_is_found(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert is_run(str(run))
    made = frames()
    reward = SuccessReward(str(run))
    found = reward.labelled(made)
    success = reward.success(made.next_observations)
    assert (success == made.extras["success"]).mean() > 0.95
    first = [np.flatnonzero(success[10 * e : 10 * e + 10]) for e in range(40)]
    lengths = [int(one[0]) + 1 if len(one) else 10 for one in first]
    assert found.episode_lengths.tolist() == lengths
    assert found.episode_returns.tolist() == [float(len(one) > 0) for one in first]
    np.testing.assert_array_equal(found.terminations, found.rewards == 1)
    data.save(made, tmp_path / "in.hdf5")
    assert (
        main(["datasets", "convert", str(tmp_path / "in.hdf5"), str(tmp_path / "out.hdf5"), "--reward", str(run)]) == 0
    )
    written = data.load(tmp_path / "out.hdf5")
    np.testing.assert_array_equal(written.rewards, found.rewards)
    assert written.attributes["rewards"] == str(run)


def test_an_environment_ends_where_success_is_judged_and_begins_anew() -> None:
    env = adapt(make_vec("MountainCarContinuous-v0", 3))
    asked: list[Any] = []

    def judge(observations: np.ndarray) -> np.ndarray:
        asked.append(observations.copy())
        return np.array([len(asked) == 2, False, len(asked) == 4])

    judged = Rewarded(env, judge)
    judged.reset(seed=0)
    for step in range(1, 6):
        observations, rewards, over, cut, info = judged.step(np.ones((3, 1), np.float32))
        wanted = [step == 2, False, step == 4]
        assert (rewards == wanted).all()
        assert (over == wanted).all()
        assert (info["success"] == wanted).all()
        assert not cut.any()
        if any(wanted):
            row = wanted.index(True)
            np.testing.assert_array_equal(info["final_obs"], asked[-1])
            assert info["_final_obs"].tolist() == wanted
            assert observations[row, 1] == 0 != asked[-1][row, 1]  # the car stands still again
            others = [other for other in range(3) if other != row]
            np.testing.assert_array_equal(observations[others], asked[-1][others])


def test_what_a_run_acts_in_is_rewarded_by_it(run: pathlib.Path) -> None:
    env_id = "MountainCarContinuous-v0"
    plan = Plan(algorithm="hil", config=dataclasses.asdict(HIL.configure()), environment=env_id, reward=str(run))
    env = training_environment(plan, HIL(inputs_of(plan, None, lambda event: None).spec))
    assert isinstance(env, Rewarded)
    env.reset(seed=0)
    *_, info = env.step(np.zeros((1, 1), np.float32))
    assert info["success"].tolist() == [False]
    plain = dataclasses.replace(plan, reward=None)
    assert not isinstance(training_environment(plain, HIL(inputs_of(plain, None, lambda event: None).spec)), Rewarded)
    with pytest.raises(ConfigError, match="a function rewards a dataset's steps, and there is none"):
        inputs_of(dataclasses.replace(plan, reward="somewhere/else"), None, lambda event: None)
    other = dataclasses.replace(plan, environment="native/pendulum")
    with pytest.raises(DataError, match=r"was trained on 2 numbers, and native/pendulum has 3 numbers"):
        training_environment(other, HIL(inputs_of(other, None, lambda event: None).spec))


def test_a_received_classifier_has_nothing_executed(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "received"
    shutil.copytree(run, folder)
    config = json.loads((folder / "config.json").read_text())

    def names(**changes: Any) -> str:
        (folder / "config.json").write_text(json.dumps(config | {"plan": config["plan"] | changes}))
        return str(folder)

    with pytest.raises(ConfigError, match="is a run of no_such_module:Own; train one with algo=classifier"):
        SuccessReward(names(algorithm="no_such_module:Own"))
    labelled = SuccessReward(names(reward="no_such_module:labels"))  # which its own data had, and no one calls now
    made = frames()
    np.testing.assert_array_equal(
        labelled.success(made.next_observations), SuccessReward(str(run)).success(made.next_observations)
    )


def test_mistakes_are_named(run: pathlib.Path) -> None:
    made, reward = frames(), SuccessReward(str(run))
    wide = np.zeros((len(made), 3), np.float32)
    other = made.replace(observations=wide, next_observations=wide, name="wide")
    with pytest.raises(DataError, match=r"was trained on 2 numbers, and wide has 3 numbers"):
        reward.labelled(other)
