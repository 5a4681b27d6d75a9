"""The discriminators against hand-worked numbers and against problems whose log-ratio is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import dataset, shifted

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.dataset import Dataset
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import estimate_gap
from surefoot.online.base.dynamics_gap import (
    DynamicsGap,
    clipped_gap,
    cross_entropy,
    importance_weights,
    log_shares,
    spread_of,
)


def constant(pair: list[float], transition: list[float], bound: float | None = None) -> DynamicsGap:
    """Discriminators of one observation and one action that answer the same everywhere."""
    network = DynamicsGap(1, 1, (3,), bound).double()
    for mlp, outputs in ((network.pair, pair), (network.transition, transition)):
        for parameter in mlp.parameters():
            parameter.data.zero_()
        mlp.biases[-1].data.copy_(torch.tensor(outputs))
    return network


def test_the_log_ratio_is_that_of_the_softmaxed_probabilities() -> None:
    network = constant([0.4, -0.3], [1.1, 0.2])  # worked out by hand
    ratio = network.log_ratio(torch.zeros(2, 2).double(), torch.zeros(2, 1).double()).detach()
    torch.testing.assert_close(ratio, torch.full((2,), 0.9).double())
    pair = torch.softmax(torch.tensor([0.4, -0.3]).double(), 0)
    both = torch.softmax(torch.tensor([1.1 + 0.4, 0.2 - 0.3]).double(), 0)
    assert float(ratio[0]) == pytest.approx(math.log(both[0] / both[1]) - math.log(pair[0] / pair[1]))


def test_bounded_outputs_keep_the_log_ratio_within_four() -> None:
    def ratio(outputs: list[float]) -> float:
        network = constant([0, 0], outputs, 2.0)
        return float(network.log_ratio(torch.zeros(1, 2).double(), torch.zeros(1, 1).double()).detach())

    assert ratio([1.1, 0.2]) == pytest.approx(2 * math.tanh(1.1) - 2 * math.tanh(0.2))
    assert ratio([90.0, -90.0]) == 4.0


def test_the_losses_are_cross_entropies_and_the_second_reaches_the_first_network() -> None:
    network = constant([0.4, -0.3], [1.1, 0.2])
    for parameter in network.parameters():
        parameter.grad = None
    pair, both = network.losses(torch.zeros(4, 2).double(), torch.zeros(4, 1).double())
    log_softmax = [torch.log_softmax(torch.tensor(o).double(), 0) for o in ([0.4, -0.3], [1.5, -0.1])]
    for found, expected in zip(
        (pair, both), log_softmax, strict=True
    ):  # -log p(real) of real, -log p(sim) of simulated
        assert float(found.detach()) == pytest.approx(-float(expected.sum()))
    both.backward()
    assert float(network.pair.biases[-1].grad.abs().sum()) > 0.1


def test_real_rows_come_first() -> None:
    odds = torch.tensor([30.0, -30.0])  # a real row taken for real and a simulated one for simulated
    assert float(cross_entropy(odds)) == pytest.approx(0, abs=1e-6)
    assert float(cross_entropy(-odds)) == pytest.approx(60)


def test_weights_are_ratios_between_a_hundred_thousandth_and_one() -> None:
    weights = importance_weights(torch.tensor([-20.0, -1.0, 0.0, 3.0]).double())
    torch.testing.assert_close(weights, torch.tensor([1e-5, math.exp(-1), 1.0, 1.0]).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_are_proportional_to_gaps_and_rows_without_gap_have_none(dtype: torch.dtype) -> None:
    shares = log_shares(torch.tensor([0.1, 0.2, 0.7, -0.4], dtype=dtype))
    torch.testing.assert_close(shares[:3].exp(), torch.tensor([0.1, 0.2, 0.7], dtype=dtype))
    assert float(shares[3]) == pytest.approx(math.log(1e-45), abs=0.01)
    none = log_shares(torch.tensor([-1.0, -3.0, 0.0, -0.1], dtype=dtype))
    torch.testing.assert_close(none.exp(), torch.full((4,), 0.25, dtype=dtype))
    capped = log_shares(torch.tensor([10.0, 30.0], dtype=dtype)).exp()
    assert capped.tolist() == pytest.approx([0.5, 0.5])
    assert clipped_gap(torch.tensor([-1.0, 3.0, 11.0], dtype=dtype)).tolist() == pytest.approx([0, 3, 10])


def test_the_gap_is_the_mean_over_draws_around_the_simulated_next_observation() -> None:
    network = DynamicsGap(2, 1, (5,)).double()
    source = torch.Generator().manual_seed(3)
    pairs, following, noise = (torch.randn(4, n, generator=source, dtype=torch.float64) for n in (3, 2, 6))
    spread = torch.tensor([0.5, 2.0]).double()
    expected = torch.zeros(4).double()
    for draw in range(3):
        there = following + noise[:, 2 * draw : 2 * draw + 2] * spread
        outputs = 2 * torch.tanh(network.transition(torch.cat([pairs, there], 1)))
        expected += (outputs[:, 1] - outputs[:, 0]) / 3
    torch.testing.assert_close(network.gap(pairs, following, noise, spread), expected)


def test_the_spread_is_the_datas_or_that_of_a_buffer_with_ten_times_as_many_zero_rows() -> None:
    rows = np.random.default_rng(0).normal([1.0, -3.0], [2.0, 0.1], (500, 2)).astype(np.float32)
    np.testing.assert_allclose(spread_of(rows, "data"), rows.astype(np.float64).std(0), rtol=1e-6)
    buffer = np.zeros((5500, 2))
    buffer[:500] = rows
    np.testing.assert_allclose(spread_of(rows, "zero_rows"), buffer.std(0) + 1e-3, rtol=1e-6)


# -- known answers --------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"steps": 600, "hidden": (32, 32), "learning_rate": 3e-3}
"""Full size is 5,000 steps of networks of 256 units, 25 s: a tenth, ten times as fast, meets its tolerances too."""


def errors(found: DynamicsGap, data: Dataset) -> np.ndarray:
    """Log-ratio as found less the true one, on-support; the true one is linear in s' - s - a."""
    pairs = torch.from_numpy(np.concatenate([data.observations, data.actions], 1))
    with torch.no_grad():
        ratio = found.log_ratio(pairs, torch.from_numpy(data.next_observations)).numpy()
    step = (data.next_observations - data.observations - data.actions)[:, 0]
    return ratio - (0.5 - 2 * step)  # ((d - 0.5)^2 - d^2) / (2 * 0.25)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.15), (0.1, 0.25)])
def test_a_known_log_ratio_is_found(noise: float, tolerance: float) -> None:
    real, simulated = shifted(0.0), shifted(0.5, seed=1)
    found = estimate_gap(real, simulated, input_noise=noise, **QUICK)
    for data in (shifted(0.0, 2000, seed=2), shifted(0.5, 2000, seed=3)):
        assert np.abs(errors(found.network, data)).mean() < tolerance
    assert found.divergence == pytest.approx(0.5, abs=0.15)  # KL of two normals: 0.5^2 / (2 * 0.25)


def test_equal_dynamics_have_a_log_ratio_of_zero() -> None:
    found = estimate_gap(shifted(0.0), shifted(0.0, seed=1), **QUICK)
    assert abs(found.divergence) < 0.05
    assert found.loss == pytest.approx(2 * math.log(2), abs=0.05)
    assert found.gap < 0.1


def swinging(gravity: float, seed: int) -> Dataset:
    """Uniform actions in the pendulum under a gravity times as strong."""
    env = NativeVectorEnv("native/pendulum", 64, parameters={"gravity": 10.0 * gravity})
    source = np.random.default_rng(seed)
    before, _ = env.reset(seed=[int(s) for s in source.integers(0, 2**31, 64)])
    parts = []
    for _ in range(100):
        actions = source.uniform(-2, 2, (64, 1)).astype(np.float32)
        after, *_ = env.step(actions)
        parts.append((before.copy(), actions, after.copy()))
        before = after
    return dataset(*(np.concatenate(column) for column in zip(*parts, strict=True)), name=f"gravity x {gravity:g}")


def test_the_estimated_gap_grows_with_the_pendulums_gravity() -> None:
    real = swinging(1.0, 0)
    found = [estimate_gap(real, swinging(factor, 1), **QUICK) for factor in (1.0, 1.5, 2.0)]
    same, more, most = (one.gap for one in found)
    assert same < 0.5 < more < most - 0.05
    assert abs(found[0].divergence) < 0.1 < found[1].divergence < found[2].divergence
    losses = [one.loss for one in found]
    assert losses[0] > losses[1] > losses[2]


# -- bad input ------------------------------------------------------------------------------------------------


def test_what_can_not_be_compared_is_refused() -> None:
    one, wide = shifted(0.0, 10), dataset(np.zeros((5, 2)), np.zeros((5, 1)), np.zeros((5, 2)), name="wide")
    with pytest.raises(DataError, match="made has observations and actions of 1 and 1 dimensions, wide of 2 and 1"):
        estimate_gap(one, wide, steps=1)
    with pytest.raises(ConfigError, match="spread='none' must be data or zero_rows"):
        estimate_gap(one, one, spread="none")
    with pytest.raises(ConfigError, match="steps=0 at least 1"):
        estimate_gap(one, one, steps=0)
