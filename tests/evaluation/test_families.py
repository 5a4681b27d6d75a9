from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import cvar, expected_maximum, family, kaplan_meier, median_steps, steps_to
from surefoot.evaluation.families import quantile, weighted_mean
from surefoot.evaluation.selection import doubly_robust, rank_correlation, regret_at, tuning_curve

SCORES, WEIGHTS = np.array([10.0, 8, 6, 4, 2]), np.array([0.1, 0.2, 0.4, 0.2, 0.1])


def test_mean_and_cvar_of_a_weighted_family() -> None:
    assert weighted_mean(SCORES, WEIGHTS) == pytest.approx(6)
    assert cvar(SCORES, 0.2, WEIGHTS) == pytest.approx(3)
    assert cvar(SCORES, 0.5, WEIGHTS) == pytest.approx(4.4)
    assert cvar(SCORES, 1.0, WEIGHTS) == pytest.approx(6)
    assert [quantile(SCORES, share, WEIGHTS) for share in (0.1, 0.3, 0.31)] == [2, 4, 6]


def test_a_familys_aggregates_are_of_each_seed_first() -> None:
    scores = np.array([[1.0, 5], [6, 2], [3, 3]])
    found = family(scores)
    assert found.worst.estimate == pytest.approx((1 + 2 + 3) / 3)  # and not the worst of the means, 10 / 3
    assert found.mean.estimate == pytest.approx(20 / 6)
    assert found.worst.low < 2 < found.worst.high
    noisy = family(scores, deviation=2.0, episodes=4)
    assert noisy.too_low == pytest.approx(expected_maximum(2))


@pytest.mark.parametrize("weights", [np.ones(3), np.array([1.0, -1])])
def test_bad_weights_are_refused(weights: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="weight"):
        family(np.ones((2, 2)), weights)


def test_runs_that_never_got_there_count_as_longer_than_they_ran() -> None:
    times, reached = [10, 20, 30, 40, 50], [True, True, False, True, False]
    moments, longer = kaplan_meier(times, reached)
    assert moments.tolist() == [10, 20, 40]
    assert longer == pytest.approx([0.8, 0.6, 0.3])
    assert median_steps(times, reached) == 40
    assert median_steps([t for t, r in zip(times, reached, strict=True) if r], [True] * 3) == 20
    assert math.isnan(median_steps([5, 5, 1], [False, False, True]))


def test_steps_to_a_threshold_of_a_curve() -> None:
    steps, values = np.array([10, 20, 30]), np.array([0.1, 0.6, 0.4])
    assert steps_to(steps, values, 0.5) == (20, True)
    assert steps_to(steps, values, 0.7) == (30, False)


def test_expected_maxima() -> None:
    wanted = {1: 0, 5: 1.162964, 10: 1.538753, 16: 1.765991, 20: 1.867475, 50: 2.249074, 100: 2.507594}
    for count, value in wanted.items():
        assert expected_maximum(count) == pytest.approx(value, abs=1e-6)


def test_the_winner_of_equal_configurations_scores_too_high_on_its_tuning_seeds() -> None:
    generator = np.random.default_rng(0)
    tuning, testing = generator.normal(size=(2, 2000, 20, 3)).mean(axis=3)
    best = tuning.argmax(axis=1)
    rows = np.arange(2000)
    assert tuning[rows, best].mean() == pytest.approx(expected_maximum(20) / math.sqrt(3), abs=0.05)
    assert testing[rows, best].mean() == pytest.approx(0, abs=0.05)


def test_rank_correlation_and_regret() -> None:
    values, estimates = np.array([10.0, 8, 5, 1]), np.array([3.0, 9, 7, 2])
    assert rank_correlation(values, estimates) == pytest.approx(0.4)
    assert regret_at(1, values, estimates) == pytest.approx(2 / 9)
    assert regret_at(3, values, estimates) == 0


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_regret_of_tied_estimates_is_the_mean_over_choices_among_them(k: int) -> None:
    values, estimates = np.array([3.0, 1.0, 7.0, 5.0, 2.0]), np.array([0.0, 1.0, 0.0, 0.0, 2.0])
    sure = {1: (4,), 2: (4, 1)}.get(k, (4, 1))
    choices = [(*sure[:k], *more) for more in itertools.combinations((0, 2, 3), max(k - 2, 0))]
    mean = np.mean([(7 - max(values[list(chosen)])) / 6 for chosen in choices])
    assert regret_at(k, values, estimates) == pytest.approx(mean)
    assert rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 2, 3])) == pytest.approx(1)


def test_doubly_robust_values_backwards() -> None:
    columns = ([1.2, 0.5, 2], [1, 0, 2], [0.5, 0.4, 0.3], [0.6, 0.2, 0.5])
    found = doubly_robust(*(np.array(c, dtype=float) for c in columns), discount=0.9)
    assert found == pytest.approx([2.9078, 1.785, 3.3])


@pytest.mark.parametrize("shift", [0.0, -1.0])
def test_upper_confidence_bounds_name_only_policies_that_were_tried(shift: float) -> None:
    returns = np.array([[0.2], [0.5], [0.9]]) + shift
    curve = tuning_curve(returns, 3, 4, 4000, np.random.default_rng(0)).mean(axis=0)
    assert curve == pytest.approx(np.array([0.533333, 0.766667, 0.9, 0.9]) + shift, abs=0.02)
