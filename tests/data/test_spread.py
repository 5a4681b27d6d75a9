"""A note where a network gets numbers of very different spread as they are; by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.data import Dataset, from_arrays, spread
from surefoot.offline import IQL


def log(*deviations: float) -> Dataset:
    """Numbers that are -d and d in turn, so that d is their standard deviation."""
    steps = np.arange(100)
    observations = np.where(steps % 2, 1.0, -1.0)[:, None] * np.array(deviations)
    actions, rewards = np.sin(steps)[:, None], (steps // 50).astype(np.float64)
    return from_arrays(observations, actions, rewards=rewards, timeouts=steps % 50 == 49)


@pytest.mark.parametrize(
    ("deviations", "normalization", "told"),
    [
        ((0.5, 20.0, 1.0), "none", ("number 1 has a standard deviation of 20", "number 0 one of 0.5")),
        ((3.0, 0.0, 0.25), "none", ("number 0 has a standard deviation of 3", "number 2 one of 0.25")),
        ((0.5, 5.0), "none", ()),  # ten times, and no more
        ((0.0, 20.0), "none", ()),  # the first never changes
        ((0.5, 20.0), "observations", ()),
    ],
)
def test_a_spread_of_more_than_ten_is_told_where_observations_are_left_as_they_are(
    deviations: tuple[float, ...], normalization: str, told: tuple[str, ...]
) -> None:
    notes = spread.notes(log(*deviations), {"normalization": normalization})
    assert len(notes) == bool(told)
    assert all(part in notes[0] for part in told)


def test_options_without_normalization_are_left_alone() -> None:
    assert spread.notes(log(0.5, 20.0), {}) == []


@pytest.mark.parametrize(("options", "deviations"), [({}, [1, 1]), ({"preset": "official"}, [0.5, 20])])
def test_iql_normalises_by_default_and_the_authors_settings_do_not(
    options: dict[str, Any], deviations: list[float]
) -> None:
    data = log(0.5, 20.0)
    ready = IQL(data, **options, hidden=(8,)).fresh(0).prepare(data)
    np.testing.assert_allclose(ready.observations.std(0), deviations, rtol=3e-3)
