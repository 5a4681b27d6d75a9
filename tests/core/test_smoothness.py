"""The squared action Jacobian, exactly and as an estimate that one backward pass differentiates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from surefoot.core.actors.heads import CategoricalActor, DeterministicActor, GaussianActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.smoothness import (
    DISTANCE,
    jacobian,
    measured,
    penalised,
    squared_jacobian,
    squared_jacobian_estimate,
)
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.offline import BC, ReBRAC

WIDTH, ACTIONS = 4, 3


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Curved:
    """mu(s) = tanh(W2 tanh(W1 s + b)), whose Jacobian is written out."""

    def __init__(self) -> None:
        self.first, self.shift = numbers(8, WIDTH, seed=1).requires_grad_(), numbers(8, seed=2).requires_grad_()
        self.second = (0.4 * numbers(ACTIONS, 8, seed=3)).requires_grad_()

    @property
    def parameters(self) -> list[Tensor]:
        return [self.first, self.shift, self.second]

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(rows @ self.first.T + self.shift) @ self.second.T)

    def squared(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(rows @ self.first.T + self.shift)
        outer = 1 - torch.tanh(hidden @ self.second.T).square()
        written = torch.einsum("ba,ah,bh,ho->bao", outer, self.second, 1 - hidden.square(), self.first)
        return written.square().sum((1, 2))


def every_direction(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row 2 O times, with noise whose first three moments are exactly those of a standard normal."""
    axes = math.sqrt(WIDTH) * torch.eye(WIDTH, dtype=rows.dtype)
    noise = torch.cat([axes, -axes])
    return rows.repeat_interleave(len(noise), 0), noise.repeat(len(rows), 1)


def test_a_linear_policy_has_exactly_the_squared_norm_of_its_gain() -> None:
    gain = torch.tensor([[1.0, -2.0, 0.0, 0.5], [3.0, 0.0, 0.25, -1.0], [0.0, 0.0, 2.0, 0.0]])
    rows = torch.randn(5, WIDTH)
    assert torch.equal(jacobian(lambda s: s @ gain.T, rows), gain.expand(5, ACTIONS, WIDTH))
    expected = 1 + 4 + 0.25 + 9 + 0.0625 + 1 + 4
    assert squared_jacobian(lambda s: s @ gain.T + 0.7, rows).tolist() == [expected] * 5


def test_the_exact_norm_of_a_curved_policy_is_the_one_written_out() -> None:
    policy, rows = Curved(), numbers(7, WIDTH)
    torch.testing.assert_close(squared_jacobian(policy, rows), policy.squared(rows), rtol=1e-12, atol=0)


@pytest.mark.parametrize("distance", [1e-3, 1.0, 30.0])
def test_the_estimate_of_a_linear_policy_is_unbiased_at_any_distance(distance: float) -> None:
    gain, count = numbers(ACTIONS, WIDTH, seed=5), 40_000
    found = squared_jacobian_estimate(
        lambda s: s @ gain.T, numbers(count, WIDTH), numbers(count, WIDTH, seed=9), distance
    )
    exact = float(gain.square().sum())
    spread = math.sqrt(2) * float((gain @ gain.T).norm())  # of one row's estimate
    assert abs(float(found.mean()) - exact) < 4 * spread / math.sqrt(count)
    assert float(found.std()) == pytest.approx(spread, rel=0.05)


def test_the_estimates_bias_for_a_curved_policy_is_of_the_second_order() -> None:
    policy, rows = Curved(), numbers(50, WIDTH)
    states, noise = every_direction(rows)
    exact = policy.squared(rows).mean().item()
    bias = [squared_jacobian_estimate(policy, states, noise, e).mean().item() - exact for e in (2e-3, 1e-3, DISTANCE)]
    assert bias[0] / bias[1] == pytest.approx(4, rel=0.02)
    assert abs(bias[2]) < 2e-3 * exact


def test_the_estimates_gradient_is_that_of_the_exact_norm() -> None:
    policy, rows = Curved(), numbers(20, WIDTH)
    wanted = torch.autograd.grad(squared_jacobian(policy, rows).mean(), policy.parameters)
    by_hand = torch.autograd.grad(policy.squared(rows).mean(), policy.parameters)
    states, noise = every_direction(rows)
    found = torch.autograd.grad(squared_jacobian_estimate(policy, states, noise, 1e-4).mean(), policy.parameters)
    for exact, written, estimated in zip(wanted, by_hand, found, strict=True):
        torch.testing.assert_close(exact, written, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(estimated, exact, rtol=1e-4, atol=1e-6)


def test_float32_rounding_is_far_below_the_estimate() -> None:
    actor = DeterministicActor(WIDTH, ACTIONS, (64, 64))
    rows, noise = numbers(256, WIDTH).float(), numbers(256, WIDTH, seed=1).float()
    low = squared_jacobian_estimate(actor.act, rows, noise)
    single = torch.autograd.grad(low.mean(), list(actor.parameters()))
    double = actor.double()
    high = squared_jacobian_estimate(double.act, rows.double(), noise.double())
    torch.testing.assert_close(low.double(), high, rtol=1e-3, atol=1e-6)
    for ours, exact in zip(single, torch.autograd.grad(high.mean(), list(double.parameters())), strict=True):
        assert float((ours.double() - exact).norm()) < 1e-3 * float(exact.norm())


def test_half_precision_around_it_does_not_reach_the_estimate() -> None:
    actor = DeterministicActor(WIDTH, ACTIONS, (16,))
    rows, noise = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    expected = squared_jacobian_estimate(actor.act, rows, noise)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(squared_jacobian_estimate(actor.act, rows, noise), expected)


def test_a_policy_is_measured_at_normalised_observations_with_actions_in_minus_one_to_one() -> None:
    actor, normalizer = GaussianActor(2, 1, (8,)), Normalizer(2)
    normalizer.mean.copy_(torch.tensor([5.0, -3.0]))
    normalizer.scale.copy_(torch.tensor([10.0, 0.1]))
    policy = Policy.of(actor, normalizer, torch.tensor([-20.0]), torch.tensor([20.0]))
    rows = torch.tensor([[5.0, -3.0], [8.0, -2.9]])
    expected = squared_jacobian(actor.act, torch.tensor([[0.0, 0.0], [0.3, 1.0]])).mean()
    assert measured(policy, rows) == pytest.approx(float(expected), rel=1e-5)
    chooses = Policy.of(CategoricalActor(2, 3), normalizer, torch.zeros(3), torch.ones(3))
    assert measured(chooses, rows) is None


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    agent = BC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(4,))
    with pytest.raises(ConfigError, match="jacobian_penalty"):
        penalised(agent, agent.updates(), weight)


def test_the_loss_is_the_algorithms_own_plus_the_weighed_estimate_under_the_same_name() -> None:
    agent = BC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(4,))
    (before,) = agent.updates()
    (after,) = penalised(agent, [before], 0.3)
    assert (after.name, after.trains, after.optimizer) == (before.name, before.trains, before.optimizer)
    batch = {"observations": torch.randn(6, 2), "actions": torch.rand(6, 1)}
    noise = {"jacobian": torch.randn(6, 2)}
    estimate = squared_jacobian_estimate(agent.actor.act, batch["observations"], noise["jacobian"]).mean()
    loss, metrics = after.loss(batch, noise)
    assert torch.allclose(loss, before.loss(batch, {})[0] + 0.3 * estimate)
    assert torch.equal(metrics["jacobian"], estimate)


def test_rows_that_a_mask_leaves_out_are_not_penalised() -> None:
    agent = BC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(4,))
    (after,) = penalised(agent, agent.updates(), 1.0)
    batch = {"observations": torch.randn(6, 2), "actions": torch.rand(6, 1), "mask": torch.tensor([1.0, 1, 0, 1, 0, 0])}
    noise = {"jacobian": torch.randn(6, 2)}
    kept = squared_jacobian_estimate(agent.actor.act, batch["observations"], noise["jacobian"])[[0, 1, 3]].mean()
    assert torch.allclose(after.loss(batch, noise)[1]["jacobian"], kept)


def test_a_mask_of_the_actions_of_chunks_leaves_no_observation_out() -> None:
    agent = ReBRAC(Spec(2, 1, (-1.0,), (1.0,)), hidden=(4,))
    (after,) = (u for u in penalised(agent, agent.updates(), 1.0) if "actor" in u.trains)
    batch = {"observations": torch.randn(6, 2), "actions": torch.rand(6, 1)}
    batch["mask"] = torch.tensor([[1.0], [1], [0], [1], [0], [0]])
    noise = {"jacobian": torch.randn(6, 2)}
    every = squared_jacobian_estimate(agent.actor.act, batch["observations"], noise["jacobian"]).mean()
    assert torch.allclose(after.loss(batch, noise)[1]["jacobian"], every)
