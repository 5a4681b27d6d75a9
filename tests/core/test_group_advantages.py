"""Advantages without a critic and along token sequences, against enumeration and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses import policy_gradient as pg


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("size", "mode", "fraction"), [(2, "loo", 1), (3, "loo", 1), (2, "mean", 1 / 2), (3, "mean", 2 / 3)]
)
def test_leave_one_out_is_unbiased_and_the_mean_is_so_times_a_fraction(size: int, mode: str, fraction: float) -> None:
    logits = f64([0.3, -0.2, -2.0, 0.1]).requires_grad_()
    rewards = f64([1.0, 0.2, -9.0, 0.7])
    log_prob = logits.log_softmax(0)
    truth = torch.autograd.grad((log_prob.exp() * rewards).sum(), logits, retain_graph=True)[0]

    def expected(mode: str) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for arms in itertools.product(range(4), repeat=size):
            drawn = torch.tensor(arms)
            advantages = pg.group_baseline(rewards[drawn], size, mode)
            total = total + log_prob[drawn].sum().exp().detach() * (advantages * log_prob[drawn]).mean()
        return torch.autograd.grad(total, logits, retain_graph=True)[0]

    close(expected(mode), fraction * truth)
    scaled = expected("meanstd")  # division by the deviation turns the gradient, and not only its length
    assert float(torch.cosine_similarity(scaled, truth, 0)) < 0.995


@pytest.mark.parametrize(
    ("right", "high", "low"), [(1, 2.4749, -0.3536), (2, 1.6202, -0.5401), (4, 0.9354, -0.9354), (7, 0.3536, -2.4749)]
)
def test_binary_rewards_of_eight_give_the_known_advantages(right: int, high: float, low: float) -> None:
    rewards = f64([1.0] * right + [0.0] * (8 - right))
    found = pg.group_baseline(rewards, 8, "meanstd", eps=0.0)
    close(found, f64([high] * right + [low] * (8 - right)), 1e-4)
    exact = math.sqrt((8 - right) / right) * math.sqrt(7 / 8)
    assert float(found[0]) == pytest.approx(exact, abs=1e-12)


def test_two_answers_differ_in_sign_alone_whatever_the_gap() -> None:
    for gap in (1e-3, 1.0, 1e3):
        close(pg.group_baseline(f64([gap, 0]), 2, "meanstd", eps=0.0), f64([1, -1]) / math.sqrt(2))
    assert pg.group_baseline(f64([0.3, 0.3]), 2, "meanstd", eps=0.0).nan_to_num(7).tolist() != [1, -1]


def test_lite_ppo_divides_by_the_deviation_of_all_rewards() -> None:
    rewards = f64([1, 0, 0, 0, 2, 2])  # means 1/2, 0, 2; all: mean 5/6, unbiased variance 29/30
    found = pg.group_baseline(rewards, 2, "batchstd", eps=0.0)
    close(found, f64([0.5, -0.5, 0, 0, 0, 0]) / math.sqrt(29 / 30))


def test_unscorable_rows_change_no_deviation_of_the_batch() -> None:
    rewards, groups = f64([1, 0, math.nan, 3, 3]), torch.tensor([0, 0, 0, 1, 1])
    found = pg.group_baseline(rewards, groups, "batchstd")
    assert float(found[2]) == 0
    close(found[[0, 1, 3, 4]], pg.group_baseline(f64([1, 0, 3, 3]), 2, "batchstd"))


def test_pairwise_advantages_are_signs_and_one_sided_groups_drop_out() -> None:
    better = torch.tensor([False, True, False, True, False, True, True, True])
    references = torch.tensor([True, False, False, False, True, False, False, False])
    assert pg.pairwise_baseline(better, references, 4).tolist() == [0, 1, -1, 1, 0, 0, 0, 0]  # 1/4; 3/4 > 0.6


def test_raft_takes_the_first_best_of_each_group_or_the_best_share_of_all() -> None:
    rewards = f64([0.1, 0.9, 0.9, math.nan, 0.2, 0.0, math.nan, math.nan, math.nan])
    assert pg.best_of_group(rewards, 3).tolist() == [0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert pg.top_share(rewards, 1 / 3).tolist() == [0, 1, 1, 0, 1, 0, 0, 0, 0]


def test_the_filter_drops_what_is_three_deviations_out() -> None:
    advantages = torch.cat([f64([1.0, -1.0]).repeat(50), f64([30.0])])
    found = pg.within_deviations(advantages)
    assert float(found[-1]) == 0
    mean, deviation = advantages.mean(), advantages.std()
    close(found[:2], (advantages[:2] - mean) / deviation, 1e-7)


def test_rewards_to_go_pass_a_tools_answer_without_discount() -> None:
    rewards, mask = f64([[0, math.nan, math.nan, 1, 2, math.nan]]), f64([[1, 0, 0, 1, 1, 0]])
    close(pg.token_returns(rewards, mask, 0.5), f64([[1.0, 0, 0, 2, 2, 0]]))
    close(pg.token_returns(f64([[0, 1, 2]]), None, 0.5), f64([[1.0, 2, 2]]))


def test_token_gae_with_a_trace_of_one_is_the_sum_to_come_less_the_value() -> None:
    source = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, 3, 7, generator=source, dtype=torch.float64)
    mask = f64([[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 1]])
    advantages, returns = pg.token_gae(rewards, values, mask)
    close(advantages, (pg.token_returns(rewards, mask) - values) * mask)
    close(returns, pg.token_returns(rewards, mask))


def test_masked_columns_inside_change_no_generalised_advantage() -> None:
    source = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(2, 2, 4, generator=source, dtype=torch.float64)
    plain = pg.token_gae(rewards, values, None, 0.9, 0.8)[0]
    holes, places = torch.full((2, 7), math.nan, dtype=torch.float64), [0, 2, 3, 6]
    wide_rewards, wide_values, mask = holes.clone(), holes.clone(), torch.zeros(2, 7, dtype=torch.float64)
    wide_rewards[:, places], wide_values[:, places], mask[:, places] = rewards, values, 1.0
    found = pg.token_gae(wide_rewards, wide_values, mask, 0.9, 0.8)[0]
    close(found[:, places], plain)
    deltas = rewards + 0.9 * torch.cat([values[:, 1:], torch.zeros(2, 1)], 1) - values
    byhand = [sum(0.72**k * deltas[0, t + k] for k in range(4 - t)) for t in range(4)]
    close(plain[0], torch.stack(byhand))


def test_process_rewards_are_normalised_over_the_groups_steps_and_summed_from_each_token_on() -> None:
    rewards = f64([[9, 1, 9, 3], [9, 9, 2, 9]])
    steps, mask = f64([[0, 1, 0, 1], [0, 0, 1, 0]]), f64([[1, 1, 1, 1], [1, 1, 1, 0]])
    found = pg.step_rewards_to_go(rewards, steps, 2, mask, eps=0.0)  # steps 1, 3, 2: mean 2, deviation 1
    close(found, f64([[0, 0, 1, 1], [0, 0, 0, 0]]))


def test_several_rewards_are_normalised_each_by_itself() -> None:
    rewards = torch.stack([f64([1, 0, 0, 1]), 100 * f64([0, 1, 0, 1])], -1)
    found = pg.combined_advantages(rewards, f64([1, 1]), 4)
    each = pg.group_baseline(rewards[:, 0], 4, "meanstd") + pg.group_baseline(rewards[:, 1], 4, "meanstd")
    close(found, each / each.std(), 1e-6)


def test_groups_that_do_not_divide_are_named() -> None:
    with pytest.raises(ConfigError, match="7 returns can't be split into groups of 3"):
        pg.best_of_group(torch.zeros(7), 3)
