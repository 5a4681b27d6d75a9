"""Margins that the steps of a velocity-limited task give, and when they are not taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.data.dataset import Dataset
from surefoot.runs.inputs import dataset_of, with_margins
from surefoot.runs.plan import Plan
from surefoot.safe.constraint.signal import MARGINS_FROM, constraint_signal

VELOCITY = "surefoot/HalfCheetahVelocity-v5"
SPEEDS = np.array([1.0, 3.5, 3.0, 4.0])  # the limit is 3.2096 m/s
MARGINS = 3.2096 - SPEEDS


def dataset(costs: Any = (0, 1, 0, 1), **changes: Any) -> Dataset:
    """One episode of a cheetah at these speeds: its reward is speed - 0.1 |a|^2."""
    actions = np.full((4, 6), 0.5, np.float32)
    return Dataset(
        observations=np.zeros((4, 17), np.float32),
        actions=actions,
        rewards=(SPEEDS - 0.1 * 6 * 0.25).astype(np.float32),
        next_observations=np.zeros((4, 17), np.float32),
        terminations=np.zeros(4, bool),
        truncations=np.arange(4) == 3,
        episode_ids=np.zeros(4, np.int64),
        valid=np.ones(4, bool),
        costs=None if costs is None else np.array(costs, np.float32),
        name="cheetah",
        **changes,
    )


@pytest.mark.parametrize("where", ["environment", "dataset"])
def test_margins_are_computed_from_steps_and_say_from_what(where: str) -> None:
    data = dataset(env_id="HalfCheetah-v5" if where == "dataset" else None)
    found, notes = with_margins(data, VELOCITY if where == "environment" else None)
    np.testing.assert_allclose(found.extras["margins"], MARGINS, atol=1e-6)
    assert found.extras["margins"].dtype == np.float32
    assert notes == []
    said = "computed from rewards and actions by HalfCheetah's speed limit of 3.2096 m/s"
    assert found.attributes[MARGINS_FROM] == said
    assert constraint_signal(found).source == f"minus the margin {said}"
    assert "margins" not in data.extras


def test_stored_margins_come_before_computed_ones() -> None:
    stored = {"margins": np.array([5, -5, 5, -5], np.float32), "other": np.arange(4)}
    data = dataset(extras=stored)
    found, notes = with_margins(data, VELOCITY)
    assert found is data
    assert notes == []
    assert constraint_signal(found).source == "minus the margin stored in the dataset"


def test_margins_that_contradict_a_cost_are_not_used_and_it_is_said() -> None:
    data = dataset([0, 1, 1, 1])
    found, notes = with_margins(data, VELOCITY)
    assert found is data
    assert notes == [
        "cheetah: the margin of HalfCheetah's speed limit of 3.2096 m/s, computed from rewards and actions, "
        "contradicts 1 of 4 costs, so it is not used"
    ]


def test_without_costs_only_an_environment_of_that_name_says_that_speed_is_limited() -> None:
    data = dataset(None, env_id="HalfCheetah-v5")
    for environment in (None, "HalfCheetah-v5", "Hopper-v5"):
        found, notes = with_margins(data, environment)
        assert found is data
        assert notes == []
    found, _ = with_margins(data, VELOCITY)
    np.testing.assert_allclose(found.extras["margins"], MARGINS, atol=1e-6)


@pytest.mark.parametrize("environment", [None, "surefoot/AntVelocity-v5", "native/pendulum"])
def test_nothing_is_computed_for_other_tasks(environment: str | None) -> None:
    data = dataset(env_id="Ant-v5")
    assert with_margins(data, environment) == (data, [])


def twice(observations: Any, actions: Any, next_observations: Any) -> Any:
    """Rewards that are no speeds."""
    return 2 * np.ones(len(observations))


@pytest.mark.parametrize("costs", [(0, 1, 0, 1), None])
def test_margins_are_made_of_recorded_rewards_and_not_of_those_that_a_function_gives(
    costs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(algorithm="fisor", config={}, dataset="cheetah", environment=VELOCITY, reward="twice")
    monkeypatch.setattr("surefoot.runs.inputs.function_of", lambda word, option: twice)
    monkeypatch.setattr("surefoot.runs.inputs.require_trust", lambda *words: None)
    found = dataset_of(plan, dataset(costs), lambda event: None)
    assert found.rewards.tolist() == [2.0] * 4
    np.testing.assert_allclose(found.extras["margins"], MARGINS, atol=1e-6)
    computed = dataset(costs, attributes={"rewards": "module:twice"})  # as a log's mapping does
    assert with_margins(computed, VELOCITY) == (computed, [])
