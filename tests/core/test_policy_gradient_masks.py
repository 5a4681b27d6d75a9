"""The policy-gradient core on chains, padded sequences and odd words; group baselines and their bandit."""

from __future__ import annotations

import math

import pytest
import torch
from gradient_numbers import ADVANTAGES, NEAR, NEW, f64
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses import distributions as d
from surefoot.core.losses import policy_gradient as pg
from surefoot.core.losses.masked import masked_quantile, normalise, reduce, sequence_mask

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


@pytest.mark.parametrize("level", [0.0, 0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("rubbish", [math.nan, -1e9, math.inf])
def test_a_masked_quantile_is_that_of_what_is_kept(level: float, rubbish: float) -> None:
    values, mask = torch.randn(7, 11, dtype=torch.float64), (torch.arange(11) % 3 > 0).double()
    found = masked_quantile(torch.where(mask > 0, values, rubbish), mask, level)
    torch.testing.assert_close(found, torch.quantile(values[:, mask > 0], level))
