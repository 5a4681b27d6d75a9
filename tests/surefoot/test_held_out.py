"""The held-out part: a tenth of the episodes, and never all, or most, of what can be learned from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from surefoot.core.base.random import generator
from surefoot.data import Dataset, from_arrays
from surefoot.runs.run import episodes_apart, split

PAIRS = ("observations", "actions")


def episodes(lengths: Sequence[int]) -> Dataset:
    """Of these lengths, cut off; nothing says what followed the last step of each."""
    draws, rows = np.random.default_rng(0), sum(lengths)
    ends = np.zeros(rows)
    ends[np.cumsum(lengths) - 1] = 1
    observations, actions = draws.normal(size=(rows, 2)), draws.uniform(-1, 1, (rows, 1))
    return from_arrays(observations, actions, np.ones(rows), timeouts=ends)


@pytest.mark.parametrize("lengths", [[1, 31], [31, 1], [1, 1, 1, 25], [25, 1, 1], [1, 8], [1, 1, 40, 1]])
def test_one_recording_beside_fragments_is_learned_from_and_nothing_is_held_out(lengths: list[int]) -> None:
    learned, held = split(episodes(lengths))
    assert held is None
    assert int(learned.transitions.sum()) == max(lengths) - 1


def test_what_clones_learn_from_counts_fragments_too() -> None:
    learned, held = split(episodes([1, 31]), PAIRS)
    assert held is not None
    assert (len(learned), len(held)) == (31, 1)


@pytest.mark.parametrize("lengths", [[10, 1000], [1000, 10], [2, 3, 500], [500, 2], [5, 5], [7, 300, 300]])
def test_never_more_than_half_of_the_rows_is_held_out(lengths: list[int]) -> None:
    data = episodes(lengths)
    learned, held = split(data)
    assert held is not None
    assert len(held.episode_lengths) == 1
    assert 0 < 2 * held.transitions.sum() <= data.transitions.sum()
    assert len(learned) + len(held) == len(data)


def test_of_many_episodes_of_one_length_a_tenth_is_held_out_as_the_random_order_has_them() -> None:
    learned, held = episodes_apart(episodes([5] * 40))
    np.testing.assert_array_equal(held, np.sort(generator(0, "validation").permutation(40)[:4]))
    np.testing.assert_array_equal(learned, np.setdiff1d(np.arange(40), held))


def test_a_lone_episode_and_data_that_nobody_can_learn_from_have_no_such_part() -> None:
    assert len(episodes_apart(episodes([9]))[1]) == 0
    assert len(episodes_apart(episodes([1, 1, 1]))[1]) == 0
    assert len(episodes_apart(episodes([1] * 30), PAIRS)[1]) == 3
