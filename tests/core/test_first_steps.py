"""`FirstSteps`: what float32 loses of what arrives is known after 256 steps, and stated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.precision import FirstSteps

SENTENCE = (
    "utm, its first 256 steps: values of observations[1] rounded to float32 (subtract 5,400,000 in the environment): "
    "65 of 256 different ones are left, errors up to 0.25 (0.027 standard deviations)"
)


def step(t: int, rows: int = 1) -> Any:
    """(N, 2) float64: an angle, and 5,400,000 + t / 8, of which float32 holds every fourth: 0, 0.5, ..., 32."""
    return np.tile([np.sin(t), 5_400_000 + t / 8], (rows, 1))


def test_a_column_with_a_large_offset_is_reported_once_after_256_steps() -> None:
    """The standard deviation of 0 to 255 is sqrt((256^2 - 1) / 12) = 73.9, of the column an eighth, 9.24."""
    first = FirstSteps("utm")
    for t in range(255):
        first.take(step(t), np.zeros(1))
        assert first.notes() == []
    assert not first.over
    first.take(step(255), np.zeros(1))
    assert first.over
    assert first.notes() == [SENTENCE]
    first.take(step(256), np.zeros(1))
    assert first.notes() == []


def test_rows_are_looked_at_one_after_another_and_tensors_like_arrays() -> None:
    """Rows at sites 100 km apart: beside their spread nothing is lost, though each row moves by less than 0.5."""
    alone, apart = FirstSteps("utm"), FirstSteps("utm")
    for t in range(256):
        alone.take(torch.from_numpy(step(t, rows=2)), torch.zeros(2))
        apart.take(step(t, rows=2) + [[0, 0], [0, 100_000]], np.zeros(2))
    assert alone.notes() == [SENTENCE]
    assert apart.notes() == []


def test_several_arrays_and_rewards_are_named_and_lost_samples_left_out() -> None:
    first = FirstSteps("utm")
    for t in range(256):
        state = step(t) if t != 100 else np.full((1, 2), np.nan)
        image = np.zeros((1, 8, 8, 1), np.uint8)
        first.take({"state": state, "camera": image}, np.array([1e8 + t / 8]))
    one, other = first.notes()
    assert "values of observations/state[1] rounded to float32 (subtract 5,400,000 in the environment)" in one
    assert "65 of 255 different ones are left" in one
    assert "(subtract 100,000,000 in the environment): 5 of 256 different ones are left, errors up to 4 (0.43" in other


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint8])
def test_types_that_float32_holds_are_not_kept(kind: Any) -> None:
    first = FirstSteps("camera")
    first.take(np.zeros((4, 3), kind), np.zeros(4, np.float32))
    assert first.over
    assert first.notes() == []
