"""VI-LCB on the three-state problem of `test_tabular`, its bandit, and datasets as tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.dataset import Dataset
from surefoot.offline.vi_lcb import Counts, bandit_lcb, tabulated, vi_lcb

OPTIMUM = (1.36134, 1.51261, 2.0)  # of the actions in the data; (2, a1) would give 100 and is not in them
RANGE = (0.0, 3.0)


def three_states(first: tuple[int, int] = (500, 500), other: int = 500) -> Counts:
    """(0, a0) -> 1; (0, a1) -> end, 1; (1, a0) -> 2 or 0; (1, a1) -> end, .5; (2, a0) -> end, 2; (2, a1) unseen."""
    transitions, endings, rewards = np.zeros((3, 2, 3), np.int64), np.zeros((3, 2), np.int64), np.zeros((3, 2))
    transitions[0, 0, 1], endings[0, 1] = first
    transitions[1, 0, [0, 2]] = other // 2
    endings[1, 1] = endings[2, 0] = other
    rewards[0, 1], rewards[1, 1], rewards[2, 0] = first[1], 0.5 * other, 2 * other
    return Counts(transitions, endings, rewards)


def test_without_a_bonus_it_is_the_optimum_of_what_the_data_have() -> None:
    found = vi_lcb(three_states(), 0.9, value_range=RANGE, scale=0)
    assert found.values.tolist() == pytest.approx(OPTIMUM, abs=1e-5)
    assert found.policy.tolist() == [0, 0, 0]
    assert found.q[2, 1] == 0  # never seen: the lowest there is


def test_with_equal_counts_and_a_small_bonus_the_policy_stays_and_values_are_lower() -> None:
    found = vi_lcb(three_states(), 0.9, value_range=RANGE, scale=0.05)
    assert found.policy.tolist() == [0, 0, 0]
    assert (found.values < np.array(OPTIMUM)).all()
    taken = 0.05 * 3 * math.sqrt(math.log(6 / 0.1) / 500)
    assert found.bonus[0].tolist() == pytest.approx([taken, taken])
    assert found.values[2] == pytest.approx(2 - taken)


@pytest.mark.parametrize("bonus", ["hoeffding", "bernstein"])
def test_what_was_seen_once_is_passed_over_for_what_was_seen_often(bonus: str) -> None:
    options: dict[str, Any] = {"value_range": RANGE, "scale": 0.3, "bonus": bonus}
    assert vi_lcb(three_states((100, 100)), 0.9, **options).policy[0] == 0
    assert vi_lcb(three_states((1, 100)), 0.9, **options).policy[0] == 1  # a0 is better by .2, and was seen once


def test_bernsteins_bonus_is_smaller_where_the_next_value_is_certain() -> None:
    counts = three_states((4000, 4000), 4000)
    hoeffding, bernstein = (vi_lcb(counts, 0.9, value_range=RANGE, bonus=b) for b in ("hoeffding", "bernstein"))
    assert bernstein.bonus[2, 0] == pytest.approx(3 * math.log(60) / 4000)
    assert bernstein.bonus[2, 0] < bernstein.bonus[1, 0] < hoeffding.bonus[1, 0]
    next_values = 0.9 * bernstein.values[[0, 2]]
    expected = math.sqrt(math.log(60) * next_values.var() / 4000) + 3 * math.log(60) / 4000
    assert bernstein.bonus[1, 0] == pytest.approx(expected)


def test_of_equal_arms_the_one_played_most_is_chosen_and_never_one_not_played() -> None:
    assert bandit_lcb(np.full(3, 0.4), np.array([1, 10, 1000])) == 2
    assert bandit_lcb(np.array([0.9, 0.5]), np.array([0, 3])) == 1
    assert bandit_lcb(np.array([0.9, 0.5]), np.array([1, 1000])) == 1
    assert bandit_lcb(np.array([0.9, 0.5]), np.array([1, 1000]), scale=0.0) == 0
    with pytest.raises(DataError, match="no arm of the bandit was ever played"):
        bandit_lcb(np.zeros(2), np.zeros(2))


def corridor(rows: int = 200) -> Dataset:
    """States 0 to 3 in a row, steps of -1 or +1; 3 ends and pays 1, a step costs nothing; random steps."""
    numbers = np.random.default_rng(0)
    place, found = 0, []
    for _ in range(rows):
        step = numbers.choice([-1, 1])
        following = max(0, place + int(step))
        found.append((place, step, following))
        place = 0 if following == 3 else following
    place, step, following = (np.array(column, np.float32) for column in zip(*found, strict=True))
    ended = following == 3
    last = ended.copy()
    last[-1] = True
    return Dataset(
        observations=place[:, None],
        actions=step[:, None],
        rewards=ended.astype(np.float32),
        next_observations=following[:, None],
        terminations=ended,
        truncations=last & ~ended,
        episode_ids=np.concatenate([[0], np.cumsum(last)[:-1]]).astype(np.int64),
        valid=np.ones(rows, bool),
        name="corridor",
    )


def test_a_dataset_becomes_a_table_whose_policy_acts_on_observations() -> None:
    table = tabulated(corridor())
    assert table.states.tolist() == [[0], [1], [2], [3]]
    assert table.counts.visits.sum() == 200
    solution = vi_lcb(table.counts, 0.9, value_range=(0.0, 1.0), scale=0.05)
    assert table.act(solution, np.array([[2], [0], [1]], np.float32)).tolist() == [[1], [1], [1]]
    assert table.act(solution, np.array([[-0.0]], np.float32)).tolist() == [[1]], "-0 is 0"
    exact = vi_lcb(table.counts, 0.9, value_range=(0.0, 1.0), scale=0)
    assert exact.values[:3].tolist() == pytest.approx([0.81, 0.9, 1.0])
    with pytest.raises(DataError, match=r"observation 1 is \[7\.0\], which the data do not have"):
        table.act(solution, np.array([[2], [7]], np.float32))


def test_what_makes_no_table_is_refused() -> None:
    dataset = corridor()
    numbers = np.random.default_rng(1).normal(size=(200, 1)).astype(np.float32)
    with pytest.raises(DataError, match=r"has 204 different observations .* too many for a table of 100 numbers"):
        tabulated(dataset.replace(observations=numbers), most=100)
    with pytest.raises(DataError, match="action of row 1 is 2, must be in 0 to 1"):
        Counts.of(*(np.array(c) for c in ([0, 0], [0, 2], [0.0, 0.0], [True, True], [0, 0])), (1, 2))
    with pytest.raises(DataError, match="next state of row 1 is 9, must be in 0 to 0"):
        Counts.of(*(np.array(c) for c in ([0, 0], [0, 1], [0.0, 0.0], [True, False], [5, 9])), (1, 2))
    with pytest.raises(DataError, match=r"they must be \(S, A, S\)"):
        Counts(np.zeros((2, 2, 2)), np.zeros((2, 2)), np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"discount": 1.0}, "discount is 1.0, must be in"),
        ({"discount": 0.9, "value_range": (1.0, 0.0)}, "value_range"),
        ({"discount": 0.9, "bonus": "ucb"}, "bonus is 'ucb', must be hoeffding or bernstein"),
        ({"discount": 0.9, "scale": -1.0}, "scale"),
        ({"discount": 0.9, "failure": 0.0}, "failure"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=f"vi_lcb: {match}"):
        vi_lcb(three_states(), **{"value_range": RANGE, **options})
