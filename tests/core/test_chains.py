"""Chains of noisy steps: their density by hand, by integration and by differences, and one function on both ways."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from chain_heads import ACTIONS, MADE, OBSERVATIONS, velocity
from torch import Tensor

from surefoot.core.actors.actor import Evaluation
from surefoot.core.actors.chains import CHAIN, ChainActor, at
from surefoot.core.actors.flow_chains import FlowChainActor, ReinFlowActor, decayed
from surefoot.core.actors.heads import UnboundedGaussianActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity


class LinearChain(ChainActor):
    """v(x, t) = 2 (m - x), deviations of each step given: what the golden numbers were worked out for."""

    kind = "test_linear_chain"
    aim = (0.5, -0.25)
    deviations = (0.10, 0.15, 0.20, 0.25)

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        velocity = 2 * (x.new_tensor(self.aim) - x)
        return x + velocity / 4, at([math.log(one) for one in self.deviations], step, x)


def linear() -> LinearChain:
    return LinearChain(2, 4, None, False)


def test_the_golden_chain_has_the_golden_densities() -> None:
    chain = torch.tensor([[[0.3, -0.7], [0.45, -0.5], [0.40, -0.30], [0.55, -0.35], [0.5, -0.1]]], dtype=torch.float64)
    found = linear().evaluate(torch.zeros(1, 1, dtype=torch.float64), chain[:, -1], {CHAIN: chain})
    parts = found.outputs
    steps = [2.6110431196, 1.7063629034, 1.1856862585, 0.6097116558]
    assert parts.log_densities[0].tolist() == pytest.approx(steps, abs=1e-9)
    assert float(parts.start) == pytest.approx(-2.1278770664, abs=1e-9)
    assert float(found.log_density) == pytest.approx(3.9849268708, abs=1e-9)
    assert float(found.log_density / 10) == pytest.approx(0.3984926871, abs=1e-9)
    assert float(found.entropy / 10) == pytest.approx(-0.0201489371, abs=1e-9)
    assert float(parts.start_entropy + parts.entropies.sum()) == pytest.approx(float(found.entropy), abs=1e-12)


def test_the_last_place_of_a_linear_chain_has_the_mean_and_variance_of_the_recursion() -> None:
    rows = 100_000
    noise = torch.randn(rows, linear().held_dim, generator=torch.Generator().manual_seed(0))
    _, kept = linear().sample(torch.zeros(rows, 1), noise)
    last = kept[CHAIN][:, -1]
    variance = 0.07796875
    error = math.sqrt(variance / rows)
    assert last.mean(0).tolist() == pytest.approx([0.46875, -0.234375], abs=4 * error)
    assert last.var(0).tolist() == pytest.approx([variance] * 2, abs=4 * variance * math.sqrt(2 / rows))


class AffineChain(LinearChain):
    """v(x, t_k) = A_k x + b_k with matrices of its own for each step."""

    kind = "test_affine_chain"
    matrices = 0.7 * torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(1))
    shifts = torch.randn(4, 2, generator=torch.Generator().manual_seed(2))

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(step, int)
        mean = x + (x @ self.matrices[step].T + self.shifts[step]) / 4
        return mean, at([math.log(one) for one in self.deviations], step, x)


def test_the_last_place_of_an_affine_chain_has_the_moments_of_the_matrix_recursion() -> None:
    rows, chain = 100_000, AffineChain(2, 4, None, False)
    mean, variance = torch.zeros(2), torch.eye(2)
    for matrix, shift, deviation in zip(chain.matrices, chain.shifts, chain.deviations, strict=True):
        step = torch.eye(2) + matrix / 4
        mean, variance = step @ mean + shift / 4, step @ variance @ step.T + deviation**2 * torch.eye(2)
    noise = torch.randn(rows, chain.held_dim, generator=torch.Generator().manual_seed(3))
    last = chain.sample(torch.zeros(rows, 1), noise)[1][CHAIN][:, -1]
    error = 4 * math.sqrt(float(variance.diagonal().max()) / rows)
    torch.testing.assert_close(last.mean(0), mean, rtol=0, atol=error)
    torch.testing.assert_close(last.T.cov(), variance, rtol=0, atol=2 * error * math.sqrt(float(variance.max())))


def test_the_density_of_a_chain_of_two_steps_in_one_dimension_integrates_to_one() -> None:
    torch.manual_seed(0)
    actor = ReinFlowActor(PlainVelocity(1, 1, (8,)), 1, 2, low=0.2, high=0.5, clip_last=False, noise_limit=None)
    with torch.no_grad():
        line = torch.linspace(-4.5, 4.5, 81)
        cell = float(line[1] - line[0]) ** 3
        grid = torch.cartesian_prod(line, line, line).unsqueeze(-1)
        total = 0.0
        for chain in grid.split(200_000):
            found = actor.evaluate(torch.full((len(chain), 1), 0.3), chain[:, -1], {CHAIN: chain})
            total += float(found.log_density.double().exp().sum()) * cell
    assert total == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 4, 7, 10])
@pytest.mark.parametrize("name", MADE)
def test_what_is_evaluated_is_what_was_added_up_while_sampling_so_that_ratios_are_one(name: str, steps: int) -> None:
    """Different grids for sampling and density, the mistake of published code, would give other numbers here."""
    torch.manual_seed(steps)
    actor = MADE[name](steps)
    rows = 64
    seen, noise = torch.randn(rows, OBSERVATIONS), torch.randn(rows, actor.held_dim)
    with torch.no_grad():
        actions, kept = actor.sample(seen, noise)
        chain = kept[CHAIN]
        assert chain.shape == (rows, actor.steps + 1, ACTIONS)
        assert torch.equal(actions, chain[:, -1].clamp(-1, 1))
        added = 0 * actions[:, 0]
        if actor.starts_normal:
            added = added + torch.distributions.Normal(0, 1).log_prob(chain[:, 0]).sum(-1)
        for step in range(actor.steps):
            mean, log_std = actor.transition(seen, chain[:, step], step)
            added = added + torch.distributions.Normal(mean, log_std.exp()).log_prob(chain[:, step + 1]).sum(-1)
        found: Evaluation = actor.evaluate(seen, actions, kept)
        again = actor.evaluate(seen, actions, kept)
    torch.testing.assert_close(found.log_density, added, rtol=1e-6, atol=2e-5 * actor.steps)
    numbers = (actor.steps + 1) * ACTIONS
    assert float((found.log_density - added).exp().mean()) == pytest.approx(1, abs=1e-5)
    assert float(((found.log_density - added) / numbers).exp().mean()) == pytest.approx(1, abs=1e-6)
    assert float((found.log_density - added).abs().max()) < 1e-4
    assert torch.equal(again.log_density, found.log_density)
    assert float((found.entropy - found.outputs.entropies.sum(-1) - found.outputs.start_entropy).abs().max()) < 1e-4


@pytest.mark.parametrize("steps", [1, 2, 4, 10])
@pytest.mark.parametrize("name", ["reinflow", "reinflow, shortcut", "sde", "consistency"])
def test_step_k_is_asked_at_time_k_over_K_both_when_sampling_and_in_the_density(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor: Any = MADE[name](steps)
    asked: list[float] = []
    forward = type(actor.network).forward

    def recording(self: Any, observations: Tensor, x: Tensor, time: Tensor, size: Any = None) -> Tensor:
        asked.extend(time.tolist())
        return forward(self, observations, x, time, size)

    monkeypatch.setattr(type(actor.network), "forward", recording)
    seen, noise = torch.randn(1, OBSERVATIONS), torch.randn(1, actor.held_dim)
    grid = [k / actor.steps for k in range(actor.steps)]
    actions, kept = actor.sample(seen, noise)
    assert asked == pytest.approx(grid, abs=1e-7)
    asked.clear()
    actor.evaluate(seen, actions, kept)
    assert asked == pytest.approx(grid, abs=1e-7)
    asked.clear()
    actor.act(seen, torch.randn(1, actor.noise_dim))
    assert asked == pytest.approx(grid, abs=1e-7)


def test_single_steps_of_shuffled_chains_have_the_densities_of_whole_ones() -> None:
    actor = MADE["ddpm"](4)
    seen, noise = torch.randn(8, OBSERVATIONS), torch.randn(8, actor.held_dim)
    with torch.no_grad():
        actions, kept = actor.sample(seen, noise)
        whole = actor.evaluate(seen, actions, kept).outputs.log_densities
        rows, steps = torch.tensor([5, 0, 3, 3]), torch.tensor([3, 0, 2, 1])
        chain = kept[CHAIN]
        found, _ = actor.numbers(seen[rows], chain[rows, steps], chain[rows, steps + 1], steps.float())
    assert found.shape == (4, ACTIONS)
    torch.testing.assert_close(found.sum(-1), whole[rows, steps])


# -- ReinFlow ---------------------------------------------------------------------------------------------------


def test_noise_networks_have_the_parameters_of_reinflows() -> None:
    for sizes, count in (((11, 12), 6_732), ((111, 32), 14_432), ((376, 68), 33_732)):
        actor = ReinFlowActor(EmbeddedVelocity(*sizes), sizes[1])
        assert actor.explorer is not None
        assert sum(p.numel() for p in actor.explorer.parameters()) == count
    kitchen = ReinFlowActor(ShortcutVelocity(60, 36, (256, 256, 256), "mish"), 36)
    assert kitchen.explorer is not None
    assert sum(p.numel() for p in kitchen.explorer.parameters()) == 8_612


def test_deviations_lie_between_the_bounds_and_in_the_middle_is_the_geometric_mean() -> None:
    actor = ReinFlowActor(velocity("embedded"), ACTIONS, 4, low=0.05, high=0.2)
    assert actor.explorer is not None
    seen, x = torch.randn(512, OBSERVATIONS), torch.randn(512, ACTIONS)
    for factor, least, greatest in ((0.0, 0.1, 0.1), (1.0, 0.05, 0.2), (1e4, 0.05, 0.2)):
        with torch.no_grad():
            actor.explorer.weights[-1].mul_(factor)
            actor.explorer.biases[-1].zero_()
            found = actor.log_std(seen, x, 2).exp()
            actor.explorer.weights[-1].normal_()
        assert found.shape == (512, ACTIONS)
        assert least - 1e-6 <= float(found.min()) <= float(found.max()) <= greatest + 1e-6


def test_learned_noise_depends_on_its_network_and_constant_noise_has_none_and_other_words_are_refused() -> None:
    """A branch that takes every schedule for the constant one is a mistake of published code."""
    seen, x = torch.randn(16, OBSERVATIONS), torch.randn(16, ACTIONS)
    for noise in ("learn", "learn_decay"):
        learned = ReinFlowActor(velocity("mlp"), ACTIONS, 4, noise=noise).log_std(seen, x, 1)
        assert learned.shape == (16, ACTIONS)
        assert float(learned.detach().std()) > 0
        assert learned.requires_grad
    constant = ReinFlowActor(velocity("mlp"), ACTIONS, 4, noise="const", low=0.07)
    assert constant.explorer is None
    assert float(constant.log_std(seen, x, 1).exp()) == pytest.approx(0.07)
    with pytest.raises(ConfigError, match="learn_decay"):
        ReinFlowActor(velocity("mlp"), ACTIONS, 4, noise="const_schedule")
    for wrong in ({"low": 0.0}, {"low": 0.3}, {"trained": 5}, {"noise_limit": 0.0}):
        with pytest.raises(ConfigError):
            ReinFlowActor(velocity("mlp"), ACTIONS, 4, **wrong)  # type: ignore[arg-type]


def test_the_decaying_bound_is_held_then_ends_at_three_tenths_low_and_seven_tenths_high() -> None:
    low, high = 0.1, 0.24
    found = [float(decayed(low, high, torch.tensor(p))) for p in (0.0, 0.35, 0.675, 1.0)]
    assert found[:2] == pytest.approx([high, high])
    assert found[2] == pytest.approx(high - 0.15 * (high - low))
    assert found[3] == pytest.approx(0.3 * low + 0.7 * high)
    actor = ReinFlowActor(velocity("mlp"), ACTIONS, 4, low=low, high=high, noise="learn_decay")
    actor.ceiling.copy_(decayed(low, high, torch.tensor(1.0)))
    assert actor.explorer is not None
    with torch.no_grad():
        actor.explorer.biases[-1].fill_(100.0)
        widest = actor.log_std(torch.zeros(1, OBSERVATIONS), torch.zeros(1, ACTIONS), 0).exp()
    assert float(widest.max()) == pytest.approx(0.3 * low + 0.7 * high, rel=1e-5)


def test_only_the_last_trained_steps_have_learned_noise() -> None:
    actor = ReinFlowActor(velocity("mlp"), ACTIONS, 4, low=0.08, trained=2)
    seen, x = torch.randn(8, OBSERVATIONS), torch.randn(8, ACTIONS)
    with torch.no_grad():
        by_step = [actor.log_std(seen, x, step).exp() for step in range(4)]
        mixed = actor.log_std(seen, x, torch.tensor([0.0, 1, 2, 3, 0, 1, 2, 3])).exp()
    for step in (0, 1):
        torch.testing.assert_close(by_step[step], torch.full((8, ACTIONS), 0.08))
    assert float(by_step[2].min()) > 0.081
    torch.testing.assert_close(mixed[2], by_step[2][2])
    torch.testing.assert_close(mixed[5], torch.full((ACTIONS,), 0.08))


def test_entropy_trains_the_noise_and_what_it_sees_of_observations_but_not_the_time_embedding() -> None:
    actor = ReinFlowActor(velocity("embedded"), ACTIONS, 4)
    seen = torch.randn(16, OBSERVATIONS)
    actions, kept = actor.sample(seen, torch.randn(16, actor.held_dim))
    kept = {CHAIN: kept[CHAIN].detach()}
    found = actor.evaluate(seen, actions.detach(), kept)
    gradients = dict(
        zip(
            [name for name, _ in actor.named_parameters()],
            torch.autograd.grad(found.entropy.mean(), list(actor.parameters()), allow_unused=True, retain_graph=True),
            strict=True,
        )
    )
    for name, gradient in gradients.items():
        moves = gradient is not None and float(gradient.abs().max()) > 0
        assert moves == name.startswith(("explorer", "network.encode")), name
    policy = torch.autograd.grad(found.log_density.mean(), list(actor.parameters()), allow_unused=True)
    assert all(gradient is not None for gradient in policy)


def test_the_entropy_gradient_is_the_closed_form() -> None:
    actor = ReinFlowActor(velocity("mlp"), ACTIONS, 4, low=0.1, high=0.3).double()
    assert actor.explorer is not None
    seen = torch.randn(1, OBSERVATIONS, dtype=torch.float64)
    chain = torch.randn(1, 5, ACTIONS, dtype=torch.float64)
    with torch.no_grad():
        actor.explorer.weights[-1].zero_()
        actor.explorer.biases[-1].copy_(torch.tensor([0.3, -1.2]))
    found = actor.evaluate(seen, chain[:, -1], {CHAIN: chain}).entropy / (5 * ACTIONS)
    (gradient,) = torch.autograd.grad(found, [actor.explorer.biases[-1]])
    logs = 2 * math.log(0.3) - 2 * math.log(0.1)
    expected = 4 * logs / 4 * (1 - torch.tanh(actor.explorer.biases[-1]).square()) / (5 * ACTIONS)
    torch.testing.assert_close(gradient, expected.detach())


@pytest.mark.parametrize("name", ["reinflow, plain", "reinflow, const", "reinflow, some", "sde", "consistency", "ddpm"])
def test_the_gradient_of_the_density_agrees_with_differences(name: str) -> None:
    torch.manual_seed(3)
    actor = MADE[name](3).double()
    if isinstance(actor, FlowChainActor):
        actor.clip_each = False
    seen = torch.randn(6, OBSERVATIONS, dtype=torch.float64)
    with torch.no_grad():
        actions, kept = actor.sample(seen, 0.3 * torch.randn(6, actor.held_dim, dtype=torch.float64))
    trained = [p for n, p in actor.named_parameters() if not n.startswith("frozen")]
    gradients = torch.autograd.grad(actor.evaluate(seen, actions, kept).log_density.sum(), trained)
    direction = [torch.randn_like(p) for p in trained]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)))
    values, h = [], 1e-6
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, along in zip(trained, direction, strict=True):
                parameter += sign * h * along
            values.append(float(actor.evaluate(seen, actions, kept).log_density.sum()))
    assert (values[0] - values[1]) / (2 * h) == pytest.approx(slope, rel=1e-6)


def test_a_number_whose_mean_is_clipped_gives_the_velocity_no_gradient() -> None:
    actor = ReinFlowActor(PlainVelocity(1, 2, (8,)), 2, 1, noise="const")
    with torch.no_grad():
        actor.network.mlp.weights[-1].zero_()  # type: ignore[union-attr, index, operator]
        actor.network.mlp.biases[-1].copy_(torch.tensor([2.0, 0.1]))  # type: ignore[union-attr, index, operator]
    chain = torch.tensor([[[0.0, 0.0], [0.9, 0.2]]])
    found = actor.evaluate(torch.zeros(1, 1), chain[:, -1], {CHAIN: chain})
    (gradient,) = torch.autograd.grad(found.log_density.sum(), [actor.network.mlp.biases[-1]])  # type: ignore[union-attr, index]
    assert float(gradient[0]) == 0
    assert float(gradient[1]) == pytest.approx((0.2 - 0.1) / 0.08**2, rel=1e-4)
    loose = ReinFlowActor(actor.network, 2, 1, noise="const", clip_each=False)
    (gradient,) = torch.autograd.grad(
        loose.evaluate(torch.zeros(1, 1), chain[:, -1], {CHAIN: chain}).log_density.sum(),
        [actor.network.mlp.biases[-1]],  # type: ignore[union-attr, index, list-item]
    )
    assert float(gradient[0]) == pytest.approx((0.9 - 2.0) / 0.08**2, rel=1e-4)


def test_draws_stay_within_three_deviations_and_the_last_place_within_bounds() -> None:
    actor = ReinFlowActor(velocity("mlp"), ACTIONS, 4, noise="const", low=0.2)
    seen, noise = torch.randn(2000, OBSERVATIONS), 4 * torch.randn(2000, actor.held_dim)
    with torch.no_grad():
        _, kept = actor.sample(seen, noise)
        for step, (x, following) in enumerate(itertools.pairwise(kept[CHAIN].unbind(1))):
            mean, _ = actor.transition(seen, x, step)
            assert float(mean.abs().max()) <= 1
            assert float((following - mean).abs().max()) <= 0.6 + 1e-6
        free = ReinFlowActor(actor.network, ACTIONS, 4, noise="const", low=0.2, noise_limit=None, clip_last=False)
        _, other = free.sample(seen, noise)
    assert float(kept[CHAIN][:, -1].abs().max()) <= 1
    assert float(other[CHAIN][:, -1].abs().max()) > 1


def test_with_one_step_and_a_constant_velocity_it_is_a_diagonal_gaussian() -> None:
    actor = ReinFlowActor(PlainVelocity(1, 2, (8,)), 2, 1, noise="const", low=0.3)
    with torch.no_grad():
        actor.network.mlp.weights[-1].zero_()  # type: ignore[union-attr, index, operator]
        actor.network.mlp.biases[-1].copy_(torch.tensor([0.2, -0.1]))  # type: ignore[union-attr, index, operator]
        gaussian = UnboundedGaussianActor(1, 2, (8,), initial_log_std=math.log(0.3))
        gaussian.mlp.weights[-1].zero_()
        chain = torch.randn(5, 2, 2)
        means = (chain[:, 0] + torch.tensor([0.2, -0.1])).clamp(-1, 1)
        found = actor.evaluate(torch.zeros(5, 1), chain[:, 1], {CHAIN: chain}).outputs.log_densities[:, 0]
        for row in range(5):
            gaussian.mlp.biases[-1].copy_(means[row])
            expected = gaussian.log_density(torch.zeros(1, 1), chain[row : row + 1, 1])
            torch.testing.assert_close(found[row : row + 1], expected)
