"""D4RL's conventions of sparse tasks."""

from __future__ import annotations

import numpy as np
import pytest
from make_files import three_episodes

from surefoot.data import Dataset, conventions, info
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.measures import trajectory_quality
from surefoot.experiment.summary import behaviour


def named(name: str, rewards: list[float], **extras: np.ndarray) -> Dataset:
    arrays = {**three_episodes(), "rewards": np.asarray(rewards, np.float32)}
    return dataset_from_arrays(arrays, Source(name), extras=extras)


def test_an_antmaze_episode_is_solved_where_a_reward_is_one() -> None:
    rewards = [0.0, 0, 1, 0, 0, 0, 0, 0, 1]
    maze = named("antmaze-umaze-v2", rewards)
    assert conventions.success(maze).tolist() == [True, False, True]
    assert conventions.success(maze.replace(rewards=maze.rewards - 1)).tolist() == [True, False, True]
    assert info(maze)["success_share"] == 2 / 3
    assert info(maze)["normalized_mean"] == pytest.approx(100 * 2 / 3)
    assert conventions.success(named("antmaze-umaze-v2", [0.0] * 9)) is None, "no reward says which value the goal has"


def test_kitchen_needs_all_four_sub_tasks_and_a_stored_flag_wins() -> None:
    assert conventions.success(named("kitchen-mixed-v0", [0, 0, 4, 1, 1, 1, 0, 1, 1])).tolist() == [True, False, False]
    # rewards say how many are done at the step: one that stays done is not four
    kitchen = named("kitchen-mixed-v0", [0, 4, 3, 1, 1, 2, 2, 1, 1])
    assert conventions.success(kitchen).tolist() == [True, False, False]
    for score in (info(kitchen)["normalized_mean"], behaviour(kitchen, (0.0, 4.0))["normalized"]):
        assert score == pytest.approx(25 * (4 + 2 + 1) / 3)
    assert trajectory_quality(kitchen) == pytest.approx((4 + 2 + 1) / 12)
    flags = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0], np.float32)
    assert conventions.success(named("door-human-v1", [0.0] * 9, success=flags)).tolist() == [False, True, False]
    assert conventions.success(named("hopper-medium-v2", [1.0] * 9)) is None


def test_training_on_an_antmaze_without_minus_one_says_so() -> None:
    maze = named("antmaze-umaze-v2", [0.0, 0, 1, 0, 0, 0, 0, 0, 1])
    (note,) = conventions.notes(maze, {"rewards": "none"})
    assert "algo.rewards=minus_one" in note
    assert conventions.notes(maze, {"rewards": "minus_one"}) == []
    assert conventions.notes(maze, {}) == [], "BC reads no rewards"
    assert conventions.notes(named("hopper-medium-v2", [0.0] * 8 + [1.0]), {"rewards": "none"}) == []
