"""Distributions of returns: numbers worked out by hand, and a projection by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.actors.value_heads import CategoricalHead, QuantileHead, ValueHead
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.value_distributions import quantile_loss, shifted_categorical
from surefoot.core.nn.noisy import NoisyMLP


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


ATOMS = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)


def test_a_categorical_return_is_moved_and_shared_between_neighbours() -> None:
    """0.5 + 0.9 z lies at -0.4, 0.5, 1.4 and 2.3, which counts as 2."""
    given = row(0.1, 0.2, 0.3, 0.4)
    reward, ends = torch.tensor([0.5], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    found = shifted_categorical(given, ATOMS, reward, ends + 0.9)
    np.testing.assert_allclose(found, [[0.04, 0.16, 0.28, 0.52]], atol=1e-12)
    np.testing.assert_allclose(shifted_categorical(given, ATOMS, reward, ends), [[0, 0.5, 0.5, 0]], atol=1e-12)


def test_the_projection_is_that_of_a_loop_over_atoms() -> None:
    source = np.random.default_rng(3)
    given = source.dirichlet(np.ones(7), 20)
    rewards, reach = 3 * source.normal(size=20), source.choice([0.0, 0.729, 0.99], 20)
    atoms = np.linspace(-2, 4, 7)
    wanted = np.zeros((20, 7))
    for b in range(20):
        for j in range(7):
            place = (min(max(rewards[b] + reach[b] * atoms[j], -2.0), 4.0) + 2.0) / 1.0
            low, high = math.floor(place), math.ceil(place)
            wanted[b, low] += given[b, j] * (1.0 if low == high else high - place)
            wanted[b, high] += 0.0 if low == high else given[b, j] * (place - low)
    found = shifted_categorical(*(torch.from_numpy(a) for a in (given, atoms, rewards, reach)))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_the_quantile_loss_by_hand_and_its_gradient_points_to_the_targets() -> None:
    """theta (0, 1, 3) and y (0.5, 2, 2.5): (1/18) sum over i and j of |tau_i - 1(u < 0)| h(u) times 6."""
    theta = row(0.0, 1.0, 3.0).requires_grad_()
    loss = quantile_loss(theta, row(0.5, 2.0, 2.5))
    assert loss.item() == pytest.approx(0.6180556, abs=1e-7)
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    # -(1/6)(0.5 + 1 + 1)/3; -(3 (1) + 3 (1) - 3 (0.5))/18; (1/6)(1 + 1 + 0.5)/3
    np.testing.assert_allclose(slope, [[-2.5 / 18, -0.5 * (1 + 1 - 0.5) / 3, 2.5 / 18]], atol=1e-12)


def test_the_quantile_losss_minimum_has_its_levels() -> None:
    """Of many samples: the quantiles at 1/8, 3/8, 5/8 and 7/8, for a transition point near 0."""
    samples = torch.from_numpy(np.random.default_rng(0).exponential(size=(1, 4001)))
    theta = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(quantile_loss(theta, samples, 0.01).sum(), theta)
        theta = (theta - 0.02 * slope / 0.25).detach().requires_grad_()
    wanted = -np.log1p(-np.array([1, 3, 5, 7]) / 8)  # of the exponential distribution
    np.testing.assert_allclose(theta.detach()[0], wanted, atol=0.12)


def test_two_streams_are_joined_without_the_advantages_mean() -> None:
    head = ValueHead(2, 3, (4,), dueling=True)
    x = torch.randn(5, 2)
    a, v = head.advantage(x), head.common(x)  # type: ignore[misc]
    np.testing.assert_allclose(head(x).detach(), (v + a - a.mean(1, keepdim=True)).detach(), atol=1e-6)
    np.testing.assert_allclose(head(x).mean(1).detach(), v[:, 0].detach(), atol=1e-6)


def test_noisy_layers_are_those_of_a_drawn_matrix() -> None:
    net = NoisyMLP(3, 2, (4,), 0.5).double()
    for values in (net.weights, net.biases):
        for value in values:
            value.data.uniform_(0.1, 1.0)
    noise, x = torch.randn(1, net.noise_dim, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    assert net.noise_dim == 3 + 4 + 4 + 2
    f = torch.sign(noise[0]) * noise[0].abs() ** 0.5
    parts, value = f.split([3, 4, 4, 2]), x
    for k in range(2):
        before, after = parts[2 * k], parts[2 * k + 1]
        weight = net.mean.weights[k] + net.weights[k] * torch.outer(after, before)
        value = value @ weight.T + net.mean.biases[k] + net.biases[k] * after
        value = value.clamp(min=0) if k == 0 else value
    torch.testing.assert_close(net(x, noise), value)
    torch.testing.assert_close(net(x), net.mean(x))
    each = noise.repeat(6, 1)
    torch.testing.assert_close(net(x, each), value)
    fresh = NoisyMLP(16, 2, (9,), 0.5)
    assert float(fresh.weights[0].detach().unique()) == pytest.approx(0.5 / 4)
    assert float(fresh.biases[1].detach().unique()) == pytest.approx(0.5 / 3)


def test_values_are_the_means_of_distributions() -> None:
    x = torch.randn(4, 2)
    quantiles = QuantileHead(2, 3, (4,), quantiles=5)
    np.testing.assert_allclose(quantiles(x).detach(), quantiles.estimates(x).mean(-1).detach(), atol=1e-6)
    categorical = CategoricalHead(2, 3, (4,), atoms=3, value_range=(-1.0, 5.0))
    p = categorical.estimates(x).softmax(-1)
    np.testing.assert_allclose(
        categorical(x).detach(), (-p[..., 0] + 2 * p[..., 1] + 5 * p[..., 2]).detach(), atol=1e-6
    )


def test_a_categorical_loss_has_its_minimum_at_the_target_where_the_error_is_0() -> None:
    head = CategoricalHead(1, 2, (3,), atoms=4)
    target = row(0.1, 0.2, 0.3, 0.4)
    loss, error = head.losses(target.log() + 7, target, "huber")
    assert error.item() == pytest.approx(0, abs=1e-12)
    assert loss.item() == pytest.approx(-(target * target.log()).sum().item())
    other, wrong = head.losses(row(0.0, 0.0, 0.0, 1.0), target, "huber")
    assert other > loss
    assert wrong.item() == pytest.approx((other - loss).item())


def test_heads_of_no_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="atoms is 1, must be >= 2"):
        CategoricalHead(1, 2, atoms=1)
    with pytest.raises(ConfigError, match="quantiles is 0, must be >= 1"):
        QuantileHead(1, 2, quantiles=0)
    with pytest.raises(ConfigError, match="range that is not empty"):
        CategoricalHead(1, 2, value_range=(1.0, 1.0))
    with pytest.raises(ConfigError, match="deviation of noisy weights is 0"):
        NoisyMLP(1, 1, (2,), 0.0)
