"""Costs are checked, and the constraint signal has one sign, wherever it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.dataset import Dataset
from surefoot.safe.constraint.costs import checked_costs, cost_notes
from surefoot.safe.constraint.signal import MARGINS_FROM, constraint_signal


def dataset(costs: Any = (0, 0.5, 0, 3), **changes: Any) -> Dataset:
    """Four steps of one episode."""
    rows = 4
    return Dataset(
        observations=np.zeros((rows, 2), np.float32),
        actions=np.zeros((rows, 1), np.float32),
        rewards=np.zeros(rows, np.float32),
        next_observations=np.zeros((rows, 2), np.float32),
        terminations=np.zeros(rows, bool),
        truncations=np.array([False, False, False, True]),
        episode_ids=np.zeros(rows, np.int64),
        valid=np.ones(rows, bool),
        costs=None if costs is None else np.array(costs, np.float32),
        name="steps",
        **changes,
    )


def margins(*values: float) -> dict[str, Any]:
    return {"extras": {"margins": np.array(values, np.float32)}}


def test_data_without_costs_or_margins_are_refused_with_what_to_add() -> None:
    with pytest.raises(DataError, match="steps: has no costs, and cpq learns to avoid them; add a column `costs`"):
        checked_costs(dataset(None), "cpq")


def test_data_with_margins_alone_cost_one_where_one_is_negative() -> None:
    found = checked_costs(dataset(None, **margins(1, -0.5, 0, -2)), "fisor")
    assert found.tolist() == [0, 1, 0, 1]


def test_margins_alone_are_checked_before_they_become_costs() -> None:
    with pytest.raises(DataError, match=r"steps: margins\[1\] is nan"):
        checked_costs(dataset(None, **margins(2, float("nan"), 0, -3)), "cpq")
    column = {"extras": {"margins": np.ones((4, 1), np.float32)}}
    with pytest.raises(DataError, match=r"steps: margins have shape \(4, 1\), must be \(4,\)"):
        checked_costs(dataset(None, **column), "cpq")


def test_a_negative_cost_is_refused_by_its_index() -> None:
    with pytest.raises(DataError, match=r"costs\[2\] is -1 \(2 are negative\)"):
        checked_costs(dataset([0, 1, -1, -2]), "fisor")


def test_costs_that_are_the_same_everywhere_are_said_to_teach_nothing() -> None:
    assert cost_notes(dataset(), "fisor") == []
    (nothing,) = cost_notes(dataset([0, 0, 0, 0]), "fisor")
    assert "all 4 costs are zero" in nothing
    assert "can't learn where they are" in nothing
    (everything,) = cost_notes(dataset([1, 1, 2, 1]), "fisor")
    assert "all 4 steps violate" in everything


def test_the_published_signal_knows_the_sign_of_a_cost_and_not_its_size() -> None:
    found = constraint_signal(dataset(), "published")
    assert found.values.tolist() == [-1, 25, -1, 25]
    assert found.values.dtype == np.float32
    assert constraint_signal(dataset(), "published", 1.0).values.tolist() == [-1, 1, -1, 1]
    scaled = dataset([0, 0.5, 0, 3]).replace(costs=np.array([0, 5e-4, 0, 3e-3], np.float32))
    slipped = np.where(scaled.costs > 0.5, 25, -1)  # a threshold on scaled costs loses both violations
    assert constraint_signal(scaled, "published").values.tolist() == found.values.tolist() != slipped.tolist()


def test_margins_come_first_and_change_their_sign_here() -> None:
    kept = dataset(**margins(2, -0.5, 0, -3))
    found = constraint_signal(kept)
    assert found.kind == "margin"
    assert found.values.tolist() == [-2, 0.5, 0, 3]
    assert found.source == "minus the margin stored in the dataset"
    assert constraint_signal(kept, "published").values.tolist() == [-1, 25, -1, 25]
    told = kept.replace(attributes={MARGINS_FROM: "computed from the moon"})
    assert constraint_signal(told).source == "minus the margin computed from the moon"


def test_without_margins_auto_is_the_published_signal_and_margin_an_error() -> None:
    assert constraint_signal(dataset()).kind == "published"
    with pytest.raises(DataError, match="has no margins, and none can be computed"):
        constraint_signal(dataset(), "margin")


def test_margins_that_contradict_costs_need_a_decision() -> None:
    odd = dataset(**margins(2, 0.5, 0, -3))
    with pytest.raises(DataError, match=r"contradict each other in 1 rows \(row 1: margin 0.5, cost 0.5\)"):
        constraint_signal(odd)
    assert constraint_signal(odd, "margin").values.tolist() == [-2, -0.5, 0, 3]
    assert constraint_signal(odd, "published").values.tolist() == [-1, 25, -1, 25]


def test_margins_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"margins\[1\] is nan"):
        constraint_signal(dataset(**margins(2, float("nan"), 0, -3)))
    with pytest.raises(DataError, match=r"margins have shape \(3,\), must be \(4,\)"):
        constraint_signal(dataset(**margins(2, 1, 0)), "margin")


def test_words_and_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'margin'"):
        constraint_signal(dataset(), "margins")
    with pytest.raises(ConfigError, match="violation is 0"):
        constraint_signal(dataset(), "published", 0)
