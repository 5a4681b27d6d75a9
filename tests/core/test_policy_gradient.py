"""The policy-gradient core against numbers worked out by hand and identities (docs/policy_gradient.md)."""

from __future__ import annotations

import math

import pytest
import torch
from gradient_numbers import ADVANTAGES, NEAR, NEW, f64
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from surefoot.core.losses import distributions as d
from surefoot.core.losses import policy_gradient as pg
from surefoot.core.losses.masked import reduce, sequence_mask

# -- golden values -----------------------------------------------------------------------------------------


def test_ppo_gives_the_terms_loss_divergences_and_clip_fraction_worked_out_by_hand() -> None:
    logs = pg.log_ratio(NEW, NEAR)
    terms, clipped = pg.clip_surrogate(logs, ADVANTAGES, 0.2)
    torch.testing.assert_close(terms, f64([-1.2, 1.2, 0.4, -2]))
    assert float(reduce(terms)) == pytest.approx(-0.4, abs=1e-12)
    metrics = pg.ratio_metrics(logs, clipped)
    assert float(metrics["kl_k1"]) == pytest.approx(0.02634013, abs=1e-8)
    assert float(metrics["kl_k3"]) == pytest.approx(0.07634013, abs=1e-8)
    assert float(metrics["ratio_max"]) == pytest.approx(1.5)
    inside = logs - f64([0, 1e-9, 0, 0])  # the ratio of 1.2 lies on the edge
    metrics = pg.ratio_metrics(inside, pg.clip_surrogate(inside, ADVANTAGES, 0.2)[1])
    assert float(metrics["clip_fraction"]) == 0.5


def test_group_advantages_are_those_worked_out_by_hand() -> None:
    rewards = f64([1, 0, 0, 1, 0, 0, 0, 1])
    scaled = pg.group_baseline(rewards, 4, "meanstd")
    high, low = 0.86587543, 0.49990002
    torch.testing.assert_close(scaled, f64([high, -high, -high, high, -low, -low, -low, 1.49970006]), atol=1e-8, rtol=0)
    out = pg.group_baseline(rewards, 4, "loo")
    torch.testing.assert_close(out, f64([2 / 3, -2 / 3, -2 / 3, 2 / 3, -1 / 3, -1 / 3, -1 / 3, 1]))
    torch.testing.assert_close(pg.group_baseline(rewards, 4, "none"), rewards)
    torch.testing.assert_close(
        pg.group_baseline(rewards, 4, "mean"), f64([0.5, -0.5, -0.5, 0.5, -0.25, -0.25, -0.25, 0.75])
    )


def test_reductions_of_two_unequal_sequences_are_those_worked_out_by_hand() -> None:
    terms, mask = f64([[1, 2, 3, math.nan], [4, math.inf, math.nan, 7]]), f64([[1, 1, 1, 0], [1, 0, 0, 0]])
    assert float(reduce(terms, mask, "sequence_mean")) == 3.0
    assert float(reduce(terms, mask, "mean")) == 2.5
    assert float(reduce(terms, mask, "fixed_length", length=4)) == 1.25
    assert float(reduce(terms, mask, "token_sum")) == 5.0
    assert float(reduce(terms, mask, "mean", denominator=8)) == 1.25
    assert float(reduce(terms, mask, "token_sum", denominator=4)) == 2.5


@pytest.mark.parametrize("mode", ["mean", "sequence_mean", "token_sum", "fixed_length"])
def test_a_batch_with_nothing_kept_reduces_to_zero(mode: str) -> None:
    terms = torch.full((2, 3), math.nan)
    assert float(reduce(terms, torch.zeros(2, 3), mode, length=3)) == 0


def test_the_tanh_gaussian_density_is_exact_far_out() -> None:
    mean, log_std, u = f64([0.2]), f64([0.7]).log(), f64([0.5])
    assert float(d.gaussian_log_density(u, mean, log_std)) == pytest.approx(-0.65410032, abs=1e-8)
    assert float(d.tanh_gaussian_log_density(u, mean, log_std)) == pytest.approx(-0.41387131, abs=1e-8)
    assert float(d.tanh_log_determinant(f64([10.0]))) == pytest.approx(-18.61370564, abs=1e-8)


# -- ratios and clips --------------------------------------------------------------------------------------


def test_levels_of_a_ratio_are_units_their_product_and_its_root() -> None:
    new, near = f64([[-1.0, -2.0, math.nan], [-0.5, -0.1, -0.3]]), f64([[-1.5, -1.0, 0.0], [-0.5, -0.4, -0.9]])
    mask = f64([[1, 1, 0], [1, 1, 1]])
    units = pg.log_ratio(new, near, mask)
    torch.testing.assert_close(units, f64([[0.5, -1, 0], [0, 0.3, 0.6]]))
    chain = pg.log_ratio(new, near, mask, "chain")
    torch.testing.assert_close(chain, f64([[-0.5], [0.9]]))
    torch.testing.assert_close(pg.ratio(chain)[:, 0], (pg.ratio(units) * mask + (1 - mask)).prod(-1))
    torch.testing.assert_close(pg.log_ratio(new, near, mask, "sequence"), f64([[-0.25], [0.3]]))
    torch.testing.assert_close(sequence_mask(f64([[0, 0], [0, 1]])), f64([[0], [1]]))


def test_ratios_of_impossible_actions_stay_finite() -> None:
    assert pg.ratio(torch.tensor([1e9, -1e9, math.inf])).isfinite().all()


@pytest.mark.parametrize(
    ("advantage", "rho", "moves"),
    [(1, 1.5, False), (1, 0.5, True), (-1, 0.5, False), (-1, 1.5, True), (1, 1.1, True), (-1, 0.9, True)],
)
def test_the_clip_stops_the_gradient_only_where_the_ratio_has_gone_the_advantages_way(
    advantage: float, rho: float, moves: bool
) -> None:
    logs = f64([rho]).log().requires_grad_()
    terms, _ = pg.clip_surrogate(logs, f64([advantage]), 0.2)
    (gradient,) = torch.autograd.grad(terms.sum(), logs)
    assert float(gradient) == pytest.approx(-advantage * rho if moves else 0)


def test_clip_higher_moves_the_upper_bound_alone() -> None:
    logs = f64([0.75, 0.85, 1.25, 1.45]).log()
    up = pg.clip_surrogate(logs, torch.ones(4), 0.2, 0.4)[0]
    torch.testing.assert_close(up, f64([-0.75, -0.85, -1.25, -1.4]))
    down = pg.clip_surrogate(logs, -torch.ones(4), 0.2, 0.4)[0]
    torch.testing.assert_close(down, f64([0.8, 0.85, 1.25, 1.45]))


@given(st.floats(-3, 3), st.floats(-2, 2))
def test_the_dual_clip_is_a_ratio_cut_from_above_where_the_advantage_is_negative(log: float, advantage: float) -> None:
    logs, advantages = f64([log]), f64([advantage])
    dual = pg.clip_surrogate(logs, advantages, 0.2, 0.3, dual=3.0)[0]
    cut = pg.clip_surrogate(logs.clamp(max=math.log(3)) if advantage < 0 else logs, advantages, 0.2, 0.3)[0]
    torch.testing.assert_close(dual, cut)


def test_bounds_may_differ_from_one_denoising_step_to_the_next() -> None:
    bounds = pg.stage_clip(3, 0.1, 0.3, 3.0).double()
    terms, clipped = pg.clip_surrogate(f64([[1.2, 1.2, 1.2]]).log(), f64([[1.0]]), bounds)
    middle = 0.1 + 0.2 * (math.exp(1.5) - 1) / (math.exp(3) - 1)
    torch.testing.assert_close(bounds, f64([0.1, middle, 0.3]), atol=1e-7, rtol=0)
    torch.testing.assert_close(terms, f64([[-1.1, -1 - middle, -1.2]]), atol=1e-7, rtol=0)
    assert clipped.tolist() == [[True, True, False]]


def test_cispo_keeps_every_gradient_and_bounds_its_weight() -> None:
    log_prob = NEW.clone().requires_grad_()
    terms, clipped = pg.cispo_surrogate(pg.log_ratio(log_prob, NEAR), log_prob, ADVANTAGES, 1.3)
    (gradient,) = torch.autograd.grad(terms.sum(), log_prob)
    torch.testing.assert_close(gradient, -f64([1.3, 1.2, 0.5, 1.0]) * ADVANTAGES)
    assert clipped.tolist() == [True, False, False, False]


def test_at_ratio_one_every_surrogate_has_the_gradient_of_reinforce() -> None:
    expected = -ADVANTAGES

    def gradient(terms_of: object) -> Tensor:
        log_prob = NEAR.clone().requires_grad_()
        return torch.autograd.grad(terms_of(log_prob).sum(), log_prob)[0]  # type: ignore[operator]

    for terms_of in (
        lambda new: pg.reinforce_surrogate(new, ADVANTAGES),
        lambda new: pg.clip_surrogate(pg.log_ratio(new, NEAR), ADVANTAGES, None)[0],
        lambda new: pg.clip_surrogate(pg.log_ratio(new, NEAR), ADVANTAGES, 0.2)[0],
        lambda new: pg.clip_surrogate(pg.log_ratio(new, NEAR), ADVANTAGES, 0.2, 0.3, 3.0)[0],
        lambda new: pg.cispo_surrogate(pg.log_ratio(new, NEAR), new, ADVANTAGES, 2.0)[0],
    ):
        torch.testing.assert_close(gradient(terms_of), expected)
    metrics = pg.ratio_metrics(torch.zeros(4), torch.zeros(4, dtype=torch.bool))
    assert [float(metrics[k]) for k in ("kl_k1", "kl_k3", "clip_fraction", "ratio_max")] == [0, 0, 0, 1]


def test_no_gradient_reaches_advantages_weights_or_the_policies_of_the_past() -> None:
    given_ = [torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(5)]
    log_prob, proximal, behaviour, advantages, anchor = given_
    weights = pg.behaviour_weight(proximal, behaviour)
    loss = pg.clip_surrogate(pg.log_ratio(log_prob, proximal), advantages)[0].sum()
    loss = loss + pg.reinforce_surrogate(log_prob, advantages * anchor, weights).sum()
    gradients = torch.autograd.grad(loss, given_, allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1:] == (None, None, None, None)


def test_behaviour_weights_are_cut_or_rejected() -> None:
    proximal, behaviour = f64([[0.0, 1.0, -3.0, math.nan]]), f64([[0.0, 0.0, 0.0, 0.0]])
    mask = f64([[1, 1, 1, 0]])
    torch.testing.assert_close(pg.behaviour_weight(proximal, behaviour, mask), f64([[1, 2, math.exp(-3), 0]]))
    rejected = pg.behaviour_weight(proximal, behaviour, mask, low=0.5, high=2.0, reject=True)
    torch.testing.assert_close(rejected, f64([[1, 0, 0, 0]]))
    whole = pg.behaviour_weight(proximal, behaviour, mask, "chain")
    torch.testing.assert_close(whole, f64([[math.exp(-2)]]))


# -- divergences, by enumeration over a small categorical --------------------------------------------------


def test_the_estimators_and_their_gradients_are_what_the_docs_say() -> None:
    logits = f64([0.3, -0.8, 1.1, 0.0]).requires_grad_()
    reference = torch.log_softmax(f64([-0.2, 0.4, 0.1, 0.9]), -1)
    log_prob = torch.log_softmax(logits, -1)
    probability = log_prob.exp().detach()
    divergence = d.kl_categorical(logits, reference)
    of_divergence = torch.autograd.grad(divergence, logits, retain_graph=True)[0]
    forward = torch.autograd.grad(d.kl_categorical(reference, logits), logits, retain_graph=True)[0]

    def expectation(terms: Tensor) -> tuple[float, Tensor]:
        total = (probability * terms).sum()
        return float(total.detach()), torch.autograd.grad(total, logits, retain_graph=True)[0]

    value, gradient = expectation(pg.kl_k1(log_prob, reference))
    assert value == pytest.approx(float(divergence.detach()), abs=1e-14)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-14, rtol=0)
    torch.testing.assert_close(expectation(pg.kl_k2(log_prob, reference))[1], of_divergence)
    value, gradient = expectation(pg.kl_k3(log_prob, reference))
    assert value == pytest.approx(float(divergence.detach()), abs=1e-14)
    torch.testing.assert_close(gradient, forward)
    corrected = pg.ratio(pg.log_ratio(log_prob, log_prob)) * pg.kl_k3(log_prob, reference)
    torch.testing.assert_close(expectation(corrected)[1], of_divergence)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_k3_is_never_negative(differences: list[float]) -> None:
    terms = pg.kl_k3(f64(differences), torch.zeros(len(differences), dtype=torch.float64))
    assert bool((terms >= 0).all())
    small = 1e-3 * f64(differences)
    torch.testing.assert_close(pg.kl_k3(small, small * 0), pg.kl_k2(small, small * 0), atol=1e-7, rtol=0)


def test_the_gaussian_divergence_and_entropies_are_torchs() -> None:
    torch.manual_seed(1)
    mean, other = torch.randn(2, 7, 3, dtype=torch.float64)
    log_std, other_std = 0.5 * torch.randn(2, 7, 3, dtype=torch.float64)
    first = torch.distributions.Normal(mean, log_std.exp())
    second = torch.distributions.Normal(other, other_std.exp())
    expected = torch.distributions.kl_divergence(first, second).sum(-1)
    torch.testing.assert_close(d.kl_gaussian(mean, log_std, other, other_std), expected)
    torch.testing.assert_close(d.gaussian_entropy(log_std), first.entropy().sum(-1))
    categories = torch.distributions.Categorical(logits=mean)
    torch.testing.assert_close(d.categorical_entropy(mean), categories.entropy())
    actions = torch.randint(0, 3, (7,))
    torch.testing.assert_close(d.categorical_log_prob(mean, actions), categories.log_prob(actions))


def test_at_the_same_policy_the_exact_divergences_and_their_gradients_vanish() -> None:
    mean, log_std = (0.1 * torch.randn(5, 2, dtype=torch.float64)).requires_grad_(), f64([0.1, -0.3]).requires_grad_()
    divergence = d.kl_gaussian(mean, log_std, mean.detach(), log_std.detach()).sum()
    assert float(divergence) == pytest.approx(0, abs=1e-15)
    for gradient in torch.autograd.grad(divergence, (mean, log_std)):
        assert float(gradient.abs().max()) < 1e-15


def test_actions_that_are_ruled_out_leave_entropy_divergence_and_gradients_finite() -> None:
    logits = f64([0.0, -math.inf, 0.0]).requires_grad_()
    entropy = d.categorical_entropy(logits)
    assert float(entropy) == pytest.approx(math.log(2))
    assert float(d.kl_categorical(logits, logits)) == 0
    assert torch.autograd.grad(entropy, logits)[0].isfinite().all()
