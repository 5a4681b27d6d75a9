"""What a finished run says of itself: the interval of an estimate."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.evaluation import hierarchical_interval
from surefoot.experiment.summary import possible_returns


def test_an_estimates_interval_holds_nothing_that_rewards_in_the_data_can_not_come_to() -> None:
    found = [np.array([-6.0, -5.0]), np.array([-9.0, -8.0])]
    for rewards, low, high in (([-1.0, -0.25], -100, 0), ([-1.0, 2.0], -100, 200), ([0.5, 1.0], -9, 100)):
        assert possible_returns(np.array(rewards), found) == pytest.approx((low, high))
    assert possible_returns(np.array([-1.0]), [np.array([3.0])])[1] == 3  # an estimate of its own is not hidden
    assert hierarchical_interval(found).high > 0  # Student's t over two seeds
    assert hierarchical_interval(found, bounds=possible_returns(np.array([-1.0]), found)).high == 0
