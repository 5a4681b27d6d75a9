"""Paths from noise to data: grid, losses, sampler, and the targets of shortcut models and of MeanFlow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.flow import (
    REST,
    Stretch,
    adaptive_weight,
    draw_mean_flow,
    draw_shortcut,
    draw_times,
    euler,
    flow_matching_loss,
    interpolate,
    mean_flow_target,
    shortcut_rows,
    shortcut_target,
    times,
)
from surefoot.core.nn.velocity import PlainVelocity, ShortcutVelocity


@pytest.mark.parametrize("steps", [1, 2, 4, 7, 10])
def test_a_velocity_is_asked_for_at_k_over_K_and_never_at_1(steps: int) -> None:
    """A grid of K numbers from 0 to 1, both included, is the mistake that this catches."""
    asked = []

    def field(x: Tensor, time: Tensor) -> Tensor:
        asked.append(float(time))
        return 0 * x

    euler(field, torch.zeros(3, 2), steps)
    assert asked == pytest.approx([k / steps for k in range(steps)], abs=1e-7)
    assert times(steps) == tuple(k / steps for k in range(steps))


def test_two_steps_are_two_lines_of_euler_and_a_straight_path_ends_at_the_data() -> None:
    x = torch.tensor([[0.3, -0.7]], dtype=torch.float64)
    half = x + 0.5 * (x.square() + 0.0)
    expected = half + 0.5 * (half.square() + 0.5)
    found = euler(lambda x, t: x.square() + t, x, 2)
    torch.testing.assert_close(found, expected)
    data = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    end = euler(lambda x, t: (data - x) / (1 - t), x, 5)  # the velocity towards one point
    torch.testing.assert_close(end, data)


def test_the_sampler_leaves_its_noise_as_it_was_so_that_two_flows_can_start_from_it() -> None:
    noise = torch.randn(4, 3)
    before = noise.clone()
    one = euler(lambda x, t: torch.ones_like(x), noise, 4, limit=1.0, clip_each=True)
    other = euler(lambda x, t: torch.ones_like(x), noise, 4, limit=1.0, clip_each=True)
    assert torch.equal(noise, before)
    assert torch.equal(one, other)


def test_only_the_last_place_is_clipped_unless_every_one_is_to_be() -> None:
    start = torch.zeros(1, 1)
    there_and_back = lambda x, t: torch.where(t < 0.5, 4.0, -3.0).expand_as(x)  # noqa: E731
    assert float(euler(there_and_back, start, 2)) == 0.5
    assert float(euler(there_and_back, start, 2, limit=1.0)) == 0.5
    assert float(euler(there_and_back, start, 2, limit=1.0, clip_each=True)) == -0.5
    with pytest.raises(ConfigError, match="there is none"):
        euler(there_and_back, start, 2, clip_each=True)
    with pytest.raises(ConfigError, match="1 or more"):
        times(0)


def test_the_loss_is_a_mean_over_all_numbers_with_weights_and_masks_in_the_numerator_only() -> None:
    predicted, velocity = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(flow_matching_loss(predicted, velocity)) == 7.5
    assert float(flow_matching_loss(predicted, velocity, weight=torch.tensor([1.0, 0.5]))) == (1 + 4 + 4.5 + 8) / 4
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert float(flow_matching_loss(predicted, velocity, mask=mask)) == (1 + 9 + 16) / 4


def test_a_path_goes_straight_from_noise_at_0_to_data_at_1() -> None:
    noise, data, time = torch.tensor([[1.0]] * 3), torch.tensor([[5.0]] * 3), torch.tensor([0.0, 0.25, 1.0])
    x, velocity = interpolate(noise, data, time)
    assert x.squeeze(-1).tolist() == [1.0, 2.0, 5.0]
    assert velocity.squeeze(-1).tolist() == [4.0] * 3
    x, velocity = interpolate(noise, data, time, rest=0.5)
    assert x.squeeze(-1).tolist() == [1.0, 0.875 + 1.25, 5.5]
    assert velocity.squeeze(-1).tolist() == [4.5] * 3


def test_times_follow_their_laws() -> None:
    uniform = (torch.arange(100_000) + 0.5) / 100_000
    assert torch.equal(draw_times(uniform), uniform)
    beta = draw_times(uniform, "beta")
    assert float(beta.mean()) == pytest.approx(0.999 * (1 - 0.6), abs=1e-4)  # Beta(3/2, 1) has the mean 3/5
    assert float(beta.var()) == pytest.approx(0.999**2 * 1.5 / (2.5**2 * 3.5), abs=1e-4)
    normal = torch.logit(draw_times(uniform, "logit_normal"))
    assert float(normal.mean()) == pytest.approx(0, abs=1e-3)
    assert float(normal.std()) == pytest.approx(1, abs=1e-3)
    assert bool(draw_times(torch.zeros(1), "logit_normal").isfinite())
    with pytest.raises(ConfigError, match="logit_normal"):
        draw_times(uniform, "normal")


def test_shortcut_steps_are_powers_of_two_on_their_own_grid_in_the_first_quarter_of_a_batch() -> None:
    uniform = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    stretch = draw_shortcut(uniform, finest=16)
    first = shortcut_rows(4000)
    assert first == 1000
    sizes, counts = stretch.size[:first].unique(return_counts=True)
    assert sizes.tolist() == [0.125, 0.25, 0.5, 1.0]
    assert float(counts.min()) > 200
    multiples = stretch.time[:first] / stretch.size[:first]
    assert torch.equal(multiples, multiples.round())
    assert float((stretch.time + stretch.size).max()) <= 1.0
    assert float(stretch.size[first:].abs().max()) == 0
    assert torch.equal(stretch.time[first:], uniform[first:, 0])
    with pytest.raises(ConfigError, match="power of 2"):
        draw_shortcut(uniform, finest=20)


def test_a_shortcut_of_an_exact_field_needs_no_correction_and_the_target_is_two_half_steps() -> None:
    """Of v = x the mean velocity over a step of size d is x (e^d - 1) / d."""

    def exact(x: Tensor, time: Tensor, size: Tensor) -> Tensor:
        d = size.unsqueeze(-1)
        return x * torch.expm1(d) / d

    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    stretch = Stretch(torch.tensor([0.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))
    torch.testing.assert_close(shortcut_target(exact, x, stretch), exact(x, *stretch))
    asked = []

    def rough(x: Tensor, time: Tensor, size: Tensor) -> Tensor:
        asked.append((float(time), float(size)))
        return x + time.unsqueeze(-1)

    found = shortcut_target(rough, x, stretch)
    assert asked == [(0.0, 0.25), (0.25, 0.25)]
    torch.testing.assert_close(found, (x + (x + 0.25 * x + 0.25)) / 2)


def test_mean_flow_target_of_the_exact_mean_velocity_is_the_mean_velocity() -> None:
    """Of v(x, t) = x + t the flow is known: u over [t, t + d] is (x + t + 1) (e^d - 1) / d - 1."""

    def exact(x: Tensor, time: Tensor, size: Tensor) -> Tensor:
        d, t = size.unsqueeze(-1), time.unsqueeze(-1)
        return (x + t + 1) * torch.expm1(d) / d - 1

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, generator=generator, dtype=torch.float64)
    stretch = draw_mean_flow(torch.rand(16, 3, generator=generator, dtype=torch.float64), share=0.0)
    velocity = x + stretch.time.unsqueeze(-1)
    found = mean_flow_target(exact, x, velocity, stretch)
    torch.testing.assert_close(found, exact(x, *stretch))
    wrong = mean_flow_target(exact, x, velocity, Stretch(stretch.time, -stretch.size))
    assert float((wrong - exact(x, *stretch)).abs().max()) > 0.01


def test_mean_flow_target_of_size_0_is_the_velocity_and_differences_agree_with_its_derivative() -> None:
    network = ShortcutVelocity(3, 2, (16, 16, 16), "mish").double()
    generator = torch.Generator().manual_seed(2)
    seen, x, velocity = (torch.randn(8, n, generator=generator, dtype=torch.float64) for n in (3, 2, 2))
    time, size = torch.rand(8, dtype=torch.float64) / 2, torch.rand(8, dtype=torch.float64) / 2

    def field(x: Tensor, time: Tensor, size: Tensor) -> Tensor:
        return network(seen, x, time, size)

    found = mean_flow_target(field, x, velocity, Stretch(time, size))
    assert not found.requires_grad
    h = 1e-6
    ahead, behind = field(x + h * velocity, time + h, size - h), field(x - h * velocity, time - h, size + h)
    expected = velocity + size.unsqueeze(-1) * (ahead - behind) / (2 * h)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)
    plain = mean_flow_target(field, x, velocity, Stretch(time, 0 * size))
    torch.testing.assert_close(plain, velocity)


def test_mean_flow_stretches_are_inside_0_and_1_and_most_have_size_0() -> None:
    uniform = torch.rand(10_000, 3, generator=torch.Generator().manual_seed(3))
    stretch = draw_mean_flow(uniform, share=0.75)
    assert float((stretch.size == 0).float().mean()) == pytest.approx(0.75, abs=0.02)
    assert float((stretch.time + stretch.size).max()) <= 1 + 1e-6
    plain = stretch.size == 0
    assert float(stretch.time[plain].mean()) == pytest.approx(0.5, abs=0.02)


def test_adaptive_weights_are_inverse_errors_without_gradient() -> None:
    predicted = torch.tensor([[3.0, 4.0]], requires_grad=True)
    weight = adaptive_weight(predicted, torch.zeros(1, 2), power=0.5, least=11.0)
    assert float(weight) == pytest.approx(1 / 6)
    assert not weight.requires_grad


# -- two dimensions, eight Gaussians ---------------------------------------------------------------------------

MODES, RADIUS, SPREAD = 8, 2.0, 0.2


def centres() -> Tensor:
    angles = 2 * math.pi * torch.arange(MODES) / MODES
    return RADIUS * torch.stack([angles.cos(), angles.sin()], -1)


def data(rows: int, generator: torch.Generator) -> Tensor:
    which = torch.randint(MODES, (rows,), generator=generator)
    return centres()[which] + SPREAD * torch.randn(rows, 2, generator=generator)


def closed_form(x: Tensor, time: Tensor) -> Tensor:
    """The velocity of the straight paths' mixture, by hand: each mode's own, weighted by how likely it is."""
    t = time.reshape(-1, 1, 1)
    variance = t.square() * SPREAD**2 + (1 - t).square()
    away = x.unsqueeze(1) - t * centres()
    weight = (-away.square().sum(-1, keepdim=True) / (2 * variance)).softmax(1)
    return (weight * (centres() + (t * SPREAD**2 - (1 - t)) / variance * away)).sum(1)


def energy_distance(one: Tensor, other: Tensor) -> float:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'|, without the pairs of a point with itself."""
    rows = len(one)
    within = sum(torch.cdist(x, x).sum() / (rows * (rows - 1)) for x in (one, other))
    return float(2 * torch.cdist(one, other).mean() - within)


@pytest.mark.parametrize(("steps", "found", "within"), [(1, 1.44, 0.05), (2, 0.161, 0.02), (4, 0.012, 0.008)])
def test_few_steps_of_the_exact_field_end_as_far_from_the_data_as_the_reference(
    steps: int, found: float, within: float
) -> None:
    generator = torch.Generator().manual_seed(steps)
    drawn = euler(closed_form, torch.randn(2000, 2, generator=generator), steps)
    assert energy_distance(drawn, data(2000, generator)) == pytest.approx(found, abs=within)


@pytest.mark.slow
def test_flow_matching_finds_the_closed_form_field_and_all_modes() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = PlainVelocity(1, 2, (128, 128, 128), "silu")
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    nothing = torch.zeros(512, 1)
    for _ in range(1500):
        noise, time = torch.randn(512, 2, generator=generator), torch.rand(512, generator=generator)
        x, velocity = interpolate(noise, data(512, generator), time)
        loss = flow_matching_loss(network(nothing, x, time), velocity)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        time = 0.05 + 0.9 * torch.rand(4000, generator=generator)
        x, _ = interpolate(torch.randn(4000, 2, generator=generator), data(4000, generator), time)
        exact = closed_form(x, time)
        error = (network(torch.zeros(4000, 1), x, time) - exact).square().mean()
        assert float(error / exact.square().mean()) < 0.08
        seen = torch.zeros(4000, 1)
        drawn = euler(lambda x, t: network(seen, x, t), torch.randn(4000, 2, generator=generator), 20)
    assert energy_distance(drawn[:2000], data(2000, generator)) < 0.02
    nearest = torch.cdist(drawn, centres()).argmin(-1).bincount(minlength=MODES) / 4000
    assert float((nearest - 1 / MODES).abs().max()) < 0.03


# -- one step --------------------------------------------------------------------------------------------------


def two_modes(rows: int, generator: torch.Generator) -> Tensor:
    return (2.0 * torch.randint(2, (rows, 1), generator=generator) - 1) + SPREAD * torch.randn(
        rows, 1, generator=generator
    )


def mean_flow_loss(network: ShortcutVelocity, noise: Tensor, actions: Tensor, uniform: Tensor) -> Tensor:
    seen = torch.zeros(len(noise), 1)
    stretch = draw_mean_flow(uniform, share=0.5)
    x, velocity = interpolate(noise, actions, stretch.time)
    target = mean_flow_target(lambda *where: network(seen, *where), x, velocity, stretch)
    return flow_matching_loss(network(seen, x, *stretch), target)


def shortcut_loss(network: ShortcutVelocity, noise: Tensor, actions: Tensor, uniform: Tensor) -> Tensor:
    first, seen = shortcut_rows(len(noise)), torch.zeros(len(noise), 1)
    stretch = draw_shortcut(uniform[:, :2], finest=16)
    x, velocity = interpolate(noise, actions, stretch.time, REST)
    consistent = Stretch(stretch.time[:first], stretch.size[:first])
    target = shortcut_target(lambda *where: network(seen[:first], *where), x[:first], consistent)
    return flow_matching_loss(network(seen, x, *stretch), torch.cat([target, velocity[first:]]))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [mean_flow_loss, shortcut_loss])
def test_mean_velocities_draw_two_modes_in_one_step_where_a_plain_flow_draws_their_mean(
    loss: Callable[..., Tensor],
) -> None:
    """A step of the exact velocity at t = 0 ends at the mean of the data, 0.66 away; these end at most 0.15 away."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = ShortcutVelocity(1, 1, (64, 64, 64), "mish", 16, (16, 16))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    for _ in range(600):
        noise, actions = torch.randn(256, 1, generator=generator), two_modes(256, generator)
        optimizer.zero_grad()
        loss(network, noise, actions, torch.rand(256, 3, generator=generator)).backward()
        optimizer.step()
        schedule.step()
    noise, seen, one = torch.randn(2000, 1, generator=generator), torch.zeros(2000, 1), torch.ones(1)
    with torch.no_grad():
        drawn = euler(lambda x, time: network(seen, x, time, one), noise, 1)
        mean = euler(lambda x, time: 0 * x - noise, noise, 1)
    assert energy_distance(mean, two_modes(2000, generator)) > 0.6
    assert energy_distance(drawn, two_modes(2000, generator)) < 0.15
    assert float((drawn > 0).float().mean()) == pytest.approx(0.5, abs=0.1)
