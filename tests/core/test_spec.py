"""A problem's sizes and bounds are checked where it is made."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core.agent import Spec
from surefoot.core.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, (1.0,), (1.0,)), "low < high"),
        ((3, 1, (2.0,), (-2.0,)), "low < high"),
        ((3, 1, (float("-inf"),), (1.0,)), "must be finite"),
        ((3, 1, (-1.0,), (float("nan"),)), "must be finite"),
        ((3, 2, (-1.0,), (1.0,)), "have 1 and 1 numbers; action_dim is 2"),
        ((3, 1, (-1.0, -1.0), (1.0,)), "have 2 and 1 numbers"),
        ((0, 1, (-1.0,), (1.0,)), "observation_dim is 0"),
        ((3, -1, (), ()), "action_dim -1"),
        ((3, 2, (-1.0, -1.0), (1.0, 1.0), True), "use Spec.of_choices"),
    ],
)
def test_a_problem_that_can_not_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Spec(*arguments)


def test_problems_of_choices_and_of_prediction_are_none_of_these() -> None:
    assert Spec.of_choices(3, 2).action_high == (1.0, 1.0)
    assert Spec(3, 0, (), ()).action_dim == 0
