from __future__ import annotations

import math

import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import LookPlan, adastop, looks, permutation_p, seeds_needed, smallest_p, too_few
from surefoot.evaluation.deciding import labelings
from surefoot.evaluation.deciding import test_statistics as statistics_of
from surefoot.evaluation.one_look import paths_for

X, Y = np.array([0.9, 0.8, 0.85, 0.7, 0.95]), np.array([0.5, 0.6, 0.4, 0.75, 0.55])
ONE = LookPlan(5, 1)


def test_one_stage_of_five_seeds_has_the_boundary_worked_out_by_hand() -> None:
    (look,) = looks(X, Y, ONE)
    assert look.statistic == pytest.approx(0.28, abs=1e-12)
    assert look.boundary == pytest.approx(0.22, abs=1e-12)
    assert look.answer == "larger"
    (swapped,) = looks(Y, X, ONE)
    assert swapped.answer == "smaller"


def test_the_first_of_five_stages_goes_on_at_its_smaller_share_of_the_level() -> None:
    statistic, boundary, crossed = statistics_of(X[None], Y[None], LookPlan(5, 1, level=0.01))
    assert (statistic[0, 0], boundary[0, 0]) == pytest.approx((0.28, 0.28), abs=1e-12)
    assert not crossed[0, 0]
    (look,) = looks(X, Y, LookPlan())
    assert look.answer == "open"


def test_the_p_value_counts_labelings() -> None:
    assert permutation_p(X, Y) == pytest.approx(4 / 252)
    assert permutation_p(X[:2], Y) == pytest.approx(1 / 21)  # unequal sides have no mirrored labels


def test_a_p_value_has_as_many_labelings_as_the_level_that_it_is_held_against_needs() -> None:
    low, high = np.arange(10.0), np.arange(10.0) + 20
    assert permutation_p(low, high) == smallest_p(10) == 2 / 184_756, "few enough to be counted"
    low, high = np.arange(12.0), np.arange(12.0) + 20
    assert permutation_p(low, high) == pytest.approx(1 / 20_000)
    level = 0.05 / math.comb(60, 2)  # of 60 entries
    assert too_few(12, level) is None
    assert permutation_p(low, high, level=level) <= level
    assert permutation_p(low, high[::-1] - 20, level=level) > 0.9
    assert (paths_for(0.001), paths_for(1e-5), paths_for(1e-7)) == (100_000, 1_000_000, 10_000_000)


def test_the_smallest_p_and_the_seeds_that_it_asks_for() -> None:
    assert [smallest_p(n) for n in (3, 4, 5)] == pytest.approx([0.1, 2 / 70, 2 / 252])
    assert (seeds_needed(0.05), seeds_needed(0.005)) == (4, 6)


def test_three_seeds_are_refused_in_words() -> None:
    words = too_few(3)
    assert words is not None
    assert "with 3 seeds of each algorithm nothing can be decided" in words
    assert "2 of the 20 ways" in words
    assert too_few(4) is None
    with pytest.raises(ConfigError, match="with 3 seeds nothing can be decided"):
        LookPlan(3, 1)


def test_an_incomplete_stage_is_not_looked_at_and_later_seeds_do_not_change_earlier_looks() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=25), generator.normal(size=25)
    plan = LookPlan()
    assert looks(x[:4], y, plan) == []
    whole = looks(x, y, plan)
    assert [look.stage for look in whole] == [1, 2, 3, 4, 5]
    assert [look.answer for look in whole] == ["open"] * 4 + ["not separated"]
    assert looks(x[:12], y[:14], plan)[:2] == whole[:2]


def test_a_large_difference_ends_the_comparison_early() -> None:
    generator = np.random.default_rng(1)
    found = looks(generator.normal(3, 1, 25), generator.normal(0, 1, 25), LookPlan())
    assert found[-1].answer == "larger"
    assert found[-1].stage <= 2
    assert found[-1].interval.low > 0


def test_the_interval_leaves_out_no_difference_exactly_where_the_test_decides() -> None:
    for seed in range(6):
        generator = np.random.default_rng(seed)
        found = looks(generator.normal(0.9, 1, 15), generator.normal(0, 1, 15), LookPlan(5, 3))
        for look in found:
            outside = not look.interval.low <= 0 <= look.interval.high
            assert outside == (look.answer == "larger"), (seed, look)


def test_small_plans_are_enumerated_with_the_observed_labels_first() -> None:
    stages = labelings(LookPlan(3, 2))
    assert [len(stage) for stage in stages] == [400, 400]
    for stage in stages:
        assert stage[0] == pytest.approx([1 / 3] * 3 + [-1 / 3] * 3)
    both = np.concatenate(stages, axis=1)
    assert len(np.unique(both, axis=0)) == 400
    assert labelings(LookPlan())[0].shape == (4000, 10)


def test_plans_whose_largest_difference_can_not_cross_are_refused_and_the_next_larger_ones_decide() -> None:
    with pytest.raises(
        ConfigError, match=r"with 4 seeds in 2 stages nothing .* at least 4 seeds .* or 6 in stages of 2"
    ):
        LookPlan(2, 2)  # 36 shuffles, 1 may cross, and the observed one ties with its mirror image
    with pytest.raises(ConfigError, match="with 6 seeds in 2 stages and 11 pairs nothing can be decided"):
        LookPlan(3, 2, pairs=11)  # 400 * 0.05 / 11 is 1.8
    for plan in (LookPlan(2, 3), LookPlan(3, 2, pairs=10), LookPlan(4, 1)):
        scores = np.random.default_rng(0).uniform(size=(2, plan.seeds)) + [[9], [0]]
        assert looks(scores[0], scores[1], plan)[-1].answer == "larger"
    assert LookPlan(600, 1).seeds == 600  # more shuffles than a float can count


def test_as_many_shuffles_are_made_as_the_level_of_a_pair_needs() -> None:
    assert [LookPlan(pairs=pairs).shuffles for pairs in (1, 200, 201)] == [4000, 4000, 4020]
    assert (LookPlan(5, 1).shuffles, LookPlan(5, 1, paths=100).shuffles) == (252, 100)
    assert "shuffled 252 times" in LookPlan(5, 1).sentence()
    plan = LookPlan(pairs=300)
    scores = np.random.default_rng(0).uniform(size=(2, 25)) + [[9], [0]]
    assert looks(scores[0], scores[1], plan)[-1].answer == "larger"
    with pytest.raises(ConfigError, match="takes 10,000,000 shuffles, more than 1,000,000: raise level"):
        LookPlan(level=1e-7).shuffles  # noqa: B018  # which --anytime never asks for


def test_the_level_is_kept_and_the_published_boundaries_double_it() -> None:
    generator = np.random.default_rng(3)
    plan = LookPlan(5, 5, paths=600)
    x, y = generator.normal(size=(2, 3000, 25))
    share = statistics_of(x, y, plan)[2].any(axis=1).mean()
    assert share == pytest.approx(0.05, abs=0.017)  # four standard errors
    assert (adastop(x, y, plan) > 0).mean() > 0.085


def test_adastops_error_at_one_stage_is_that_of_its_labelings() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(2, 8000, 5))
    assert (adastop(x, y, ONE) > 0).mean() == pytest.approx(24 / 252, abs=0.013)


def test_pairs_share_the_level() -> None:
    plan = LookPlan(pairs=3)
    assert plan.pair_level == pytest.approx(0.05 / 3)
    assert "1.7 % each" in plan.sentence()


def test_equal_scores_are_never_told_apart() -> None:
    found = looks(np.full(25, 2.0), np.full(25, 2.0), LookPlan())
    assert found[-1].answer == "not separated"
    assert found[-1].interval.low == found[-1].interval.high == 0


@pytest.mark.parametrize("score", [0.1, 8319.4, 1e6 + 0.7, -3e8 - 0.3])
def test_equal_scores_of_any_size_are_not_told_apart_by_rounding(score: float) -> None:
    for plan in (LookPlan(6, 4), LookPlan()):
        found = looks(np.full(plan.seeds, score), np.full(plan.seeds, score), plan)
        assert [look.answer for look in found] == ["open"] * (plan.stages - 1) + ["not separated"]
        assert {(look.interval.estimate, look.interval.low, look.interval.high) for look in found} == {(0, 0, 0)}
        assert {look.statistic for look in found} == {0}
    assert permutation_p(np.full(12, score), np.full(12, score)) == 1


@pytest.mark.parametrize(("times", "more"), [(1e-13, 0.0), (1e9, 0.0), (1.0, 1e6)])
def test_answers_depend_on_neither_the_unit_nor_the_zero_of_scores(times: float, more: float) -> None:
    generator = np.random.default_rng(8)
    x, y = np.round(generator.normal(size=(2, 20)), 1)  # with many ties
    x += 0.8
    plain, other = looks(x, y, LookPlan(5, 4)), looks(times * x + more, times * y + more, LookPlan(5, 4))
    assert [look.answer for look in plain] == [look.answer for look in other]
    assert permutation_p(x, y) == permutation_p(times * x + more, times * y + more)
    assert permutation_p(x[:6], y[:6]) == permutation_p(times * x[:6] + more, times * y[:6] + more)


def test_unequal_spread_is_told() -> None:
    generator = np.random.default_rng(5)
    look = looks(generator.normal(0, 3, 5), generator.normal(0, 1, 5), LookPlan())[0]
    assert look.spread > 2
    assert "varies" in look.sentence("a", "b")


def test_a_plan_is_written_and_read_back() -> None:
    plan = LookPlan(4, 3, 0.1, 2, 1000, 7)
    assert LookPlan.from_json(plan.to_json(), "plan.json") == plan
    with pytest.raises(ConfigError, match=r"plan\.json"):
        LookPlan.from_json({"per_stage": "five"}, "plan.json")


@pytest.mark.parametrize("bad", [{"per_stage": 1}, {"stages": 0}, {"level": 1.5}, {"pairs": 0}, {"paths": 10}])
def test_numbers_out_of_range_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LookPlan(**bad)  # type: ignore[arg-type]


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        looks(np.array([1.0, math.nan, 1, 1, 1]), Y, LookPlan())
