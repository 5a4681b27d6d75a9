"""Surrogates and regressions for sequences of tokens: golden values, closed forms and what they share with control."""

from __future__ import annotations

import math

import pytest
import torch
from capture_guard import CaptureGuard
from torch import Tensor

from surefoot.core import policy_gradient as pg
from surefoot.core import ratios
from surefoot.core.distributions import gaussian_log_density
from surefoot.core.masked import reduce, sequence_mask
from surefoot.online import dppo, natural_gradient, ppo, reinflow


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def batch(rows: int = 4, units: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of two policies that are near each other, and a mask of unequal lengths."""
    source = torch.Generator().manual_seed(seed)
    near = -torch.rand(rows, units, generator=source, dtype=torch.float64)
    new = near + 0.3 * torch.randn(rows, units, generator=source, dtype=torch.float64)
    lengths = torch.randint(1, units + 1, (rows, 1), generator=source)
    return new.requires_grad_(), near, (torch.arange(units) < lengths).double()


# -- surrogates --------------------------------------------------------------------------------------------


def test_one_bound_may_be_a_number_and_the_other_one_for_each_row() -> None:
    ratios = f64([[0.5, 0.9, 2.0], [0.5, 0.9, 2.0]])
    bounds, wanted = f64([[0.2], [0.4]]), f64([[0.8, 0.9, 1.3], [0.6, 0.9, 1.3]])
    terms, clipped = pg.clip_surrogate(ratios.log(), -torch.ones(2, 1), bounds, 0.3)
    close(terms, torch.maximum(wanted, ratios))
    assert clipped.tolist() == [[True, False, True]] * 2
    terms, clipped = pg.clip_surrogate(ratios.log(), torch.ones(2, 1), 0.2, bounds)
    close(terms, -torch.minimum(f64([[0.8, 0.9, 1.2], [0.8, 0.9, 1.4]]), ratios))
    assert clipped.tolist() == [[True, False, True]] * 2


def test_no_surrogate_copies_a_number_from_the_host() -> None:
    logs, log_prob, advantages = (torch.empty(4, 5, device="meta") for _ in range(3))
    bounds = torch.empty(4, 1, device="meta")
    with CaptureGuard() as guard:
        for low, high in ((0.2, None), (0.2, bounds), (bounds, 0.3), (bounds, bounds)):
            pg.clip_surrogate(logs, advantages, low, high, dual=3.0)
        pg.cispo_surrogate(logs, log_prob, advantages, 2.0)
        pg.spo_surrogate(logs, advantages, 0.2)
        pg.sapo_surrogate(logs, advantages)
        pg.vespo_surrogate(logs[:, :1], log_prob, advantages)
        pg.stage_clip(5, 0.01, 0.1, 3.0, logs.device)
        pg.stage_weights(5, 0.9, logs.device)
    assert guard.count > 30


def test_sapos_gate_has_the_published_values_and_slope_one() -> None:
    rho = f64([1e-9, 0.5, 1, 2])
    up = -pg.sapo_surrogate(rho.log(), f64(1.0))
    down = pg.sapo_surrogate(rho.log(), f64(-1.0))
    close(up, f64([1.075766, 1.510163, 2, 2.924234]), 1e-6)
    close(down, f64([0.987524, 1.415938, 1.904762, 2.822000]), 1e-6)
    for advantage in (1.0, -1.0):
        log = f64(0.0).requires_grad_()
        pg.sapo_surrogate(log, f64(advantage)).backward()
        close(log.grad, f64(-advantage))


def test_vespos_weight_has_the_published_values_and_peaks_at_k_over_lambda() -> None:
    logs = f64([0.25, 0.5, 1, 2, 4]).log()
    close(pg.vespo_weight(logs, f64(2), f64(3)), f64([0.592983, 1.120422, 1, 0.199148, 0.001975]), 1e-6)
    close(pg.vespo_weight(logs, f64(3), f64(2)), f64([0.070026, 0.339785, 1, 1.082682, 0.158640]), 1e-6)
    peaks = pg.vespo_weight(f64([2 / 3, 1.5]).log(), f64([2, 3]), f64([3, 2]))
    close(peaks, f64([1.208125, 1.241593]), 1e-6)
    assert pg.vespo_weight(f64([-1e9, 1e9]), f64(2), f64(3)).isfinite().all()


def test_vespo_weighs_each_tokens_gradient_by_the_ratio_of_the_whole_sequence() -> None:
    new, near, mask = batch()
    advantages = f64([[1.0], [-1.0], [0.5], [-2.0]])
    logs = pg.log_ratio(new, near, mask, "chain")
    terms = pg.vespo_surrogate(logs, new, advantages, mask=mask)
    found = torch.autograd.grad(reduce(terms, mask), new)[0]
    for row in range(4):
        weight = math.exp(float(((new - near) * mask).sum(-1)[row].detach()))
        k, lam = (2, 3) if advantages[row] >= 0 else (3, 2)
        phi = weight**k * math.exp(lam * (1 - weight))
        close(found[row], -phi * advantages[row] * mask[row] / mask.sum(), 1e-9)


def test_at_ratio_one_all_surrogates_have_the_same_gradient() -> None:
    new, _, mask = batch(3, 4)
    near, advantages = new.detach().clone(), f64([[1.0], [-0.5], [2.0]])
    logs, chain = pg.log_ratio(new, near, mask), pg.log_ratio(new, near, mask, "chain")
    expected = torch.autograd.grad(reduce(pg.reinforce_surrogate(new, advantages, None, mask), mask), new)[0]
    for terms in (
        pg.clip_surrogate(logs, advantages, 0.2, 0.28, 3.0, mask)[0],
        pg.cispo_surrogate(logs, new, advantages, 5.0, mask)[0],
        pg.sapo_surrogate(logs, advantages, mask=mask),
        pg.vespo_surrogate(chain, new, advantages, mask=mask),
        pg.clip_surrogate(pg.sequence_log_ratio_of_units(new, near, mask), advantages, 0.2, mask=mask)[0],
    ):
        close(torch.autograd.grad(reduce(terms, mask), new, retain_graph=True)[0], expected)


# -- ratios ------------------------------------------------------------------------------------------------


def test_gspo_token_has_the_value_of_the_sequence_ratio_and_its_gradient_where_advantages_are_equal() -> None:
    new, near, mask = batch(seed=3)
    advantages = f64([[1.0], [-1.0], [0.5], [-2.0]])
    units = pg.sequence_log_ratio_of_units(new, near, mask)
    whole = pg.log_ratio(new, near, mask, "sequence")
    close(units, whole.expand_as(units) * mask)
    one = reduce(pg.clip_surrogate(units, advantages, 0.1, mask=mask)[0], mask, "sequence_mean")
    other = reduce(pg.clip_surrogate(whole, advantages, 0.1)[0], None, "sequence_mean")
    close(one, other)
    close(torch.autograd.grad(one, new)[0], torch.autograd.grad(other, new)[0])


def test_messages_have_one_ratio_each_and_a_single_message_is_the_chain() -> None:
    new, near, mask = batch()
    turns = torch.tensor([0, 0, 1, 1, 2]).expand(4, 5)
    logs, there = pg.message_log_ratio(new, near, turns, 3, mask)
    difference = (new - near) * mask
    close(logs, torch.stack([difference[:, :2].sum(1), difference[:, 2:4].sum(1), difference[:, 4]], 1))
    assert torch.equal(there, torch.stack([mask[:, :2].amax(1), mask[:, 2:4].amax(1), mask[:, 4]], 1))
    close(pg.message_log_ratio(new, near, torch.zeros_like(turns), 1, mask)[0], pg.log_ratio(new, near, mask, "chain"))


def test_the_geometric_mean_accepts_or_rejects_whole_sequences() -> None:
    near, acted = f64([[0.0, 0.0], [0.0, 0.0], [0.0, 9.0]]), f64([[1e-4, -1e-4], [0.1, 0.1], [1e-4, 0.0]])
    accepts = pg.behaviour_accepts(near, acted, f64([[1, 1], [1, 1], [1, 0]]))
    assert accepts.tolist() == [[1], [0], [1]]


def test_weights_of_the_same_policy_are_one_and_their_effective_share_is_whole() -> None:
    _, near, mask = batch()
    same = pg.weight_metrics(near, near, mask)
    assert {name: float(value) for name, value in same.items()} == {
        "gap_mean": 0,
        "gap_max": 0,
        "effective_share": 1,
        "cut_fraction": 0,
        "behaviour_kl": 0,
    }
    weights = pg.weight_metrics(f64([0.0, math.log(3)]), f64([0.0, 0.0]))  # weights 1 and 3: 16 / (2 * 10)
    assert float(weights["effective_share"]) == pytest.approx(0.8)
    assert float(weights["cut_fraction"]) == 0.5


def test_a_weight_without_bound_is_unbiased_on_answers_of_one_token() -> None:
    logits, acted = f64([0.2, -0.4, 1.0]).requires_grad_(), f64([0.5, 0.3, -0.2]).log_softmax(0)
    rewards, log_prob = f64([1.0, 0.0, -0.5]), logits.log_softmax(0)
    weights = pg.behaviour_weight(log_prob.detach(), acted, high=math.inf)
    terms = pg.reinforce_surrogate(log_prob, rewards, weights)
    found = torch.autograd.grad((acted.exp() * terms).sum(), logits, retain_graph=True)[0]
    close(found, -torch.autograd.grad((log_prob.exp() * rewards).sum(), logits)[0])


def test_ratios_to_the_sampler_itself_equal_the_decoupled_form_where_it_is_the_proximal_policy() -> None:
    new, near, mask = batch()
    advantages = f64([[1.0], [-1.0], [0.5], [-2.0]])
    decoupled = (
        pg.behaviour_weight(near, near, mask)
        * pg.clip_surrogate(pg.log_ratio(new, near, mask), advantages, 0.2, mask=mask)[0]
    )
    bypass = pg.clip_surrogate(pg.log_ratio(new, near, mask), advantages, 0.2, mask=mask)[0]
    close(decoupled, bypass)


# -- one function for control, denoising and text ------------------------------------------------------------


def test_a_control_step_a_chain_and_a_token_get_bit_equal_terms() -> None:
    source = torch.Generator().manual_seed(4)
    new, near, advantages = torch.randn(3, 64, generator=source)
    control = pg.clip_surrogate(pg.log_ratio(new, near), advantages, 0.2)[0]  # (B,), as PPO
    token = pg.clip_surrogate(
        pg.log_ratio(new[:, None], near[:, None], torch.ones(64, 1)), advantages[:, None], 0.2, mask=torch.ones(64, 1)
    )[0]
    chain = pg.clip_surrogate(pg.log_ratio(new[:, None], near[:, None], None, "chain"), advantages[:, None], 0.2)[0]
    assert torch.equal(control, token[:, 0])
    assert torch.equal(control, chain[:, 0])
    for module in (dppo, natural_gradient, ppo, reinflow):  # and no algorithm has a surrogate of its own
        assert module.clip_surrogate is pg.clip_surrogate
    for module in (dppo, natural_gradient, ppo):
        assert module.log_ratio is pg.log_ratio
    assert reinflow.limited_log_ratio is ratios.limited_log_ratio  # which asks the same log_ratio


def test_a_chain_of_one_step_of_fixed_noise_is_gaussian_ppo_and_what_both_share_cancels() -> None:
    source = torch.Generator().manual_seed(5)
    place, mean, other, start = torch.randn(4, 16, 3, generator=source, dtype=torch.float64)
    log_std = torch.full((16, 3), -0.5, dtype=torch.float64)
    new, near = gaussian_log_density(place, mean, log_std), gaussian_log_density(place, other, log_std)
    prior = gaussian_log_density(start, torch.zeros_like(start), torch.zeros_like(start))
    whole = pg.log_ratio(torch.stack([prior, new], 1), torch.stack([prior, near], 1), None, "chain")
    close(whole[:, 0], pg.log_ratio(new, near))


# -- regressions ---------------------------------------------------------------------------------------------


def test_the_optimal_value_lies_between_the_mean_and_the_best() -> None:
    rewards = f64([1, 0, 0, 1, math.nan, 5.0])
    values = pg.optimal_value(rewards[:4], 4)
    close(values, f64([math.log((2 * math.e + 2) / 4)] * 4))
    close(pg.optimal_value(rewards[:4], 4, 1e6), f64([0.5] * 4), 1e-5)
    close(pg.optimal_value(rewards[:4], 4, 1e-3), f64([1 - 1e-3 * math.log(2)] * 4), 1e-9)
    close(pg.optimal_value(rewards[4:], 2), f64([5.0, 5.0]))


def test_oapl_is_reinforce_with_the_optimal_value_at_the_policy_that_acted_and_zero_at_the_optimum() -> None:
    new, near, mask = batch()
    rewards = f64([1, 0, 0, 1])
    values = pg.optimal_value(rewards, 4)
    same = near.clone().requires_grad_()
    loss = pg.optimal_advantage_terms(same, near, rewards, values, mask, 1e-2).sum()
    close(torch.autograd.grad(loss, same)[0], -2 * 1e-2 * (rewards - values)[:, None] * mask)
    byhand = (1e-2 * ((new - near) * mask).sum(1) - (rewards - values)).square()
    close(pg.optimal_advantage_terms(new, near, rewards, values, mask, 1e-2)[:, 0], byhand)
    # a bandit: at pi* = mu exp(R / b) / Z with the exact V* = b log Z the loss of every arm is zero
    acted, paid, b = f64([0.2, 0.5, 0.3]).log(), f64([1.0, 0.4, -0.3]), 0.7
    normaliser = (acted + paid / b).logsumexp(0)
    best = acted + paid / b - normaliser
    terms = pg.optimal_advantage_terms(best[:, None], acted[:, None], paid, (b * normaliser).expand(3), scale=b)
    close(terms, torch.zeros(3, 1, dtype=torch.float64))


def test_direct_advantage_pulls_the_log_ratio_of_a_step_to_its_scaled_advantage() -> None:
    new, reference = f64([[-1.0, -2.0]]).requires_grad_(), f64([[-1.5, -2.0]])
    terms = pg.direct_advantage_terms(new, reference, f64([[0.2, 0.3]]), None, 0.5)
    close(terms, f64([[0.5 * 0.1**2, 0.5 * 0.6**2]]))
    close(torch.autograd.grad(terms.sum(), new)[0], f64([[0.1, -0.6]]))


def test_pacs_starts_at_logit_zero_and_weighs_classes_equally() -> None:
    _, near, mask = batch(8)
    same = near.clone().requires_grad_()
    right = f64([1, 0, 0, 0, 1, 1, 1, 1])
    terms = pg.classification_terms(same, near, right, 4, mask)
    weights = f64([2, 2 / 3, 2 / 3, 2 / 3, 1, 1, 1, 1])  # n / (2 n_class); one class alone: 1
    close(terms[:, 0], weights * math.log(2))
    slope = weights * (0.5 - right)  # of each term by its logit; the logit is z minus the mean of the group's others
    group = slope.view(2, 4)
    by_z = (group - (group.sum(1, keepdim=True) - group) / 3).view(8, 1)
    close(torch.autograd.grad(terms.sum(), same)[0], by_z * mask)


def test_rrhf_pays_for_each_pair_in_the_wrong_order_and_for_the_best_answers_likelihood() -> None:
    log_prob = f64([[-1.0, -1.0], [-3.0, math.nan], [-0.5, -0.1]]).requires_grad_()
    mask, rewards = f64([[1, 1], [1, 0], [1, 1]]), f64([1.0, 0.5, 0.2])
    terms = pg.ranking_terms(log_prob, rewards, 3, mask)  # p: -1, -3, -0.3; the last lies above both better ones
    close(terms[:, 0], f64([2.0, 0.0, 0.7 + 2.7]))
    gradient = torch.autograd.grad(terms.sum(), log_prob)[0]
    close(gradient, f64([[-1 - 0.5, -1 - 0.5], [-1, 0], [1, 1]]))


def test_likelihood_weights_of_rewards_and_of_distributions() -> None:
    close(pg.reward_weights(f64([0.0, 1.0, math.nan, 100.0]), 0.5), f64([1, math.exp(2), 0, 20]))
    target, q = f64([math.log(0.2), -math.inf, math.log(0.4)]), f64([0.5, 0.25, 0.25]).log()
    log_z = math.log(0.6)
    weights = pg.distribution_weights(target, q, log_z)
    close(q.exp() * weights, f64([1 / 3, 0, 2 / 3]))  # expectations under q are those of P / Z
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    terms = pg.reinforce_surrogate(logits.log_softmax(0), weights)
    gradient = torch.autograd.grad((q.exp() * terms).sum(), logits)[0]
    close(gradient, logits.softmax(0).detach() - f64([1 / 3, 0, 2 / 3]))  # of the cross-entropy to P / Z


# -- reductions ----------------------------------------------------------------------------------------------


def test_length_weighted_is_each_sequences_term_times_its_length() -> None:
    mask = f64([[1, 1, 1], [1, 0, 0]])
    assert float(reduce(f64([[2.0], [5.0]]), mask, "length_weighted")) == (3 * 2 + 5) / 2
    assert float(reduce(f64([[2.0], [5.0]]), mask, "length_weighted", denominator=4)) == (3 * 2 + 5) / 4


def test_on_one_sequence_all_modes_agree_but_the_sums_which_are_its_length_times_the_mean() -> None:
    terms, mask = torch.arange(4.0).double()[None], torch.ones(1, 4, dtype=torch.float64)
    means = [float(reduce(terms, mask, mode, length=4)) for mode in ("mean", "sequence_mean", "fixed_length")]
    assert means == [1.5] * 3
    assert float(reduce(terms, mask, "token_sum")) == 6.0


@pytest.mark.parametrize("mode", ["mean", "sequence_mean", "token_sum", "fixed_length", "length_weighted"])
def test_parts_of_a_batch_add_up_with_the_denominator_of_the_whole_and_copies_change_nothing(mode: str) -> None:
    new, _, mask = batch(6, seed=7)
    terms = new.detach() if mode != "length_weighted" else new.detach()[:, :1]
    whole = float(reduce(terms, mask, mode, length=5))
    denominator = mask.sum() if mode == "mean" else sequence_mask(mask).sum()
    parts = [reduce(terms[k : k + 2], mask[k : k + 2], mode, length=5, denominator=denominator) for k in (0, 2, 4)]
    assert float(sum(parts)) == pytest.approx(whole, abs=1e-12)
    twice = reduce(torch.cat([terms, terms]), torch.cat([mask, mask]), mode, length=5)
    assert float(twice) == pytest.approx(whole, abs=1e-12)
