"""D4RL's conventions of sparse tasks."""

from __future__ import annotations

import numpy as np
import pytest
from make_files import three_episodes

from surefoot.data import Dataset, conventions, info
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.measures import trajectory_quality
from surefoot.runs.summary import behaviour


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
    assert conventions.success(named("antmaze-umaze-v2", [0.5] * 9)) is None, "no reward says which value the goal has"


@pytest.mark.parametrize("shift", [0, -1])
def test_an_antmaze_is_scored_by_its_successes_whatever_its_rewards_are(shift: int) -> None:
    maze = named("antmaze-umaze-v2", [0.0, 0, 1, 0, 0, 0, 0, 0, 1])
    maze = maze.replace(rewards=maze.rewards + np.float32(shift))
    for score in (info(maze)["normalized_mean"], behaviour(maze, (0.0, 1.0))["normalized"]):
        assert score == pytest.approx(100 * 2 / 3)
    assert trajectory_quality(maze) == pytest.approx(2 / 3)
    failed = info(maze.replace(rewards=np.full(9, shift, np.float32)))
    assert (failed["success_share"], failed["normalized_mean"]) == (0, 0), "nothing was solved, and that is known"
    assert info(named("antmaze-umaze-v2", [7.0] * 9))["normalized_mean"] == pytest.approx(100 * 7 * 3), "its return"


def test_kitchen_needs_all_four_sub_tasks_and_a_stored_flag_wins() -> None:
    assert conventions.success(named("kitchen-mixed-v0", [0, 0, 4, 1, 1, 1, 0, 1, 1])).tolist() == [True, False, False]
    # rewards say how many are done at the step: one that stays done is not four
    kitchen = named("kitchen-mixed-v0", [0, 4, 3, 1, 1, 2, 2, 1, 1])
    assert conventions.success(kitchen).tolist() == [True, False, False]
    for score in (info(kitchen)["normalized_mean"], behaviour(kitchen, (0.0, 4.0))["normalized"]):
        assert score == pytest.approx(25 * (4 + 2 + 1) / 3)
    assert trajectory_quality(kitchen) == pytest.approx((4 + 2 + 1) / 12)
    flags = np.array([0, 0, 0, 0, 0, 0, 1, 0, 0], np.float32)
    assert conventions.success(named("door-human-v1", [0.0] * 9, success=flags)).tolist() == [False, True, False]
    assert conventions.success(named("kitchen-mixed-v0", [4.0] * 9, success=flags)).tolist() == [False, True, False]
    assert conventions.success(named("hopper-medium-v2", [1.0] * 9)) is None


def test_what_was_solved_and_lost_again_does_not_count_as_in_evaluations() -> None:
    flags = np.array([0, 1, 0, 1, 1, 1, 1, 0, 1], bool)  # lost, kept, solved at the last step
    assert conventions.success(named("door-human-v1", [0.0] * 9, success=flags)).tolist() == [False, True, True]
    assert info(named("door-human-v1", [0.0] * 9, success=flags))["success_share"] == pytest.approx(2 / 3)


def test_training_on_an_antmaze_without_minus_one_says_so() -> None:
    maze = named("antmaze-umaze-v2", [0.0, 0, 1, 0, 0, 0, 0, 0, 1])
    (note,) = conventions.notes(maze, {"rewards": "none"})
    assert "algo.rewards=minus_one" in note
    assert conventions.notes(maze, {"rewards": "minus_one"}) == []
    assert conventions.notes(maze, {}) == [], "BC reads no rewards"
    assert conventions.notes(named("hopper-medium-v2", [0.0] * 8 + [1.0]), {"rewards": "none"}) == []
