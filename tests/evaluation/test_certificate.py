"""Exact bounds on the probability of a violation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import certificate


@pytest.mark.parametrize(("violations", "episodes"), [(0, 1), (0, 1000), (3, 50), (50, 50), (1234, 1_000_000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_bounds_are_scipys_exact_intervals(violations: int, episodes: int, confidence: float) -> None:
    found = certificate(violations, episodes, confidence)
    two_sided = binomtest(violations, episodes).proportion_ci(confidence, method="exact")
    one_sided = binomtest(violations, episodes, alternative="less").proportion_ci(confidence, method="exact")
    assert (found.low, found.high) == pytest.approx((two_sided.low, two_sided.high), rel=1e-9, abs=1e-15)
    assert found.upper == pytest.approx(one_sided.high, rel=1e-9)


def test_no_violation_in_n_episodes_gives_the_rule_of_three() -> None:
    assert certificate(0, 1_000_000).upper == pytest.approx(-np.log(0.05) / 1e6, rel=1e-5)


def test_the_interval_covers_the_true_rate_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    counts = generator.binomial(400, 0.03, size=2000)
    covered = [certificate(int(k), 400).high >= 0.03 and certificate(int(k), 400).low <= 0.03 for k in counts]
    assert 0.95 <= np.mean(covered) <= 0.985  # exact intervals are never short, and not much too long


@pytest.mark.parametrize(
    ("violations", "episodes", "confidence"), [(1, 0, 0.95), (5, 4, 0.95), (-1, 4, 0.95), (1, 4, 1)]
)
def test_impossible_counts_are_refused(violations: int, episodes: int, confidence: float) -> None:
    with pytest.raises(ConfigError):
        certificate(violations, episodes, confidence)
