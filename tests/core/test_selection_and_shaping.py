"""Masks, shaped rewards and coefficients against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses import policy_gradient as pg
from surefoot.llm.losses import (
    completion_mask,
    consistency_bonus,
    consistency_scaled_reward,
    fresh_mask,
    gated_reward,
    high_entropy_mask,
    kl_penalised_rewards,
    likely_mask,
    masked_logits,
    mixed_groups,
    novelty_reward,
    nucleus_mask,
    off_policy_mask,
    outcome_rewards,
    overlong_penalty,
    probability_reward,
    process_reward,
    repetition_penalty,
    shared_reward,
    spread_groups,
    spurious_mask,
    token_returns,
)


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


# -- masks ---------------------------------------------------------------------------------------------------


def test_the_end_token_is_trained_and_nothing_after_it() -> None:
    mask, finished = completion_mask(torch.tensor([[5, 2, 7, 2], [5, 6, 7, 8], [3, 3, 1, 1]]), [2, 3])
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert finished.tolist() == [True, False, True]


def test_the_highest_entropies_of_the_whole_batch_are_kept() -> None:
    entropy, mask = f64([[1, 2, 3, 99], [4, 5, 99, 99]]), f64([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert high_entropy_mask(entropy, mask, 0.4).tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]]  # threshold 3.4
    assert high_entropy_mask(entropy, mask, 1.0).tolist() == mask.tolist()
    with pytest.raises(ConfigError, match="every unit is masked"):
        high_entropy_mask(entropy, mask * 0)


def test_only_rare_sure_tokens_of_good_answers_are_silenced() -> None:
    log_prob = f64([[0.001, 0.001, 0.9, 0.001], [0.001, 0.5, 0.5, 0.5]]).log()
    entropy, mask = f64([[0.1, 3.0, 0.1, 0.1], [0.1, 0.1, 0.1, 2.0]]), f64([[1, 1, 1, 0], [1, 1, 1, 1]])
    found = spurious_mask(log_prob, entropy, f64([[1.0], [-1.0]]), mask, 0.002, 0.8)
    assert found.tolist() == [[0, 1, 1, 0], [1, 1, 1, 1]]


def test_three_quarters_of_the_rare_tokens_of_good_answers_are_silenced_whatever_the_rest_is() -> None:
    entropy, low = torch.arange(116.0).double().reshape(2, 58), f64([[0.001], [0.001]]).log().expand(2, 58)
    for shift in (0.0, 100.0, -100.0):  # rare tokens at high or low entropies, beside those of a bad answer
        moved = entropy + f64([[shift], [0.0]])
        found = spurious_mask(low, moved, f64([[1.0], [-1.0]]), torch.ones(2, 58).double())
        assert found[0].tolist() == [0.0] * 43 + [1.0] * 15  # 0.75 of 58 is 43.5
        assert bool((found[1] == 1).all())
    common = spurious_mask(low + 5, entropy, f64([[1.0], [-1.0]]), torch.ones(2, 58).double())
    assert bool((common == 1).all())


def test_bad_sequences_that_the_policy_has_left_behind_are_dropped() -> None:
    log_prob, acted = f64([[-2.0, -2], [-2, -2], [-2, -9]]), f64([[-1.0, -1], [-1, -1], [-1.8, -1]])
    mask = f64([[1, 1], [1, 1], [1, 0]])
    kept = off_policy_mask(log_prob, acted, f64([[-1.0], [1.0], [-1.0]]), mask, 0.5)
    assert kept.tolist() == [[0, 0], [1, 1], [1, 0]]


def test_samples_that_are_too_old_are_left_out_token_by_token() -> None:
    assert fresh_mask(torch.tensor([[3, 4], [7, 8]]), 8, 4).tolist() == [[0, 1], [1, 1]]
    with pytest.raises(ConfigError, match="version 9 are newer than the policy, version 8"):
        fresh_mask(torch.tensor([9]), 8, 4)


def test_unlikely_tokens_are_left_out() -> None:
    assert likely_mask(f64([[0.5, 0.01, math.nan]]).log(), f64([[1, 1, 0]]), 0.1).tolist() == [[1, 0, 0]]


def test_groups_without_a_difference_teach_nothing() -> None:
    assert mixed_groups(f64([1, 1, 0, 1, math.nan, 1]), 2).tolist() == [0, 0, 1, 1, 0, 0]


def test_groups_of_little_spread_are_dropped_against_their_running_average() -> None:
    kept, average = spread_groups(f64([0, 1, 0.5, 0.6]), 2, f64(1.0), 0.5)
    assert kept.tolist() == [1, 1, 0, 0]
    assert float(average) == pytest.approx(0.99 + 0.01 * (math.sqrt(0.5) + 0.1 * math.sqrt(0.5)) / 2)


def test_a_stored_nucleus_gives_ratio_one_and_a_forgotten_one_does_not() -> None:
    logits = f64([[0.5, 0.3, 0.15, 0.05]]).log()
    allowed = nucleus_mask(logits, 0.9, always=[3])
    assert allowed.tolist() == [[True, True, True, True]]
    allowed = nucleus_mask(logits, 0.75)
    assert allowed.tolist() == [[True, True, False, False]]
    sampled = masked_logits(logits, allowed).log_softmax(-1)[:, 0]
    again = masked_logits(logits, allowed).log_softmax(-1)[:, 0]
    assert float(pg.ratio(pg.log_ratio(again, sampled))) == 1
    assert float(pg.ratio(pg.log_ratio(logits.log_softmax(-1)[:, 0], sampled))) == pytest.approx(0.8)
    with pytest.raises(ConfigError, match="allows no action"):
        masked_logits(logits, torch.zeros(1, 4, dtype=torch.bool))


# -- rewards -------------------------------------------------------------------------------------------------


def test_the_overlong_penalty_falls_through_its_buffer() -> None:
    close(overlong_penalty(f64([10, 80, 90, 100, 120]), 100, 20), f64([0, 0, -0.5, -1, -1]))
    with pytest.raises(ConfigError, match="buffer=0"):
        overlong_penalty(f64([1]), 100, 0)


def test_dense_rewards_count_only_past_the_gate() -> None:
    close(gated_reward(f64([1.0, 0.4]), f64([[0.1, 0.2], [5, 5]]), 0.5), f64([1.3, 0.4]))


def test_the_consistency_bonus_is_for_right_answers_that_are_likely_within_their_group() -> None:
    accuracy = f64([1, 1, 0, 1])
    likely = f64([0.9, 0.3, 0.99, 1.0]).log()[:, None].expand(4, 2)
    found = consistency_bonus(accuracy, likely, torch.ones(4, 2, dtype=torch.float64), 4)
    close(found, f64([0.5, 0, 0, 0.5]))  # mean of .9, .3 and .95 (capped) is .717


def test_the_probability_reward_is_the_rise_of_the_mean_probability() -> None:
    given, alone, mask = f64([[0.8, 0.6], [0.2, 0.9]]).log(), f64([[0.3, 0.3], [0.5, 0.9]]).log(), f64([[1, 1], [1, 0]])
    close(probability_reward(given, alone, mask), f64([0.4, 0.0]))
    close(probability_reward(given, alone, mask, f64([1.0, 0.0])), f64([0.46, 0.0]))


def test_small_shapings() -> None:
    close(consistency_scaled_reward(f64([1.0, 1.0, 0]), f64([1.0, 0, 1]), f64([1.0, 1, 0])), f64([2.0, 1.5, 0]))
    close(novelty_reward(f64([1, 4])), f64([1, 0.25]))
    mask = f64([[1, 1, 0], [1, 1, 1]])
    close(process_reward(f64([[-1, -2, math.nan]]), f64([[-2, -2, 0]]), mask[:1], 0.05), f64([[0.05, 0, 0]]))


def test_repeated_n_grams_are_paid_for_and_two_copies_share_their_rewards() -> None:
    tokens = torch.tensor([[1, 2, 3, 1, 2, 3, 9], [1, 1, 1, 1, 1, 1, 1], [1, 2, 0, 0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0]])
    close(repetition_penalty(tokens, mask).double(), f64([-0.25, -0.8, 0]), 1e-6)  # 3 of 4, 1 of 5 are distinct
    close(shared_reward(f64([1.0, 0.5]), f64([0.25, 0])), f64([1.25, 0.5]))


def test_an_outcome_lies_at_the_last_token_and_kl_at_each() -> None:
    mask = f64([[1, 0, 1, 0], [1, 0, 0, 0]])
    rewards = outcome_rewards(f64([2.0, 3.0]), mask)
    assert rewards.tolist() == [[0, 0, 2, 0], [3, 0, 0, 0]]
    penalised = kl_penalised_rewards(rewards, f64([[0.1, 9, 0.2, 9], [0.5, 9, 9, 9]]), mask, 0.5)
    close(penalised, f64([[-0.05, 0, 1.9, 0], [2.75, 0, 0, 0]]))
    close(token_returns(penalised, mask)[0, 0], f64(1.85))
    with pytest.raises(ConfigError, match="row 1 keeps no unit"):
        outcome_rewards(f64([1.0, 1.0]), f64([[1, 0], [0, 0]]))


# -- coefficients --------------------------------------------------------------------------------------------


def test_the_kl_coefficient_moves_by_at_most_a_fifth_of_its_horizon() -> None:
    assert float(pg.adaptive_kl(f64(0.1), f64(0.3), 0.1, 100, 10)) == pytest.approx(0.1 * 1.02)
    assert float(pg.adaptive_kl(f64(0.1), f64(0.11), 0.1, 100, 10)) == pytest.approx(0.1 * 1.01)
    assert float(pg.adaptive_kl(f64(0.1), f64(0.0), 0.1, 100, 10)) == pytest.approx(0.1 * 0.98)


def test_the_entropy_bonus_applies_only_below_its_target() -> None:
    kept, applied = pg.adaptive_entropy(f64(0.01), f64(0.1), 0.2, 0.005)
    assert (float(kept), float(applied)) == pytest.approx((0.015, 0.015))
    kept, applied = pg.adaptive_entropy(f64(0.01), f64(0.3), 0.2, 0.005)
    assert (float(kept), float(applied)) == pytest.approx((0.005, 0.0))


def test_qerls_noise_is_nothing_first_and_then_falls_geometrically() -> None:
    found = [pg.annealed_noise(k, 10) for k in range(10)]
    assert found[0] == 0
    assert found[1] == 1e-2
    assert found[9] == pytest.approx(1e-4)
    ratios = [b / a for a, b in itertools.pairwise(found[1:])]
    assert ratios == pytest.approx([1e-2 ** (1 / 8)] * 8)
    with pytest.raises(ConfigError, match="stage 10 of 10"):
        pg.annealed_noise(10, 10)
