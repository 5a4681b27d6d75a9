from __future__ import annotations

import pathlib

import h5py
import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.data import load
from surefoot.data.dsrl import TASKS, normalized_cost, normalized_reward, task


def test_the_best_episode_of_car_circle_at_its_limit_scores_one_and_one() -> None:
    car_circle = task("OfflineCarCircle-v0")
    assert normalized_reward(534.306, car_circle.reference) == pytest.approx(1.0, abs=1e-6)
    assert normalized_cost(10.0, 10.0) == 1.0


def test_a_limit_of_zero_adds_one() -> None:
    assert normalized_cost(3.0, 0.0) == 4.0
    assert normalized_cost(0.0, 0.0) == 1.0
    with pytest.raises(ConfigError, match="cost limit is -1"):
        normalized_cost(0.0, -1.0)


@pytest.mark.parametrize("name", TASKS)
def test_normalised_rewards_go_there_and_back(name: str) -> None:
    low, high = TASKS[name].reference
    returns = np.array([low, high, 0.25 * low + 0.75 * high])
    np.testing.assert_allclose(normalized_reward(returns, (low, high)), [0, 1, 0.75], atol=1e-12)


@pytest.mark.parametrize(
    ("text", "name", "trajectories"),
    [
        ("SafetyCarCircle-v0-100-1450.hdf5", "CarCircle", 1450),
        ("/data/SafetyAntVelocityGymnasium-v1-250-2249.hdf5", "AntVelocity-v1", 2249),
        ("SafeMetaDrive-hardmean-v0-85-1000", "hardmean", 1000),
        ("OfflineMetadrive-easysparse-v0", "easysparse", 1000),
        ("OfflineCarButton1Gymnasium-v0", "CarButton1", 2656),
        ("HalfCheetahVelocity", "HalfCheetahVelocity-v1", 2495),
        ("AntRun", "AntRun", 1816),
    ],
)
def test_ids_and_file_names_find_their_task(text: str, name: str, trajectories: int) -> None:
    found = task(text)
    assert (found.name, found.trajectories) == (name, trajectories)


def test_each_task_has_its_familys_three_limits() -> None:
    for name, limits in {
        "CarCircle": (10, 20, 40), "AntRun": (10, 20, 40), "hardmean": (10, 20, 40),
        "CarCircle1": (20, 40, 80), "PointPush2": (20, 40, 80), "AntVelocity-v1": (20, 40, 80),
    }.items():  # fmt: skip
        assert task(name).limits == limits
    families = [one.family for one in TASKS.values()]
    counts = {family: families.count(family) for family in families}
    assert counts == {"safety_gymnasium": 21, "bullet": 8, "metadrive": 9}


def test_other_velocity_tasks_than_dsrls_are_no_tasks_of_dsrl() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        task("HalfCheetahVelocity-v5")


def test_a_file_in_dsrls_layout_is_read_with_its_columns_squeezed_and_its_two_ends_apart(
    tmp_path: pathlib.Path,
) -> None:
    source, rows = np.random.default_rng(0), 12
    observations = source.normal(size=(rows + 1, 3))
    terminals, timeouts = np.zeros((rows, 1)), np.zeros(rows)
    terminals[4], timeouts[[8, 11]] = 1, 1
    path = tmp_path / "SafetyCarCircle-v0-100-1450.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = observations[:-1], observations[1:]
        file["actions"] = source.uniform(-1, 1, (rows, 2))
        file["rewards"], file["costs"] = (
            source.normal(size=(rows, 1)),
            (np.arange(rows) % 3 == 0).astype(float)[:, None],
        )
        file["terminals"], file["timeouts"] = terminals, timeouts
    found = load(path)
    assert found.rewards.shape == (rows,)
    assert found.costs is not None
    assert found.costs.dtype == np.float32
    assert found.episode_lengths.tolist() == [5, 4, 3]
    assert np.flatnonzero(found.terminations).tolist() == [4]
    assert np.flatnonzero(found.truncations).tolist() == [8, 11]
    assert found.episode_costs is not None
    assert found.episode_costs.tolist() == [2.0, 1.0, 1.0]
    assert found.transitions.all()
