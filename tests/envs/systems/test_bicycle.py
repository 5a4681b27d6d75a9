from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from surefoot.envs.systems.bicycle import MAX_ACCELERATION, MAX_STEER, Bicycle

SYSTEM = Bicycle()
NAMES = [parameter.name for parameter in SYSTEM.parameters]
NOISE = torch.zeros(1, 1, dtype=torch.float64)
FAR = [500.0, 0.0, 600.0, 0.0, 700.0, 0.0]  # other cars that don't matter


def parameters(**changed: float) -> torch.Tensor:
    values = SYSTEM.default_parameters()
    for name, value in changed.items():
        values[NAMES.index(name)] = value
    return values[None]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("limited", [False, True])
def test_a_control_step_is_the_exact_solution_even_where_the_speed_meets_a_limit_within_it(limited: bool) -> None:
    generator = np.random.default_rng(0)
    met = 0
    for _ in range(15):
        wheelbase, gain, push, wind = generator.uniform([2, 0.5, 0.5, -1], [5, 1.2, 1.5, 1])
        p = parameters(wheelbase=wheelbase, steer_gain=gain, acceleration_gain=push, wind_y=wind, grip=2.0)
        ends = [0.2, 19.8] if limited else [5.0, 10.0]
        speed = generator.choice(ends) + generator.uniform(-0.2, 0.2)
        start = np.array([0.0, generator.uniform(-3, 3), generator.uniform(-1, 1), speed])
        steer = generator.uniform(-1, 1) * 0.6 * min(1.0, 5 / speed**2)  # well within the grip
        a = generator.uniform(-5, 5)
        b = math.atan(math.tan(gain * steer) / 2)
        met += not 0 < speed + 0.1 * push * a < 20

        def derivative(
            t: float, s: np.ndarray, v: tuple = (speed, push * a, b, wheelbase / 2, wind)
        ) -> tuple[float, float, float]:
            now = min(max(v[0] + v[1] * t, 0.0), 20.0)
            return now * math.cos(s[2] + v[2]), now * math.sin(s[2] + v[2]) + v[4], now / v[3] * math.sin(v[2])

        exact = solve_ivp(derivative, (0, 0.1), start[:3], method="DOP853", rtol=1e-11, atol=1e-11, max_step=2e-4).y[
            :, -1
        ]
        step = SYSTEM.step(rows([*start, *FAR]), rows([steer, a]), p, NOISE)
        # the kink where the speed meets its limit costs the integrator up to (2e-4)^2 a
        np.testing.assert_allclose(step.state[0, :3], exact, rtol=0, atol=3e-7 if limited else 1e-10)
        assert step.state[0, 3].item() == pytest.approx(min(max(speed + 0.1 * push * a, 0.0), 20.0))
    assert (met >= 3) is limited


def test_constant_steering_runs_on_the_circle_of_the_model() -> None:
    # tan b = tan(0.3) / 2, radius (L / 2) / sin b about a centre at a right angle to the direction of travel
    b = math.atan(math.tan(0.3) / 2)
    radius = 1.25 / math.sin(b)
    assert radius == pytest.approx(8.177, abs=1e-3)
    centre = np.array([-radius * math.sin(b), radius * math.cos(b)])
    state = rows([0.0, 0.0, 0.0, 5.0, *FAR])
    for _ in range(100):
        state = SYSTEM.step(state, rows([0.3, 0.0]), parameters(), NOISE).state
        assert math.dist(state[0, :2].tolist(), centre) == pytest.approx(radius, abs=1e-9)
    assert state[0, 2].item() == pytest.approx(50 / radius)  # 50 m of way


def test_speeding_up_straight_on_gains_v_t_plus_half_a_t_squared_and_its_reward() -> None:
    step = SYSTEM.step(rows([3.0, 1.0, 0.0, 10.0, *FAR]), rows([0.0, 5.0]), parameters(), NOISE)
    np.testing.assert_allclose(step.state[0, :4], [4.025, 1.0, 0.0, 10.5])
    assert step.reward.item() == pytest.approx(1.025 / 2)
    turned = SYSTEM.step(rows([3.0, 1.0, 0.0, 0.0, *FAR]), rows([math.pi / 8, 0.0]), parameters(), NOISE)
    assert turned.reward.item() == pytest.approx(-0.025)  # half of the bound, squared, a tenth


def test_a_car_that_brakes_stands_and_does_not_reverse() -> None:
    # 0.1 m/s at -5 m/s^2: stands after 0.02 s and 0.001 m
    step = SYSTEM.step(rows([0.0, 0.0, 0.0, 0.1, *FAR]), rows([0.0, -5.0]), parameters(), NOISE)
    np.testing.assert_allclose(step.state[0, [0, 3]], [0.001, 0.0], atol=1e-15)


def test_lateral_acceleration_never_exceeds_what_the_tyres_hold() -> None:
    speeds = torch.linspace(0.5, 20, 40).double()
    state = torch.zeros(40, 10).double()
    state[:, 3], state[:, 4::2] = speeds, 500.0
    turned = SYSTEM.step(state, rows([MAX_STEER, 0.0]), parameters(grip=0.5), NOISE).state[:, 2] / 0.1
    lateral = turned * speeds
    assert lateral.max().item() == pytest.approx(0.5 * 9.8)
    slow = speeds < 2  # 2 sin(atan(1 / 2)) / 2.5 = 0.3578 1/m allows 3.70 m/s
    np.testing.assert_allclose(turned[slow], 0.35777 * speeds[slow], rtol=1e-4)


@pytest.mark.parametrize(
    ("y", "car", "margin", "terminated"),
    [
        (0.0, (30.0, 0.0), 5.0, False),  # the edge: 6 m less 1 m of half the car's width
        (4.0, (30.0, 0.0), 1.0, False),
        (5.5, (30.0, 0.0), -0.5, False),
        (6.5, (30.0, 0.0), -1.5, True),
        (0.0, (7.0, 0.0), 1.5, False),  # 2 m between the bumpers, less the clearance of 0.5 m
        (0.0, (5.3, 0.0), -0.2, False),
        (0.0, (4.9, 0.0), -0.6, True),
        (0.0, (0.0, 4.0), 1.5, False),  # side by side in two lanes
        (0.0, (-4.0, -1.9), -0.6, True),
        (0.0, (5.3, -2.4), 0.0, False),  # corners 0.3 and 0.4 m apart
    ],
)
def test_margin_and_end_are_the_ones_worked_out_by_hand(
    y: float, car: tuple[float, float], margin: float, terminated: bool
) -> None:
    p = parameters(traffic_speed=0.0)
    state = rows([100.0, y, 0.0, 0.0, 100.0 + car[0], y + car[1], *FAR[2:]])
    step = SYSTEM.step(state, rows([0.0, 0.0]), p, NOISE)
    assert step.margin.item() == pytest.approx(margin, abs=1e-9)
    assert step.terminated.item() is terminated


def test_other_cars_drive_on_and_come_back_ahead_one_lane_to_the_left() -> None:
    # 0.6 m a step; car 1 falls 15 m behind, car 2 not yet, car 3 is overtaken in the left lane
    state = rows([100.0, 0.0, 0.0, 0.0, 84.3, 0.0, 84.5, 4.0, 80.0, 4.0])
    after = SYSTEM.step(state, rows([0.0, 0.0]), parameters(), NOISE).state[0, 4:]
    np.testing.assert_allclose(after, [204.9, 4.0, 85.1, 4.0, 200.6, -4.0])


def test_observations_are_relative_to_the_car() -> None:
    state = rows([10.0, 1.0, 0.5, 7.0, 40.0, 4.0, 80.0, 0.0, 5.0, -4.0])
    expected = [1.0, math.sin(0.5), math.cos(0.5), 7.0, 30.0, 3.0, 70.0, -1.0, -5.0, -5.0]
    np.testing.assert_allclose(SYSTEM.observe(state, parameters())[0], expected)


def mean_return(behaviour: str, count: int = 100) -> tuple[float, float]:
    """Mean return and share of the episodes that ended before their time."""
    generator = np.random.default_rng(3)
    p = parameters().expand(count, -1)
    state = SYSTEM.reset(torch.tensor(generator.random((count, 10))), p)
    alive, total = torch.ones(count, dtype=torch.bool), torch.zeros(count).double()
    bounds = torch.tensor([MAX_STEER, MAX_ACCELERATION]).double()
    for _ in range(SYSTEM.max_steps):
        action = torch.tensor(SYSTEM.behaviours[behaviour](SYSTEM.observe(state, p).numpy(), generator))
        assert bool((action.abs() <= bounds).all())
        step = SYSTEM.step(state, action, p, NOISE)
        total += alive * step.reward
        alive &= ~step.terminated
        state = step.state
    return total.mean().item(), 1 - alive.double().mean().item()


def test_expert_beats_medium_beats_random_and_overtakes_without_an_accident() -> None:
    expert, medium, random = mean_return("expert"), mean_return("medium"), mean_return("random")
    rushing = mean_return("rushing")
    assert expert[0] > 185  # of at most 200
    assert expert[0] > 1.5 * medium[0] > 6 * random[0]
    assert expert[1] == 0
    assert rushing[1] > 0.7


def test_resets_put_cars_in_the_middle_of_lanes_and_far_enough_ahead() -> None:
    draws = torch.tensor(np.random.default_rng(0).random((2000, 10)))
    state = SYSTEM.reset(draws, parameters()).numpy()
    for column in (5, 7, 9):
        assert set(state[:, column]) == {-4.0, 0.0, 4.0}
    assert np.abs(state[:, 1] - 4 * np.round(state[:, 1] / 4)).max() <= 0.5
    for k, column in enumerate((4, 6, 8)):
        assert state[:, column].min() >= 35 + 40 * k
        assert state[:, column].max() <= 45 + 40 * k
    assert state[:, 3].min() >= 8
    assert state[:, 3].max() <= 12
