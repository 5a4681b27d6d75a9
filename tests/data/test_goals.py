"""Rows with goals: shares, distances ahead, ends of episodes, rewards and masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.data.goals import GoalRows, GoalShares, goal_shares, last_rows, later_rows
from surefoot.data.store import Store

GRID = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
"""Every part of [0, 1) alike: shares of it are probabilities."""


def shares_of(found: torch.Tensor) -> dict[int, float]:
    values, counts = found.unique(return_counts=True)
    return {int(value): float(count) / len(found) for value, count in zip(values, counts, strict=True)}


def source(lengths: list[int], **options: object) -> GoalRows:
    """Rows whose observation is their number and its negative."""
    count = sum(lengths)
    numbers = np.arange(count, dtype=np.float32)
    store = Store.pack({"observations": np.stack([numbers, -numbers], 1), "actions": np.zeros((count, 1), np.float32)})
    given: dict[str, object] = {
        "value": GoalShares(0.2, 0.5, 0.3),
        "actor": GoalShares(0, 1, 0, False),
        "discount": 0.9,
        **options,
    }
    return GoalRows(store, torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)), **given)  # type: ignore[arg-type]


def test_rows_ahead_are_geometric_and_stop_at_the_episodes_end() -> None:
    """Row 2 of an episode of rows 0 to 5, discount .99: rows 3, 4, 5 with .01, .0099, .9801."""
    rows = torch.full_like(GRID, 2).long()
    found = shares_of(later_rows(rows, torch.full_like(rows, 5), GRID, 0.99))
    assert found == pytest.approx({3: 0.01, 4: 0.0099, 5: 0.9801}, abs=1e-4)


def test_rows_ahead_are_uniform_with_half_the_chance_at_both_ends() -> None:
    """OGBench rounds a uniform number between the next row and the last."""
    rows = torch.full_like(GRID, 2).long()
    found = shares_of(later_rows(rows, torch.full_like(rows, 5), GRID, None))
    assert found == pytest.approx({3: 0.25, 4: 0.5, 5: 0.25}, abs=1e-4)


@pytest.mark.parametrize("discount", [0.99, None])
def test_behind_an_episodes_last_row_is_itself(discount: float | None) -> None:
    rows = torch.full_like(GRID, 5).long()
    assert later_rows(rows, rows, GRID, discount).eq(5).all()


def test_the_last_number_below_one_is_no_row_too_far() -> None:
    """1 - 2^-53 is 3,656 steps ahead at a discount of .99, and none beyond what int64 holds at any."""
    extreme, rows = torch.tensor([1 - 2.0**-53], dtype=torch.float64), torch.tensor([0])
    steps = math.floor(53 * math.log(2) / -math.log(0.99)) + 1
    assert later_rows(rows, torch.tensor([10_000]), extreme, 0.99).item() == steps == 3656
    assert later_rows(rows, torch.tensor([10_000]), extreme, 1 - 1e-15).item() == 10_000


def test_last_rows_of_episodes() -> None:
    assert last_rows(torch.tensor([0, 0, 0, 1, 2, 2])).tolist() == [2, 2, 2, 3, 5, 5]


def test_goals_are_of_the_shares_and_never_of_another_episode_unless_any_is_asked() -> None:
    rows = source([7, 1, 12], value=GoalShares(0.2, 0.5, 0.3))
    rows.bind(list(range(8)), 10_000, torch.device("cpu"))
    drawn = rows.rows(3)
    own, value, actor = drawn.unbind(-1)
    assert drawn.shape == (8, 10_000, 3)
    last = rows.last[own]
    assert bool(((actor >= own) & (actor <= last)).all())
    assert bool((actor[own < last] > own[own < last]).all())  # a later row, not itself
    outside = float(((value < own) | (value > last)).double().mean())
    # any of 20 rows with .3: outside of an episode of n rows in (20 - n) / 20 of them, and before the row inside
    at = [(n, i) for n in (7, 1, 12) for i in range(n)]
    expected = 0.3 * sum((20 - n + i) / 20 for n, i in at) / 20
    assert outside == pytest.approx(expected, abs=0.006)
    assert not bool((drawn[0] == drawn[1]).all())


def test_rewards_masks_and_goals_are_told_by_rows() -> None:
    """Two rows with one observation are two places: only the row itself is its goal."""
    rows = source([4, 3])
    rows.store["observations"][5] = rows.store["observations"][1]
    batch = rows.gather(torch.tensor([[1, 1, 3], [1, 5, 6]]))
    assert batch["goal_rewards"].tolist() == [0, -1]
    assert batch["goal_masks"].tolist() == [0, 1]
    assert batch["value_goals"].tolist() == [[1, -1], [1, -1]]
    assert batch["actor_goals"].tolist() == [[3, -3], [6, -6]]
    counted = source([4, 3], negative=False).gather(torch.tensor([[1, 1, 3], [1, 5, 6]]))
    assert counted["goal_rewards"].tolist() == [1, 0]


def test_goals_may_be_some_numbers_of_the_observation() -> None:
    rows = source([4, 3], columns=(1,))
    assert rows.gather(torch.tensor([[0, 2, 3]]))["value_goals"].tolist() == [[-2]]
    with pytest.raises(ConfigError, match=r"goal columns \[2\]: observations have 2 numbers"):
        source([4], columns=(2,))


def test_waypoints_end_with_the_episode_and_subgoals_at_the_goal() -> None:
    """k = 3 in episodes of 10 and 4 rows; goals that are drawn from all data don't shorten the way."""
    rows = source([10, 4], steps=3, actor=GoalShares(0, 0.5, 0.5, False))
    rows.bind([0], 4000, torch.device("cpu"))
    own, _, actor, way, sub = rows.rows(0)[0].unbind(-1)
    last = rows.last[own]
    assert bool((way == torch.minimum(own + 3, last)).all())
    near = (actor > own) & (actor < way)
    assert bool(((sub == way) | (near & (sub == actor))).all())
    assert bool((sub[near] == actor[near]).any())
    assert bool((sub[near] == way[near]).any())  # the goals that were drawn from all data
    batch = rows.gather(rows.rows(0)[0][:5])
    assert batch["waypoints"][:, 0].tolist() == way[:5].tolist()
    assert batch["subgoals"][:, 0].tolist() == sub[:5].tolist()


def test_numbers_of_a_step_are_the_same_whenever_they_are_asked_for() -> None:
    rows = source([30])
    rows.bind([4], 50, torch.device("cpu"))
    first = rows.rows(7).clone()
    rows.rows(500)
    assert torch.equal(rows.rows(7), first)


@pytest.mark.parametrize(
    ("shares", "words"),
    [((0.5, 0.5), "has 2 numbers"), ((0.5, 0.4, 0.0), "add up to 1"), ((1.2, -0.2, 0.0), "add up to 1")],
)
def test_shares_that_are_none_are_refused(shares: tuple[float, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"hiql: value_goals.*{words}"):
        goal_shares("hiql", shares, True, "value_goals")
