from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import statistics as st

SCORES = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 20.0]])  # 3 runs, 2 tasks; task means 2 and 8


def test_aggregates_of_a_small_matrix_worked_by_hand() -> None:
    assert st.mean(SCORES) == pytest.approx(5.0)
    assert st.median(SCORES) == pytest.approx(5.0)
    # sorted 0 1 2 3 4 20; floor(6 / 4) = 1 dropped at each end: (1 + 2 + 3 + 4) / 4
    assert st.interquartile_mean(SCORES) == pytest.approx(2.5)
    # min(score, 3): 0 1 2 3 3 3 -> mean 2
    assert st.optimality_gap(SCORES, target=3.0) == pytest.approx(1.0)


def test_the_interquartile_mean_is_scipy_s_trimmed_mean() -> None:
    generator = np.random.default_rng(0)
    for shape in ((1, 1), (3, 1), (5, 7), (10, 26)):
        scores = generator.standard_normal(shape)
        assert st.interquartile_mean(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None))


def test_probability_of_improvement_worked_by_hand_and_by_scipy() -> None:
    first, second = np.array([[1.0], [3.0], [5.0]]), np.array([[3.0], [0.0]])
    # pairs: 1>3 no, 1>0 yes, 3=3 half, 3>0, 5>3, 5>0 -> 4.5 of 6
    assert st.probability_of_improvement(first, second) == pytest.approx(0.75)
    u = scipy.stats.mannwhitneyu(first[:, 0], second[:, 0]).statistic
    assert st.probability_of_improvement(first, second) == pytest.approx(u / 6)
    assert st.probability_of_improvement(second, first) == pytest.approx(0.25)
    assert st.probability_of_improvement(SCORES, SCORES) == pytest.approx(0.5)
    two_tasks = st.probability_of_improvement(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    assert two_tasks == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="tasks"):
        st.probability_of_improvement(first, SCORES)


def test_the_performance_profile_counts_scores_strictly_above() -> None:
    profile = st.performance_profile(SCORES, np.array([-1.0, 0.0, 3.0, 3.5, 20.0]))
    np.testing.assert_allclose(profile, [1, 5 / 6, 2 / 6, 2 / 6, 0])


def test_profile_bands_hold_the_profile_and_repeat() -> None:
    scores = np.random.default_rng(1).standard_normal((8, 5))
    thresholds = np.linspace(-2, 2, 9)
    profile, low, high = st.performance_profile_interval(scores, thresholds, np.random.default_rng(0), 400)
    again = st.performance_profile_interval(scores, thresholds, np.random.default_rng(0), 400)
    np.testing.assert_array_equal(low, again[1])
    assert np.all(low <= profile)
    assert np.all(profile <= high)
    assert np.all((high - low)[3:6] > 0.1)


def test_the_profile_of_one_run_has_no_bands() -> None:
    thresholds = np.linspace(-1, 1, 5)
    profile, low, high = st.performance_profile_interval(np.array([[0.2]]), thresholds, np.random.default_rng(0), 50)
    np.testing.assert_array_equal(profile, [1, 1, 1, 0, 0])
    assert np.isnan([low, high]).all()


def test_the_bootstrap_depends_on_its_generator_alone() -> None:
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    first = st.stratified_bootstrap_interval(SCORES, st.mean, np.random.default_rng(3), 200)
    np.random.seed(1)  # noqa: NPY002
    again = st.stratified_bootstrap_interval(SCORES, st.mean, np.random.default_rng(3), 200)
    other = st.stratified_bootstrap_interval(SCORES, st.mean, np.random.default_rng(4), 200)
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    state = np.random.get_state()[2]  # noqa: NPY002
    st.stratified_bootstrap_interval(SCORES, st.mean, np.random.default_rng(3), 10)
    assert np.random.get_state()[2] == state  # noqa: NPY002


def test_the_bootstrap_resamples_within_each_task() -> None:
    # Runs differ only between tasks, so that a resample within tasks can't change the mean.
    scores = np.tile([0.0, 100.0], (4, 1))
    interval = st.stratified_bootstrap_interval(scores, st.mean, np.random.default_rng(0), 100)
    assert (interval.low, interval.estimate, interval.high) == (50.0, 50.0, 50.0)


def test_identical_scores_have_themselves_as_their_interquartile_mean_and_no_width() -> None:
    interval = st.stratified_bootstrap_interval(
        np.full((5, 3), 0.7), st.interquartile_mean, np.random.default_rng(0), 200
    )
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((0.7, 0.7, 0.7), abs=1e-15)


def test_the_bootstrap_of_two_runs_is_the_exact_distribution() -> None:
    # Means of resamples of {0, 1}: 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4. Tasks are independent, so the
    # mean of two is 0 with probability 1/16 > 2.5 %: the interval is [0, 1], and at 80 % it is [1/4, 3/4].
    scores = np.array([[0.0, 0.0], [1.0, 1.0]])
    generator = np.random.default_rng(0)
    wide = st.stratified_bootstrap_interval(scores, st.mean, generator, 2000)
    narrow = st.stratified_bootstrap_interval(scores, st.mean, generator, 2000, confidence=0.8)
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert (narrow.low, narrow.high) == (0.25, 0.75)


@pytest.mark.parametrize("scores", [[[3.0]], [[1.0, 2.0, 3.0, 4.0]]])
@pytest.mark.parametrize("statistic", [st.mean, st.median, st.interquartile_mean, st.optimality_gap])
def test_one_run_gives_no_interval_over_runs_and_the_refusal_says_so(
    scores: list[list[float]], statistic: st.Statistic
) -> None:
    with pytest.raises(ConfigError, match="one run gives no interval over runs"):
        st.stratified_bootstrap_interval(np.array(scores), statistic, np.random.default_rng(0), 50)


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1), (1, 1)])
def test_a_side_of_one_run_gives_no_interval_of_the_probability_of_improvement(first: int, second: int) -> None:
    scores = np.arange(3.0)[:, None]
    with pytest.raises(ConfigError, match="a side of one run gives no interval"):
        st.probability_of_improvement_interval(scores[:first], scores[:second], np.random.default_rng(0), 50)


def test_the_bootstrap_covers_the_mean_of_many_run_task_scores() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        interval = st.stratified_bootstrap_interval(generator.standard_normal((10, 10)), st.mean, generator, 200)
        hits += interval.low <= 0 <= interval.high
    assert 0.87 < hits / 200 <= 1.0  # nominal .95, standard error .015


def test_probability_of_improvement_bootstraps_both_sides() -> None:
    first, second = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]])
    interval = st.probability_of_improvement_interval(first, second, np.random.default_rng(0), 500)
    assert (interval.low, interval.estimate, interval.high) == (0.0, 0.5, 1.0)
    certain = st.probability_of_improvement_interval(second + 9, first, np.random.default_rng(0), 50)
    assert (certain.low, certain.high) == (1.0, 1.0)


def test_independent_seeds_get_student_s_interval_over_their_means() -> None:
    returns = [np.array([1.0, 3.0]), np.array([4.0]), np.array([5.0, 7.0])]  # means 2, 4, 6
    interval = st.hierarchical_interval(returns, shared_episodes=False)
    half = 4.302653 * 2.0 / math.sqrt(3)  # t(2 degrees, .975), standard deviation 2
    assert interval.estimate == pytest.approx(4.0)
    assert interval.half_width == pytest.approx(half, rel=1e-6)
    assert "3 seeds" in interval.method


def test_one_seed_gets_student_s_interval_over_its_episodes_and_says_so() -> None:
    for shared in (True, False):
        interval = st.hierarchical_interval([np.array([1.0, 2.0, 3.0])], shared_episodes=shared)
        assert interval.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
        assert "one seed" in interval.method


def test_identical_seeds_keep_the_uncertainty_of_their_shared_episodes() -> None:
    returns = [np.array([1.0, 2.0, 3.0])] * 4
    interval = st.hierarchical_interval(returns)
    assert interval.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert st.hierarchical_interval(returns, shared_episodes=False).half_width == 0.0


def test_two_way_variance_worked_by_hand() -> None:
    # rows 1 2 / 3 8: seed means 1.5, 5.5 -> 8 / 2 = 4; episode means 2, 5 -> 4.5 / 2 = 2.25;
    # residuals +-1, one degree of freedom -> 4, over S E -> 1. Variance 4 + 1.25 = 5.25.
    interval = st.hierarchical_interval([np.array([1.0, 2.0]), np.array([3.0, 8.0])])
    degrees = 5.25**2 / (4.0**2 + 1.25**2)
    half = scipy.stats.t.ppf(0.975, degrees) * math.sqrt(5.25)
    assert interval.estimate == pytest.approx(3.5)
    assert interval.half_width == pytest.approx(half, rel=1e-9)


def test_intervals_of_bounded_means_end_at_their_bounds_and_keep_the_other_end() -> None:
    shares = [np.array([0.0] * 7 + [1.0])]
    free, cut = st.hierarchical_interval(shares), st.hierarchical_interval(shares, bounds=(0.0, 1.0))
    assert free.low < 0
    assert free.high < 1
    assert (cut.estimate, cut.low, cut.high) == (free.estimate, 0.0, free.high)
    assert st.cost_interval([np.array([0.0, 0.0, 9.0])]).low == 0.0
    signed = [np.array([-1.0, 0.0, 9.0])]
    assert st.cost_interval(signed) == st.hierarchical_interval(signed)  # costs of an environment that has such
    assert math.isnan(st.cost_interval([np.array([3.0])]).low)
    with pytest.raises(ConfigError, match="out of their bounds, 0 to 1"):
        st.hierarchical_interval([np.array([0.5, 1.5])], bounds=(0.0, 1.0))


def test_a_single_episode_has_no_interval_and_json_says_null() -> None:
    interval = st.hierarchical_interval([np.array([3.0])])
    assert math.isnan(interval.low)
    assert interval.to_json()["low"] is None
    assert interval.to_json()["mean"] == 3.0


@pytest.mark.parametrize(
    ("seeds", "between_seeds", "between_starts", "residual"),
    [(3, 1.0, 5.0, 1.0), (3, 0.1, 5.0, 0.5), (3, 3.0, 1.0, 3.0), (5, 0.0, 1.0, 5.0), (1, 0.0, 5.0, 1.0)],
)
def test_intervals_cover_the_true_mean_about_95_times_of_100(
    seeds: int, between_seeds: float, between_starts: float, residual: float
) -> None:
    generator, hits, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        table = (
            between_seeds * generator.standard_normal((seeds, 1))
            + between_starts * generator.standard_normal((1, 50))
            + residual * generator.standard_normal((seeds, 50))
        )
        interval = st.hierarchical_interval(list(table))
        hits += interval.low <= 0 <= interval.high
    assert 0.915 < hits / trials < 0.985  # standard error .011


def test_seed_means_alone_would_not_cover_the_luck_of_shared_initial_states() -> None:
    generator, hits = np.random.default_rng(0), 0
    for _ in range(200):
        table = 5.0 * generator.standard_normal((1, 50)) + 0.5 * generator.standard_normal((3, 50))
        interval = st.hierarchical_interval(list(table), shared_episodes=False)
        hits += interval.low <= 0 <= interval.high
    assert hits / 200 < 0.6


def test_differences_are_welch_s_over_seed_means() -> None:
    first = [np.array([1.0]), np.array([3.0]), np.array([5.0])]
    second = [np.array([0.0]), np.array([1.0])]
    interval = st.difference_interval(first, second, shared_episodes=False)
    welch = scipy.stats.ttest_ind([1, 3, 5], [0, 1], equal_var=False).confidence_interval(0.95)
    assert interval.estimate == pytest.approx(2.5)
    assert (interval.low, interval.high) == pytest.approx((welch.low, welch.high), rel=1e-9)


def test_initial_states_that_both_sides_share_cancel_in_the_difference() -> None:
    starts = np.random.default_rng(0).normal(0, 100, 50)
    first = [starts + 10 + s for s in (-0.1, 0.0, 0.1)]
    second = [starts + s for s in (-0.1, 0.0, 0.1)]
    interval = st.difference_interval(first, second)
    assert interval.estimate == pytest.approx(10)
    assert interval.half_width < 0.5
    assert st.hierarchical_interval(first).half_width > 10


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_differences_cover_the_true_difference_about_95_times_of_100(shape: tuple[int, int]) -> None:
    generator, hits, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        starts = 5 * generator.standard_normal((1, 40))
        sides = [
            starts + scale * generator.standard_normal((seeds, 1)) + 2 * generator.standard_normal((seeds, 40))
            for seeds, scale in zip(shape, (1.0, 2.0), strict=True)
        ]
        interval = st.difference_interval(list(sides[0]), list(sides[1]))
        hits += interval.low <= 0 <= interval.high
    assert 0.915 < hits / trials < 0.985


def test_a_single_seed_beside_several_gives_a_difference_without_bounds() -> None:
    several = [np.array([value]) for value in (1.0, 2.0, 4.0, 5.0, 8.0)]
    for first, second in ((several, [np.array([3.0])]), ([np.array([3.0])], several)):
        for shared in (False, True):
            interval = st.difference_interval(first, second, shared_episodes=shared)
            assert abs(interval.estimate) == 1.0
            assert math.isnan(interval.low)
            assert math.isnan(interval.high)
            assert "one side has one seed" in interval.method


@pytest.mark.parametrize("value", [1.0, 0.1, -123.4, 1 / 3, 1e9 / 7])
def test_equal_episodes_of_one_seed_give_no_interval_whatever_their_sum_is_rounded_to(value: float) -> None:
    alone = st.hierarchical_interval([np.full(50, value)])
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    several = st.hierarchical_interval([np.full(50, value)] * 3)
    assert several.low == several.estimate == several.high
    assert st.hierarchical_interval([np.append(np.full(50, value), value * (1 + 1e-12))]).half_width > 0


def test_a_number_that_is_not_finite_is_named() -> None:
    with pytest.raises(ConfigError, match=r"scores\[0, 1\] is nan: leave run 0 out"):
        st.interquartile_mean(np.array([[1.0, np.nan]]))
    with pytest.raises(ConfigError, match=r"returns\[1\]\[2\] is inf"):
        st.hierarchical_interval([np.zeros(3), np.array([0.0, 1.0, np.inf])])
    with pytest.raises(ConfigError, match=r"that is not empty; they have shape \(0, 2\)"):
        st.mean(np.zeros((0, 2)))


def test_bad_input_is_refused() -> None:
    good = np.array([1.0, 2.0])
    for bad in ([], [np.array([])], [np.array([np.nan])], [good, np.array([1.0])]):
        with pytest.raises(ConfigError):
            st.hierarchical_interval(bad)
    with pytest.raises(ConfigError, match="different numbers"):
        st.difference_interval([good], [np.arange(3.0)])
    for scores, repetitions, confidence in itertools.chain(
        [(np.zeros(3), 10, 0.9), (np.array([[np.inf]]), 10, 0.9), (np.zeros((0, 2)), 10, 0.9)],
        [(SCORES, 0, 0.9), (SCORES, 10, 1.0)],
    ):
        with pytest.raises(ConfigError):
            st.stratified_bootstrap_interval(scores, st.mean, np.random.default_rng(0), repetitions, confidence)


def test_an_interval_ends_at_declared_bounds_that_hold() -> None:
    shares = [np.array([0.0, 1.0]), np.array([1.0, 1.0])]
    free = st.hierarchical_interval(shares)
    found = st.bounded_interval(shares, (0.0, 1.0))
    assert free.high > 1
    assert (found.estimate, found.low, found.high) == (0.75, max(free.low, 0.0), 1.0)


def test_a_declared_bound_that_is_broken_is_not_used_and_rounding_breaks_none() -> None:
    values = [np.array([0.0, 3.0]), np.array([1.0, 2.0])]
    free = st.hierarchical_interval(values)
    broken = st.bounded_interval(values, (0.0, 2.0))
    assert (broken.low, broken.high) == (max(free.low, 0.0), free.high)
    rounded = st.bounded_interval([np.array([0.0, 500.00001]), np.array([500.0, 500.0])], (0.0, 500.0))
    assert rounded.high == 500.00001
    with pytest.raises(ConfigError, match="at least one episode"):
        st.bounded_interval([np.array([])], (0.0, 1.0))
    with pytest.raises(ConfigError, match="finite"):
        st.bounded_interval([np.array([np.nan])], (0.0, 1.0))
