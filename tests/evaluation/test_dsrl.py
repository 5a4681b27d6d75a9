"""DSRL's rule of evaluation by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.data import normalized_score, reference_scores
from surefoot.data.dsrl import task
from surefoot.evaluation import Episodes, dsrl_score


def episodes(shares: Any, costs: Any, name: str = "CarCircle") -> Episodes:
    """Episodes whose normalised rewards are `shares`."""
    low, high = task(name).reference
    returns = low + np.array(shares, float) * (high - low)
    return Episodes(returns, np.full(len(returns), 300), None if costs is None else np.array(costs, float))


def test_policies_without_a_limit_are_judged_by_each_of_the_tasks_three() -> None:
    found = dsrl_score("OfflineCarCircle-v0", [episodes([0.2, 0.4], [0, 20]), episodes([0.6, 0.8], [30, 30])])
    assert found.task == "CarCircle"
    assert found.reward.estimate == pytest.approx(0.5)
    assert list(found.by_limit) == [10, 20, 40]
    assert [cost for _, cost in found.by_limit.values()] == pytest.approx([2.0, 1.0, 0.5])  # the mean cost is 20
    assert found.cost.estimate == pytest.approx(3.5 / 3)
    assert not found.safe
    assert (found.seeds, found.episodes) == (2, 2)
    assert "normalised cost 1.17 (unsafe), means over the limits 10, 20, 40, 2 seeds and 2 episodes" in found.sentence()


def test_policies_trained_for_a_limit_are_judged_by_their_own() -> None:
    found = dsrl_score(
        "SafetyPointGoal1Gymnasium-v0-100-2022",
        {
            80: [episodes([0.9], [80], "PointGoal1"), episodes([0.7], [40], "PointGoal1")],
            20: [episodes([0.3], [10], "PointGoal1"), episodes([0.1], [10], "PointGoal1")],
            40: [episodes([0.5], [40], "PointGoal1"), episodes([0.5], [0], "PointGoal1")],
        },
    )
    assert found.by_limit[20] == pytest.approx((0.2, 0.5))
    assert found.by_limit[40] == pytest.approx((0.5, 0.5))
    assert found.by_limit[80] == pytest.approx((0.8, 0.75))
    assert (found.reward.estimate, found.cost.estimate) == pytest.approx((0.5, 1.75 / 3))
    assert found.safe
    assert found.reward.low < 0.5 < found.reward.high


def test_the_interval_is_over_seeds_and_not_over_limits() -> None:
    """Each seed is the mean of its three limits: equal seeds leave no doubt, whatever lies between the limits."""
    same = [episodes([0.5], [20])] * 3
    found = dsrl_score("CarCircle", {10: same, 20: [episodes([0.9], [20])] * 3, 40: same})
    assert (found.reward.low, found.reward.high) == pytest.approx((1.9 / 3, 1.9 / 3))


def test_what_is_no_evaluation_by_the_rule_is_refused() -> None:
    one = [episodes([0.5], [1])]
    with pytest.raises(ConfigError, match="DSRL has no task 'CarSpin'"):
        dsrl_score("CarSpin", one)
    with pytest.raises(ConfigError, match=r"judged at the cost limits \[10, 20, 40\], and .* given for \[10, 25\]"):
        dsrl_score("CarCircle", {10: one, 25: one})
    with pytest.raises(ConfigError, match="equally many seeds"):
        dsrl_score("CarCircle", {10: one, 20: one, 40: one * 2})
    with pytest.raises(ConfigError, match="equally many seeds"):
        dsrl_score("CarCircle", [episodes([0.5, 0.6], [1, 1]), *one])
    with pytest.raises(ConfigError, match="equally many seeds"):
        dsrl_score("CarCircle", [])
    with pytest.raises(ConfigError, match="for limit 10 have no costs"):
        dsrl_score("CarCircle", [episodes([0.5], None)])


def test_normalised_scores_in_tables_know_dsrls_tasks() -> None:
    reference = reference_scores("OfflineCarCircle-v0")
    assert reference == task("CarCircle").reference
    assert normalized_score(0.5 * sum(reference), reference) == pytest.approx(50)
    assert reference_scores("surefoot/HalfCheetahVelocity-v5") is None
