"""Value-learning functions against closed forms and independent routes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from value_numbers import f64

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.value_learning import (
    advantage_weights,
    conservative_gap,
    expectile_loss,
    explained_variance,
    huber_loss,
    linear_quantile,
    smoothed_actions,
    soft_maximum,
    td_target,
    value_loss,
)


def minimiser(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function of a scalar is smallest, by golden-section search."""
    shrink = (math.sqrt(5) - 1) / 2
    for _ in range(90):
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def fitted_expectile(values: Tensor, weights: Tensor, expectile: float) -> float:
    """The scalar that minimises the weighted `expectile_loss`."""
    values, weights = values.double(), weights.double() / weights.sum()

    def loss(prediction: float) -> float:
        return float((weights * expectile_loss(values - prediction, expectile)).sum())

    return minimiser(loss, float(values.min()), float(values.max()))


def uniform_nodes() -> tuple[Tensor, Tensor]:
    return (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000, torch.ones(4000, dtype=torch.float64)


def normal_nodes() -> tuple[Tensor, Tensor]:
    nodes = torch.linspace(-9, 9, 8001, dtype=torch.float64)
    return nodes, torch.exp(-nodes.square() / 2)


@pytest.mark.parametrize(
    ("expectile", "known"), [(0.5, 0.5), (0.7, 0.60436), (0.8, 2 / 3), (0.9, 0.75), (0.99, 0.90867)]
)
def test_expectile_of_the_uniform_distribution(expectile: float, known: float) -> None:
    assert fitted_expectile(*uniform_nodes(), expectile) == pytest.approx(known, abs=6e-6)
    root = math.sqrt(expectile)
    assert known == pytest.approx(root / (root + math.sqrt(1 - expectile)), abs=6e-6)


@pytest.mark.parametrize(
    ("expectile", "known"),
    [(0.5, 0.0), (0.7, 0.33712), (0.8, 0.54916), (0.9, 0.86159), (0.95, 1.14017), (0.99, 1.71744)],
)
def test_expectile_of_the_normal_distribution(expectile: float, known: float) -> None:
    assert fitted_expectile(*normal_nodes(), expectile) == pytest.approx(known, abs=6e-6)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.83])
@pytest.mark.parametrize("expectile", [0.3, 0.7, 0.95])
def test_expectile_of_a_coin_has_its_closed_form(chance: float, expectile: float) -> None:
    fitted = fitted_expectile(torch.tensor([0.0, 1.0]), torch.tensor([1 - chance, chance]).double(), expectile)
    closed = expectile * chance / (expectile * chance + (1 - expectile) * (1 - chance))
    assert fitted == pytest.approx(closed, abs=1e-6)


@pytest.mark.parametrize(
    ("expectile", "known"), [(0.5, 0.5), (0.7, 0.76087), (0.9, 1.16667), (0.99, 1.86111), (0.999, 1.98512)]
)
def test_expectile_of_three_values(expectile: float, known: float) -> None:
    values, weights = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    assert fitted_expectile(values, weights, expectile) == pytest.approx(known, abs=6e-6)


@pytest.mark.parametrize("expectile", [0.1, 0.7, 0.99])
def test_expectile_is_antisymmetric(expectile: float) -> None:
    values = torch.randn(50, dtype=torch.float64).exp()
    weights = torch.rand(50, dtype=torch.float64)
    upper = fitted_expectile(values, weights, expectile)
    lower = fitted_expectile(-values, weights, 1 - expectile)
    assert lower == pytest.approx(-upper, abs=1e-6)


def test_expectile_half_is_half_the_squared_error() -> None:
    prediction, target = torch.randn(100, dtype=torch.float64), torch.randn(100, dtype=torch.float64)
    loss = expectile_loss(target - prediction, 0.5).mean()
    torch.testing.assert_close(loss, torch.nn.functional.mse_loss(prediction, target) / 2)


def test_expectile_loss_by_hand() -> None:
    found = expectile_loss(torch.tensor([2.0, -2.0, 0.0]), 0.75)
    assert found.tolist() == [3.0, 1.0, 0.0]  # .75 * 4 where the target is above, .25 * 4 where below


def test_expectile_loss_keeps_the_precision_of_its_input() -> None:
    found = expectile_loss(torch.tensor([2.0, -2.0], dtype=torch.float64), 0.9)
    assert found.tolist() == [0.9 * 4, (1 - 0.9) * 4]  # 0.9 in float32 would be 2e-8 off
    assert expectile_loss(torch.ones(1), 0.9).dtype == torch.float32


@pytest.mark.parametrize(("sigma", "transition"), [(0.1, 100.0), (0.5, 4.0), (1.0, 1.0), (3.0, 1 / 9)])
def test_huber_is_half_its_transition_at_the_transition_and_equals_smooth_l1(sigma: float, transition: float) -> None:
    assert sigma**-2 == pytest.approx(transition)
    at = huber_loss(torch.tensor([transition, -transition], dtype=torch.float64), transition)
    torch.testing.assert_close(at, torch.full((2,), transition / 2, dtype=torch.float64))
    errors = torch.randn(500, dtype=torch.float64) * 3 * transition
    smooth = torch.nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), beta=transition, reduction="none")
    torch.testing.assert_close(huber_loss(errors, transition), smooth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transition", [0.25, 1.0, 100.0])
def test_huber_gradient_is_the_clipped_error(transition: float) -> None:
    errors = (torch.randn(300, dtype=torch.float64) * 2 * transition).requires_grad_()
    (gradient,) = torch.autograd.grad(huber_loss(errors, transition).sum(), errors)
    torch.testing.assert_close(gradient, (errors.detach() / transition).clamp(-1, 1), rtol=1e-12, atol=1e-12)


def test_quantile_of_five_and_three_members_by_hand() -> None:
    five = torch.tensor([[5.0], [1.0], [4.0], [2.0], [3.5]])
    assert linear_quantile(five, 0.25).item() == 2.0  # exactly the second smallest
    assert linear_quantile(five, 0.1).item() == pytest.approx(0.6 * 1 + 0.4 * 2)
    assert linear_quantile(five, 0.5).item() == 3.5
    assert linear_quantile(five, 0.0).item() == 1.0
    assert linear_quantile(five, 1.0).item() == 5.0
    three = torch.tensor([[7.0], [1.0], [4.0]])
    assert linear_quantile(three, 0.25).item() == 2.5  # the mean of the two smallest
    assert linear_quantile(torch.tensor([[3.0]]), 0.25).item() == 3.0


@pytest.mark.parametrize("members", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.77, 0.9, 1.0])
def test_quantile_equals_torch_quantile(members: int, level: float) -> None:
    values = torch.randn(members, 40, dtype=torch.float64)
    torch.testing.assert_close(linear_quantile(values, level), torch.quantile(values, level, dim=0))


@pytest.mark.parametrize(
    ("members", "level", "known"), [(5, 0.1, -0.89579), (5, 0.25, -0.49502), (3, 0.1, -0.67703), (3, 0.25, -0.42314)]
)
def test_quantile_of_normal_members_has_the_order_statistics_mean(members: int, level: float, known: float) -> None:
    samples = torch.randn(members, 200_000, generator=torch.Generator().manual_seed(1))
    assert linear_quantile(samples, level).mean().item() == pytest.approx(known, abs=4 / math.sqrt(200_000))


def test_quantile_gradient_goes_to_the_two_members_in_between() -> None:
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0], dtype=torch.float64).unsqueeze(1).requires_grad_()
    (gradient,) = torch.autograd.grad(linear_quantile(values, 0.1).sum(), values)
    torch.testing.assert_close(gradient.squeeze(1), torch.tensor([0, 0.6, 0, 0.4, 0], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(linear_quantile(values, 0.25).sum(), values)
    torch.testing.assert_close(gradient.squeeze(1), torch.tensor([0, 0, 0, 1, 0], dtype=torch.float64))


@pytest.mark.parametrize(("temperature", "threshold"), [(3.0, 1.53506), (10.0, 0.46052), (0.5, 9.21034)])
def test_advantage_weight_reaches_its_limit_at_log_100_over_beta(temperature: float, threshold: float) -> None:
    assert threshold == pytest.approx(math.log(100) / temperature, abs=6e-6)
    near = torch.tensor([threshold - 1e-3, threshold + 1e-3], dtype=torch.float64)
    below, above = advantage_weights(near, temperature).tolist()
    assert below == pytest.approx(100 * math.exp(-1e-3 * temperature), rel=1e-4)
    assert below < 100
    assert above == pytest.approx(100, rel=1e-12)


def test_huge_advantages_give_the_limit_and_finite_gradients_in_float32() -> None:
    advantages = torch.tensor([1e3, 1e30, 3e38, -1e30, 0.0])
    weights = advantage_weights(advantages, 10.0)
    torch.testing.assert_close(weights, torch.tensor([100.0, 100.0, 100.0, 0.0, 1.0]))
    value = torch.zeros(5, requires_grad=True)
    density = torch.ones(5, requires_grad=True)
    loss = (advantage_weights(advantages - value, 10.0) * density).sum()
    of_value, of_density = torch.autograd.grad(loss, (value, density), allow_unused=True)
    assert of_value is None  # no gradient reaches the value through a weight
    torch.testing.assert_close(of_density, weights)


def test_a_nan_advantage_stays_visible() -> None:
    assert advantage_weights(torch.tensor([float("nan")]), 3.0).isnan().all()


def test_zero_temperature_weighs_all_rows_alike() -> None:
    assert advantage_weights(torch.randn(7) * 100, 0.0).tolist() == [1.0] * 7


def test_td_target_stops_bootstrapping_only_at_terminations_and_carries_no_gradient() -> None:
    value = torch.tensor([10.0, 10.0], requires_grad=True)
    target = td_target(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]), value, 0.9)
    assert target.tolist() == [10.0, 1.0]
    assert not target.requires_grad


def test_the_value_loss_is_half_the_square_and_pessimistic_about_large_steps() -> None:
    values, returns, anchor = f64([1.0, 2.0, 0.0, math.nan]), f64([0.0, 0, 0, 0]), f64([0.5, 0.5, 0.0, 0.0])
    mask = f64([1, 1, 1, 0])
    torch.testing.assert_close(value_loss(values, returns, mask=mask), f64([0.5, 2, 0, 0]))
    values = f64([1.0, 0.1, 0.55]).requires_grad_()
    loss = value_loss(values, f64([2.0, 0, 0]), anchor[:3] * 0 + 0.5, clip=0.2)
    torch.testing.assert_close(loss, f64([0.5 * 1.3**2, 0.5 * 0.3**2, 0.5 * 0.55**2]))
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), values)[0], f64([0, 0, 0.55]))
    with pytest.raises(ConfigError, match="without anchor_values"):
        value_loss(values, values, clip=0.2)


def test_explained_variance_is_one_for_the_truth_and_nothing_for_a_constant() -> None:
    returns, mask = f64([1.0, 2, 3, math.nan]), f64([1, 1, 1, 0])
    assert float(explained_variance(returns, returns, mask)) == 1
    assert float(explained_variance(f64([7.0, 7, 7, 0]), returns, mask)) == pytest.approx(0)
    assert float(explained_variance(-returns, returns, mask)) == pytest.approx(-3)
    assert float(explained_variance(returns[:3], torch.ones(3, dtype=torch.float64))) == 0


# -- conservative values -----------------------------------------------------------------------------------


def test_the_conservative_block_is_the_one_worked_out_by_hand_with_and_without_calibration() -> None:
    q, log_densities = f64([[1.0], [2], [0.5]]), f64([[math.log(0.5)], [-0.3], [0.4]])
    nothing = f64([0.0])
    assert float(conservative_gap(q, nothing, log_densities)) == pytest.approx(2.80432458, abs=1e-8)
    bounded = torch.cat([q[:1], q[1:].clamp(min=1.5)])
    assert float(conservative_gap(bounded, nothing, log_densities)) == pytest.approx(2.91316078, abs=1e-8)
    assert float(conservative_gap(q, f64([2.5]), log_densities)) == pytest.approx(0.30432458, abs=1e-8)


@given(st.integers(1, 12), st.integers(1, 6), st.floats(-50, 50))
def test_equal_values_of_uniform_actions_give_their_number_and_the_volume(count: int, dims: int, value: float) -> None:
    q = torch.full((count, 2), value, dtype=torch.float64)
    uniform = torch.full_like(q, -dims * math.log(2))
    expected = value + math.log(count) + dims * math.log(2)
    found = conservative_gap(q, torch.zeros(2, dtype=torch.float64), uniform)
    torch.testing.assert_close(found, torch.full_like(found, expected))


def test_without_the_correction_equal_values_have_no_gap_and_the_gradient_is_a_softmax() -> None:
    data = f64([1.0, 3.0]).requires_grad_()
    sampled = f64([[1.0, 5.0], [1.0, 2.0]]).requires_grad_()
    gap = conservative_gap(sampled, data, temperature=0.5)
    assert float(gap[0].detach()) == pytest.approx(0, abs=1e-12)
    of_sampled, of_data = torch.autograd.grad(gap.sum(), (sampled, data))
    shares = torch.softmax(torch.cat([sampled, data.unsqueeze(0)]).detach() / 0.5, 0)
    torch.testing.assert_close(of_sampled, shares[:2])
    torch.testing.assert_close(of_data, shares[2] - 1)


def test_the_soft_maximum_is_torchs_logsumexp_and_does_not_overflow() -> None:
    values = torch.randn(4, 7, dtype=torch.float64) * 5
    torch.testing.assert_close(soft_maximum(values, 0, 2.0), 2 * torch.logsumexp(values / 2, 0))
    assert soft_maximum(torch.tensor([1e30, 1e30]), 0).isfinite()


def test_target_actions_are_smoothed_by_clipped_noise_and_stay_in_bounds() -> None:
    actions = torch.tensor([[0.0, 0.9, -0.9]], dtype=torch.float64)
    noise = torch.tensor([[1.0, 1.0, -10.0]], dtype=torch.float64)
    found = smoothed_actions(actions, noise, 0.2, 0.5)
    torch.testing.assert_close(found, torch.tensor([[0.2, 1.0, -1.0]], dtype=torch.float64))
    found = smoothed_actions(torch.zeros_like(actions), noise, 0.2, 0.5)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.2, -0.5]], dtype=torch.float64))
