"""Observation spaces become named arrays, and those that no agent can read are refused with a sentence."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.envs.spaces import arrays_of

VECTOR = gymnasium.spaces.Box(-1, 1, (3,), np.float64)
IMAGE = gymnasium.spaces.Box(0, 255, (4, 64, 64, 3), np.uint8)


def test_vectors_images_and_dicts_of_both_are_named_arrays() -> None:
    assert arrays_of(VECTOR) == {"observations": Array((3,))}
    assert arrays_of(IMAGE) == {"image": Array((4, 64, 64, 3), "uint8")}
    both = gymnasium.spaces.Dict({"camera": IMAGE, "state": VECTOR})
    assert arrays_of(both) == {"camera": Array((4, 64, 64, 3), "uint8"), "state": Array((3,))}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Discrete(3), "observations are Discrete"),
        (gymnasium.spaces.Box(0, np.inf, (64, 64, 3), np.float32), "give pictures as uint8"),
        (gymnasium.spaces.Dict({"choice": gymnasium.spaces.Discrete(3)}), "the observation 'choice' is Discrete"),
    ],
)
def test_other_spaces_are_refused(space: gymnasium.Space[object], message: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=message):
        arrays_of(space)


@pytest.mark.parametrize(
    ("space", "dtype", "span"),
    [
        (gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8), "uint8", (0.0, 255.0)),
        (gymnasium.spaces.Box(0, 1, (8, 8, 12), np.uint8), "uint8", (0.0, 1.0)),
        (gymnasium.spaces.Box(0, 1, (8, 8, 12), np.bool_), "uint8", (0.0, 1.0)),
        (gymnasium.spaces.Box(-1, 1, (36, 36, 3), np.float32), "float32", (-1.0, 1.0)),
        (gymnasium.spaces.Box(0, 1, (36, 36), np.float64), "float32", (0.0, 1.0)),
    ],
)
def test_the_bounds_of_a_box_are_black_and_white(
    space: gymnasium.spaces.Box, dtype: str, span: tuple[float, float]
) -> None:
    array = arrays_of(space)["image"]
    assert (array.dtype, array.range, array.shape) == (dtype, span, space.shape)
