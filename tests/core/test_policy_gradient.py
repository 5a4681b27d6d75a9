"""The policy-gradient core against numbers worked out by hand and identities (docs/policy_gradient.md)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.core import distributions as d
from surefoot.core import policy_gradient as pg
from surefoot.core.errors import ConfigError
from surefoot.core.masked import normalise, reduce, sequence_mask


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


NEW = f64([0.3, 0.6, 0.2, 0.5]).log()
NEAR = f64([0.2, 0.5, 0.4, 0.5]).log()
ADVANTAGES = f64([1, -1, -0.5, 2])


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


# -- groups ------------------------------------------------------------------------------------------------


def test_the_group_mean_baseline_is_a_fraction_of_the_unbiased_gradient() -> None:
    """Over all V^G groups of a softmax bandit: leave-one-out gives grad J, the group mean (G-1)/G of it."""
    rewards, size = f64([1.0, 0.9, -3.0]), 3
    logits = f64([1.2, -0.1, -1.0]).requires_grad_()
    arms = torch.cartesian_prod(*[torch.arange(3)] * size)  # (27, 3)
    log_prob = torch.log_softmax(logits, -1)[arms]
    weight = log_prob.sum(-1).exp().detach()
    true = torch.autograd.grad((torch.softmax(logits, -1) * rewards).sum(), logits, retain_graph=True)[0]

    def gradient(mode: str) -> Tensor:
        advantages = pg.group_baseline(rewards[arms].flatten(), size, mode).view_as(log_prob)
        loss = (weight * pg.reinforce_surrogate(log_prob, advantages).mean(-1)).sum()
        return -torch.autograd.grad(loss, logits, retain_graph=True)[0]

    torch.testing.assert_close(gradient("loo"), true, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient("mean"), true * (size - 1) / size, atol=1e-12, rtol=0)
    scaled = gradient("meanstd")
    assert float(torch.cosine_similarity(scaled, true, dim=0)) < 0.99


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=30)
def test_leave_one_out_is_the_mean_baseline_times_k_over_k_minus_1(size: int, groups: int, seed: int) -> None:
    rewards = torch.randn(size * groups, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = torch.randperm(size * groups, generator=torch.Generator().manual_seed(seed))
    ids = 10**12 + torch.arange(size * groups) // size
    centred = pg.group_baseline(rewards, size, "mean")
    torch.testing.assert_close(pg.group_baseline(rewards, size, "loo"), centred * size / (size - 1))
    for mode in ("mean", "meanstd", "loo"):
        there = pg.group_baseline(rewards, size, mode)
        torch.testing.assert_close(pg.group_baseline(rewards[order], ids[order], mode), there[order])
        torch.testing.assert_close(pg.group_baseline(rewards + 5, size, mode), there)
        torch.testing.assert_close(there.view(groups, size).sum(-1), torch.zeros(groups, dtype=torch.float64))


@pytest.mark.parametrize("mode", ["mean", "meanstd", "loo"])
def test_equal_single_and_unscorable_samples_get_exactly_nothing(mode: str) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 7.0, math.nan, 1.0, 0.0])
    groups = torch.tensor([0, 0, 0, 1, 2, 2, 2])
    advantages = pg.group_baseline(rewards, groups, mode)
    assert advantages[:5].tolist() == [0] * 5
    torch.testing.assert_close(advantages[5:], pg.group_baseline(torch.tensor([1.0, 0.0]), 2, mode))


def best_arms_share(baseline: str, sign: float) -> float:
    """How likely the best of five arms is after 200 updates, two on each batch of eight groups of eight draws."""
    source, rewards = torch.Generator().manual_seed(5), f64([0.2, 0.8, 0.5, 1.0, 0.0])
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.05)
    for _ in range(100):
        near = torch.log_softmax(logits.detach(), -1)
        arms = torch.multinomial(near.exp(), 64, True, generator=source)
        paid = rewards[arms] + 0.3 * torch.randn(64, generator=source, dtype=torch.float64)
        advantages = pg.group_baseline(paid, 8, baseline)
        for _ in range(2):
            log_prob = torch.log_softmax(logits, -1)[arms]
            terms, _ = pg.clip_surrogate(pg.log_ratio(log_prob, near[arms]), advantages, 0.2)
            adam.zero_grad()
            (sign * reduce(terms)).backward()
            adam.step()
    return float(torch.softmax(logits.detach(), -1)[3])


@pytest.mark.parametrize("baseline", ["meanstd", "loo"])
def test_group_losses_find_the_best_arm_of_a_bandit_and_with_their_sign_flipped_do_not(baseline: str) -> None:
    """GRPO and RLOO."""
    assert best_arms_share(baseline, 1.0) > 0.95
    assert best_arms_share(baseline, -1.0) < 0.05


def test_normalise_has_mean_zero_and_unit_deviation_where_kept_and_nothing_for_constants() -> None:
    values = torch.randn(4, 6, dtype=torch.float64) * 3 + 2
    mask = (torch.arange(6) < 4).double().expand(4, 6)
    normal = normalise(values, mask)
    assert float(normal[:, :4].mean()) == pytest.approx(0, abs=1e-12)
    assert float(normal[:, :4].std()) == pytest.approx(1, abs=1e-7)
    assert normal[:, 4:].eq(0).all()
    assert normalise(torch.full((1000,), 0.1)).eq(0).all()
    assert normalise(torch.tensor([3.0])).eq(0).all()
    by_group = normalise(values.flatten(), groups=torch.arange(24) // 6)
    torch.testing.assert_close(by_group.view(4, 6)[2], normalise(values[2]))


# -- chains ------------------------------------------------------------------------------------------------


def test_a_chain_of_one_step_is_a_gaussian_policy_and_more_add_up() -> None:
    torch.manual_seed(2)
    mean, log_std, chain = torch.randn(5, 3, 2, 4), 0.3 * torch.randn(5, 3, 1, 4), torch.randn(5, 4, 2, 4)
    density = torch.distributions.Normal(mean, log_std.exp().expand_as(mean)).log_prob(chain[:, 1:])
    torch.testing.assert_close(d.chain_log_prob(mean, log_std, chain), density.sum((-1, -2)))
    torch.testing.assert_close(d.chain_log_prob(mean, log_std, chain, average=True), density.mean((-1, -2)))
    executed = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    first = d.chain_log_prob(mean, log_std, chain, executed, average=True)
    torch.testing.assert_close(first, density[:, :, 0].mean(-1))
    one = d.chain_log_prob(mean[:, :1], log_std[:, :1], chain[:, :2]).squeeze(-1)
    flat = d.gaussian_log_density(
        chain[:, 1].flatten(1), mean[:, 0].flatten(1), log_std[:, 0].expand(5, 2, 4).flatten(1)
    )
    torch.testing.assert_close(one, flat)
    torch.testing.assert_close(pg.stage_weights(3, 0.5), torch.tensor([0.25, 0.5, 1.0]))


# -- identities of whole losses ----------------------------------------------------------------------------


def test_grpo_with_one_token_is_dapo_is_ppo_with_group_advantages() -> None:
    new, near = torch.randn(2, 6, 1, dtype=torch.float64) * 0.3
    advantages = pg.group_baseline(torch.rand(6, dtype=torch.float64), 3, "meanstd")
    terms = pg.clip_surrogate(pg.log_ratio(new, near), advantages.unsqueeze(-1), 0.2)[0]
    ppo = reduce(pg.clip_surrogate(pg.log_ratio(new[:, 0], near[:, 0]), advantages, 0.2)[0])
    for mode in ("mean", "sequence_mean", "token_sum"):
        torch.testing.assert_close(reduce(terms, torch.ones(6, 1), mode), ppo)


def test_decoupled_ppo_is_ppo_where_the_behaviour_policy_is_the_proximal_one() -> None:
    weights = pg.behaviour_weight(NEAR, NEAR)
    terms = weights * pg.clip_surrogate(pg.log_ratio(NEW, NEAR), ADVANTAGES)[0]
    torch.testing.assert_close(terms, pg.clip_surrogate(pg.log_ratio(NEW, NEAR), ADVANTAGES)[0])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_padding_changes_no_loss_gradient_or_metric_whatever_lies_in_it(
    rows: int, units: int, more_units: int, more_rows: int, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, units + 1, (rows, 1), generator=source)
    mask = (torch.arange(units) < lengths).double()
    new, near, beyond = (torch.randn(rows, units, generator=source, dtype=torch.float64) for _ in range(3))
    advantages = torch.randn(rows, 1, generator=source, dtype=torch.float64)
    rubbish = [math.nan, math.inf, -math.inf, 1e300][seed % 4]

    def padded(values: Tensor, fill: float) -> Tensor:
        shape = (rows + more_rows, values.shape[1] + (more_units if values.shape[1] > 1 else 0))
        wide = torch.full(shape, fill, dtype=torch.float64)
        wide[:rows, : values.shape[1]] = values
        return wide

    def losses(new: Tensor, near: Tensor, beyond: Tensor, advantages: Tensor, mask: Tensor) -> tuple[list, Tensor]:
        new = new.detach().requires_grad_()
        found = []
        for level in pg.LEVELS:
            logs = pg.log_ratio(new, near, mask, level)
            kept = mask if level == "unit" else sequence_mask(mask)
            terms, clipped = pg.clip_surrogate(logs, advantages, 0.2, 0.3, 3.0, kept)
            found += [reduce(terms, kept, mode, length=5) for mode in ("mean", "sequence_mean", "token_sum")]
            found += list(pg.ratio_metrics(logs, clipped, kept).values())
        cispo = pg.cispo_surrogate(pg.log_ratio(new, near, mask), new, advantages, 1.3, mask)[0]
        divergences = sum(kl(new, beyond, mask) for kl in (pg.kl_k1, pg.kl_k2, pg.kl_k3))
        scaled = pg.reinforce_surrogate(new, normalise(near, mask), pg.behaviour_weight(near, beyond, mask), mask)
        found += [reduce(t, mask, "fixed_length", length=5) for t in (cispo, divergences, scaled)]
        return found, torch.autograd.grad(sum(found), new)[0]

    if units == 1:
        more_units = 0
    plain, gradient = losses(new, near, beyond, advantages, mask)
    again, there = losses(*(padded(v, rubbish) for v in (new, near, beyond, advantages)), padded(mask, 0.0))
    torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(there[:rows, :units], gradient, rtol=1e-9, atol=1e-12)
    assert there.sum() == pytest.approx(float(gradient.sum()), rel=1e-9, abs=1e-12)


NORMALS = {
    "density": lambda a, m, s, mask: d.gaussian_log_density(a, m, s, mask),
    "squashed": lambda a, m, s, mask: d.tanh_gaussian_log_density(a, m, s, mask),
    "entropy": lambda a, m, s, mask: d.gaussian_entropy(s, mask),
    "divergence": lambda a, m, s, mask: d.kl_gaussian(m, s, a, 0.5 * s, mask),
}
CHOICES = {
    "density": lambda x, y, mask: d.categorical_log_prob(x, torch.zeros(x.shape[:-1]).long(), mask),
    "entropy": lambda x, y, mask: d.categorical_entropy(x, mask),
    "divergence": lambda x, y, mask: d.kl_categorical(x, y, mask),
}


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize(("family", "name"), [*(("normal", n) for n in NORMALS), *(("choices", n) for n in CHOICES)])
def test_rubbish_under_the_mask_changes_no_log_density_and_no_gradient(family: str, name: str, rubbish: float) -> None:
    source = torch.Generator().manual_seed(0)
    count = 3 if family == "normal" else 2
    given = [0.3 * torch.randn(4, 3, 2, generator=source, dtype=torch.float64) for _ in range(count)]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]]).double()
    function = (NORMALS if family == "normal" else CHOICES)[name]

    def found(fill: float) -> tuple[Tensor, ...]:
        inputs = [torch.where(mask[..., None] != 0, one, fill).requires_grad_() for one in given]
        terms = function(*inputs, mask)
        return terms, *torch.autograd.grad(terms.square().sum(), inputs, allow_unused=True, materialize_grads=True)

    torch.testing.assert_close(found(rubbish), found(0.0), rtol=0, atol=0)


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, 1e300])
def test_rubbish_in_actions_that_are_not_carried_out_changes_no_chains_density(rubbish: float) -> None:
    source = torch.Generator().manual_seed(0)
    means, chain = (torch.randn(3, k, 4, 2, generator=source, dtype=torch.float64) for k in (2, 3))
    mask = f64([1, 1, 0, 0])[:, None].expand(3, 2, 4, 2)

    def found(fill: float) -> tuple[Tensor, ...]:
        padded = chain.clone()
        padded[:, :, 2:] = fill
        rows = torch.where(mask != 0, means, fill).requires_grad_()
        spread = torch.where(mask != 0, torch.zeros_like(means), fill).requires_grad_()
        terms = d.chain_log_prob(rows, spread, padded, mask)
        return terms, *torch.autograd.grad(terms.square().sum(), [rows, spread])

    torch.testing.assert_close(found(rubbish), found(0.0), rtol=0, atol=0)


# -- step sizes and bad input ------------------------------------------------------------------------------


def test_the_adaptive_learning_rate_follows_the_divergence_within_its_bounds() -> None:
    kl = torch.tensor([0.03, 0.004, 0.01, 0.0, 0.5, 1e-4])
    rate = torch.tensor([3e-4, 3e-4, 3e-4, 3e-4, 1.2e-5, 9e-3])
    found = pg.adaptive_lr(kl, rate, 0.01)
    torch.testing.assert_close(found, torch.tensor([2e-4, 4.5e-4, 3e-4, 3e-4, 1e-5, 1e-2]))
    assert pg.kl_stop(kl, 0.01).tolist() == [True, False, False, False, True, False]
    assert not pg.kl_stop(kl, None).any()


def test_unknown_words_and_sizes_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown level 'token'"):
        pg.log_ratio(NEW, NEAR, level="token")
    with pytest.raises(ConfigError, match="did you mean 'meanstd'"):
        pg.group_baseline(ADVANTAGES, 2, "mean_std")
    with pytest.raises(ConfigError, match="4 returns can't be split into groups of 3"):
        pg.group_baseline(ADVANTAGES, 3)
    with pytest.raises(ConfigError, match="unknown reduction"):
        reduce(ADVANTAGES, mode="avg")
    with pytest.raises(ConfigError, match="needs length above 0"):
        reduce(ADVANTAGES, mode="fixed_length")
