"""A problem's arrays, sizes and bounds are checked where it is made, and come back from JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.actions import to_agent, to_bounds
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.spec import Array, Spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, (1.0,), (1.0,)), "low < high"),
        ((3, 1, (2.0,), (-2.0,)), "low < high"),
        ((3, 1, (float("-inf"),), (1.0,)), "must be finite"),
        ((3, 1, (-1.0,), (float("nan"),)), "must be finite"),
        ((3, 1, (-2e38,), (2e38,)), "finite in float32"),
        ((3, 1, (1.0,), (1.0 + 1e-9,)), "finite in float32"),
        ((3, 2, (-1.0,), (1.0,)), "have 1 and 1 numbers; action_dim is 2"),
        ((3, 1, (-1.0, -1.0), (1.0,)), "have 2 and 1 numbers"),
        ((0, 1, (-1.0,), (1.0,)), "observation_dim is 0"),
        ((3, -1, (), ()), "action_dim is -1"),
        ((3, 2, (-1.0, -1.0), (1.0, 1.0), True), "use Spec.of_choices"),
    ],
)
def test_a_problem_that_can_not_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spec(*arguments)


def test_problems_of_choices_and_of_prediction_are_none_of_these() -> None:
    assert Spec.of_choices(3, 2).action_high == (1.0, 1.0)
    assert Spec(3, 0, (), ()).action_dim == 0


IMAGE_AND_VECTOR = {"camera": Array((64, 48, 3), "uint8"), "state": Array((4,))}


def test_one_vector_is_the_plain_case_and_has_a_width() -> None:
    spec = Spec(3, 1, (-1.0,), (1.0,))
    assert spec.observations == {"observations": Array((3,))}
    assert (spec.one_vector, spec.observation_dim, spec.vector_dim, spec.image_keys) == (True, 3, 3, ())
    assert spec.columns("next_observations") == {"next_observations": ((3,), "float32")}


def test_several_arrays_have_a_column_each_and_no_width() -> None:
    spec = Spec(IMAGE_AND_VECTOR, 1, (-1.0,), (1.0,))
    assert (spec.one_vector, spec.vector_dim, spec.image_keys) == (False, 4, ("camera",))
    assert spec.columns() == {
        "observations/camera": ((64, 48, 3), "uint8"),
        "observations/state": ((4,), "float32"),
    }
    with pytest.raises(ConfigError, match=r"camera \(64, 48, 3\) and state \(4,\), not one vector"):
        _ = spec.observation_dim


@pytest.mark.parametrize("observations", [3, IMAGE_AND_VECTOR])
def test_a_problem_comes_back_from_json(observations: Any) -> None:
    spec = Spec(observations, 2, (-1.0, -2.0), (1.0, 2.0))
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert dataclasses.replace(spec, action_high=(3.0, 3.0)).observations == spec.observations


@pytest.mark.parametrize(
    "change",
    [
        {"observation_dim": None, "observations": 7},
        {"observation_dim": "many"},
        {"observation_dim": None, "observations": {"camera": {"shape": [64, 64], "dtype": "float16"}}},
        {"observation_dim": None, "observations": {"camera": {"shape": "wide", "dtype": "uint8"}}},
        {"action_low": None},
        {"colour": "red"},
    ],
)
def test_a_damaged_description_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        Spec.from_json({**Spec(3, 1, (-1.0,), (1.0,)).to_json(), **change})


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((64, 48), (1, 64, 48)),
        ((64, 48, 3), (3, 64, 48)),
        ((3, 64, 48), (3, 64, 48)),
        ((4, 64, 48, 3), (12, 64, 48)),
        ((4, 3, 64, 48), (12, 64, 48)),
        ((4, 64, 48, 1), (4, 64, 48)),
    ],
)
def test_an_image_is_read_with_channels_first_whatever_its_layout(
    shape: tuple[int, ...], size: tuple[int, int, int]
) -> None:
    assert Array(shape, "uint8").image_size == size


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ({}, "at least one observation"),
        ({"a b": Array((3,))}, "'a b' can't be the key"),
        ({"actions": Array((3,))}, "'actions' can't be the key"),
        ({"observations": Array((3,)), "camera": Array((8, 8), "uint8")}, "is the key of a lone vector"),
        ({"observations": Array((8, 8), "uint8")}, "is the key of a lone vector"),
    ],
)
def test_keys_that_columns_could_not_be_named_by_are_refused(observations: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spec(observations, 1, (-1.0,), (1.0,))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((3,), "float64", "must be float32"),
        ((3, 3), "float32", "a float32 vector has one size"),
        ((3,), "uint8", "a uint8 image two to four"),
        ((0,), "float32", "at least 1"),
    ],
)
def test_an_array_is_a_vector_or_an_image(shape: tuple[int, ...], dtype: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Array(shape, dtype)


def test_a_locked_action_is_named_and_always_has_its_value() -> None:
    spec = Spec(3, 2, (-1.0, 0.5), (1.0, 0.5))
    assert spec.locked == (1,)
    assert Spec.from_json(spec.to_json()) == spec
    low, high = (np.array(bound, np.float32) for bound in (spec.action_low, spec.action_high))
    actions = np.array([[0.25, 0.5], [-1.0, 0.5]], np.float32)
    assert to_agent(actions, low, high).tolist() == [[0.25, 0.0], [-1.0, 0.0]]
    taken = torch.tensor([[0.25, -0.7], [-3.0, 1.0]])
    assert to_bounds(taken, torch.tensor(low), torch.tensor(high)).tolist() == [[0.25, 0.5], [-1.0, 0.5]]
