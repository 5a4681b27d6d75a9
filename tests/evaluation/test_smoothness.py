"""How much executed actions change from step to step, counted for each episode; and what tables say of it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.core.actors.memory import Reactive
from surefoot.core.base.errors import CheckpointError
from surefoot.evaluation import Episodes, Met, evaluate, load_runs, smoothness, tables
from surefoot.evaluation.report import render
from surefoot.evaluation.smoothness import evenly

MakeRun = Callable[..., pathlib.Path]
MEASURED = {
    "action_change": {"mean": 0.1234, "low": 0.1, "high": 0.15, "method": "Student t over 3 seeds"},
    "jacobian": {"mean": 2.5, "low": 2.0, "high": 3.0, "method": "Student t over 3 seeds"},
}


class Clock(gymnasium.Env[Any, Any]):
    """Shows the step's number and the episode's length, 1 to 6; actions in [-2, 2] and [0, 8]."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1000, 1000, (2,), np.float64)
        self.action_space = spaces.Box(np.float32([-2, 0]), np.float32([2, 8]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(1, 7))
        return np.array([0.0, self.length]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.array([self.t, self.length], float), 0.0, self.t == self.length, False, {}


gymnasium.register("SurefootClock-v0", entry_point=Clock)


class Ramp(Reactive):
    """Actions t times (1, 1), which the bounds cut at (2, 8)."""

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        return observations[:, :1].expand(-1, 2)


class Still(Ramp):
    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(observations), 2)


def test_an_episodes_action_change_is_the_one_worked_out_by_hand() -> None:
    ramp, still = evaluate([Ramp(), Still()], "SurefootClock-v0", episodes=30, num_envs=4)
    # a step of 1 is 1/2 of half the first range, until it is cut at 2, and 1/4 of half the second
    first, second = 1 / 4, 1 / 16
    by_length = {
        1: 0.0,
        2: first + second,
        3: first + second,
        4: (2 * first + 3 * second) / 3,
        5: (2 * first + 4 * second) / 4,
        6: (2 * first + 5 * second) / 5,
    }
    assert ramp.action_changes is not None
    assert still.action_changes is not None
    assert set(ramp.lengths.tolist()) == set(by_length)
    assert ramp.action_changes == pytest.approx([by_length[length] for length in ramp.lengths.tolist()])
    assert not still.action_changes.any()


def test_numbered_choices_have_no_action_change() -> None:
    class Left(Ramp):
        def actions(self, observations: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(observations), dtype=torch.int64)

    (found,) = evaluate([Left()], "CartPole-v1", episodes=2)
    assert found.action_changes is None


def test_episodes_with_and_without_action_changes_are_read() -> None:
    episodes = Episodes(np.zeros(2), np.ones(2, np.int64), action_changes=np.array([0.5, 0.25]))
    again = Episodes.from_json(json.loads(json.dumps(episodes.to_json())))
    np.testing.assert_array_equal(again.action_changes, episodes.action_changes)
    assert Episodes.from_json({"returns": [1], "lengths": [2], "costs": None}).action_changes is None


@pytest.mark.parametrize("most", [4, 1000])
def test_observations_met_are_an_even_sample_of_those_that_each_policy_acted_on(most: int) -> None:
    met, seen = Met(2, most), ([], [])

    class Notes(Ramp):
        def __init__(self, position: int) -> None:
            self.position = position

        def actions(self, observations: torch.Tensor) -> torch.Tensor:
            seen[self.position].append(observations.clone())
            return super().actions(observations)

    evaluate([Notes(0), Notes(1)], "SurefootClock-v0", episodes=9, num_envs=1, watch=met)
    for policy in (0, 1):
        everything = torch.cat(seen[policy]).numpy()
        kept = met.of(policy)
        assert most / 2 < len(kept) <= most or len(kept) == len(everything)
        every = next(2**n for n in range(20) if len(everything[:: 2**n]) <= most)
        np.testing.assert_array_equal(kept, everything[::every])


def test_rows_that_have_run_their_quota_are_not_met_again() -> None:
    met = Met(1)
    (found,) = evaluate([Ramp()], "SurefootClock-v0", episodes=7, num_envs=3, watch=met)
    assert len(met.of(0)) == found.lengths.sum()


def test_a_datasets_observations_are_taken_evenly() -> None:
    rows = np.arange(10.0)[:, None]
    assert evenly(rows, 4)[:, 0].tolist() == [0, 3, 6, 9]
    assert len(evenly(rows, 100)) == 10


def test_both_measures_have_intervals_over_seeds() -> None:
    changes = [np.array([0.1, 0.3]), np.array([0.2, 0.4])]
    episodes = [Episodes(np.zeros(2), np.ones(2, np.int64), action_changes=change) for change in changes]
    found = smoothness(episodes, [1.0, 3.0])
    assert found is not None
    assert found["action_change"]["mean"] == pytest.approx(0.25)
    jacobian = found["jacobian"]
    assert jacobian["mean"] == 2.0
    assert jacobian["high"] - jacobian["mean"] == pytest.approx(12.706, rel=1e-3)  # t of one degree, deviation 1
    alone = smoothness(None, [1.5])
    assert alone is not None
    assert alone["action_change"] is None
    assert (alone["jacobian"]["mean"], alone["jacobian"]["low"]) == (1.5, None)
    assert smoothness([Episodes(np.zeros(1), np.ones(1, np.int64))], [None]) is None


def test_the_action_change_is_a_column_of_details_and_not_of_the_table_that_ends_training(make_run: MakeRun) -> None:
    listed = tables.rows(load_runs([make_run(smoothness=MEASURED)]))
    assert "action change" not in tables.to_text(listed)
    assert "0.123 [0.1, 0.15]" in tables.to_text(listed, details=True)
    assert json.loads(tables.to_json(listed))[-1]["smoothness"] == MEASURED
    assert tables.format_small({"mean": 5.41e-5, "low": None, "high": None}) == "5.41e-05"


def test_the_report_shows_both(make_run: MakeRun) -> None:
    page = render(load_runs([make_run(smoothness=MEASURED)]))
    assert "action" in page
    assert "Mean squared difference of successive actions" in page
    assert "in units of half the action range" in page
    assert "2.5 [2, 3]" in page
    assert "Mean squared difference of successive" not in render(load_runs([make_run("older")]))


def test_a_damaged_entry_is_refused_by_name(make_run: MakeRun) -> None:
    with pytest.raises(CheckpointError, match="jacobian"):
        load_runs([make_run(smoothness={"action_change": None})])
