from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from surefoot.envs.systems.quadrotor_2d import GRAVITY, MASS, MAX_THRUST, Quadrotor2D

SYSTEM = Quadrotor2D()
NAMES = [parameter.name for parameter in SYSTEM.parameters]
NOISE = torch.zeros(1, 2, dtype=torch.float64)
HOVER = MASS * GRAVITY / 2


def parameters(**changed: float) -> torch.Tensor:
    values = SYSTEM.default_parameters()
    for name, value in changed.items():
        values[NAMES.index(name)] = value
    return values[None]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_control_step_is_within_2e_6_of_the_exact_solution() -> None:
    generator = np.random.default_rng(0)
    for _ in range(40):
        p = parameters(
            gravity=generator.uniform(5, 20),
            mass=generator.uniform(0.02, 0.05),
            inertia=generator.uniform(1.4e-5, 3e-5),
            arm=generator.uniform(0.03, 0.04),
            thrust_gain=generator.uniform(0.5, 1.0),
            drag=generator.uniform(0, 0.1),
            wind_x=generator.uniform(-0.1, 0.1),
        )
        g, m, inertia, arm, gain, drag, wind = p[0, :7].tolist()
        start = generator.uniform([-1, -2, 0.5, -2, -1, -10], [1, 2, 2, 2, 1, 10])
        left, right = generator.uniform(0, MAX_THRUST, 2)
        force, torque = gain * (left + right), gain * (right - left) * arm / math.sqrt(2)

        def derivative(
            _: float, s: np.ndarray, v: tuple = (g, m, drag, wind, force, torque / inertia)
        ) -> tuple[float, ...]:
            ax = v[4] * math.sin(s[4]) / v[1] + (v[3] - v[2] * s[1]) / v[1]
            az = v[4] * math.cos(s[4]) / v[1] - v[0] - v[2] * s[3] / v[1]
            return s[1], ax, s[3], az, s[5], v[5]

        exact = solve_ivp(derivative, (0, 1 / 60), start, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
        stepped = SYSTEM.step(torch.tensor(start)[None], rows([left, right]), p, NOISE).state[0].numpy()
        np.testing.assert_allclose(stepped[[0, 2]], exact[[0, 2]], rtol=0, atol=2e-8)
        np.testing.assert_allclose(stepped[[1, 3]], exact[[1, 3]], rtol=0, atol=2e-6)
        np.testing.assert_allclose(stepped[4:], exact[4:], rtol=1e-13, atol=1e-13)


def test_half_the_weight_on_each_pair_hovers_and_stays_put() -> None:
    state = rows([0.3, 0.0, 1.4, 0.0, 0.0, 0.0])
    for _ in range(60):
        step = SYSTEM.step(state, rows([HOVER, HOVER]), parameters(), NOISE)
        state = step.state
        # 0.3 m and 0.4 m from the target (0, 1): 1 / (1 + 4 * 0.25)
        assert step.reward.item() == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_allclose(state[0], [0.3, 0, 1.4, 0, 0, 0], atol=1e-12)


def test_without_thrust_it_falls_by_half_g_t_squared_and_ends_at_the_ground() -> None:
    state = rows([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    for k in range(1, 60):
        step = SYSTEM.step(state, rows([0.0, 0.0]), parameters(), NOISE)
        state = step.state
        assert state[0, 2].item() == pytest.approx(1 - 4.9 * (k / 60) ** 2, abs=1e-12)
        if step.terminated.item():
            break
    assert k == math.ceil(60 * math.sqrt(1 / 4.9))  # 28th step


def test_full_thrust_on_the_right_turns_it_by_the_torque_over_the_inertia() -> None:
    # 0.297675 N * 0.0397 m / sqrt(2) / 1.4e-5 kg m^2 = 596.884 rad/s^2, for 1/60 s
    step = SYSTEM.step(rows([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), rows([0.0, 0.297675]), parameters(), NOISE)
    assert step.state[0, 5].item() == pytest.approx(596.884 / 60, rel=1e-5)
    assert step.state[0, 4].item() == pytest.approx(596.884 / 60 / 120, rel=1e-5)


@pytest.mark.parametrize(
    ("x", "z", "tilt", "margin", "terminated"),
    [
        (0.0, 1.0, 0.0, 0.5, False),  # 0.5 rad of tilt are nearer than 0.8 m of floor
        (-1.4, 1.0, 0.0, 0.1, False),
        (1.7, 1.0, 0.0, -0.2, False),
        (0.0, 0.25, 0.0, 0.05, False),
        (0.0, 2.2, 0.0, -0.2, False),
        (0.0, 1.0, -0.7, -0.2, False),
        (2.1, 1.0, 0.0, -0.6, True),
        (0.0, 3.1, 0.0, -1.1, True),
        (0.0, -0.1, 0.0, -0.3, True),
        (0.0, 1.0, 1.5, -1.0, True),
    ],
)
def test_margin_and_end_are_the_ones_worked_out_by_hand(
    x: float, z: float, tilt: float, margin: float, terminated: bool
) -> None:
    # no gravity and no thrust: the state stays
    step = SYSTEM.step(rows([x, 0.0, z, 0.0, tilt, 0.0]), rows([0.0, 0.0]), parameters(gravity=0.0), NOISE)
    assert step.margin.item() == pytest.approx(margin)
    assert step.terminated.item() is terminated


def test_noise_is_added_to_the_thrusts_before_they_are_clipped_to_what_the_motors_can() -> None:
    p = parameters(action_noise=0.05)
    state = rows([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]).expand(2, 6)
    noisy = SYSTEM.step(state, rows([0.1, 0.1], [0.29, 0.01]), p, rows([1.0, -1.0], [2.0, -2.0]))
    clean = SYSTEM.step(state, rows([0.15, 0.05], [MAX_THRUST, 0.0]), p, rows([0.0, 0.0]))
    np.testing.assert_allclose(noisy.state, clean.state, rtol=1e-12)


def test_positions_are_observed_relative_to_the_target() -> None:
    p = parameters(target_x=0.5, target_z=1.5)
    observed = SYSTEM.observe(rows([0.7, 0.1, 1.2, 0.2, 0.3, 0.4]), p)
    np.testing.assert_allclose(observed, [[0.2, 0.1, -0.3, 0.2, 0.3, 0.4]], atol=1e-12)


def mean_return(behaviour: str, count: int = 100) -> float:
    generator = np.random.default_rng(3)
    p = parameters().expand(count, -1)
    state = SYSTEM.reset(torch.tensor(generator.random((count, 6))), p)
    alive, total = torch.ones(count, dtype=torch.bool), torch.zeros(count).double()
    for _ in range(SYSTEM.max_steps):
        action = torch.tensor(SYSTEM.behaviours[behaviour](SYSTEM.observe(state, p).numpy(), generator))
        assert bool(((action >= 0) & (action <= MAX_THRUST)).all())
        step = SYSTEM.step(state, action, p, NOISE)
        total += alive * step.reward
        alive &= ~step.terminated
        state = step.state
    return total.mean().item()


def test_expert_beats_medium_beats_random() -> None:
    expert, medium, random = mean_return("expert"), mean_return("medium"), mean_return("random")
    assert expert > 260  # of at most 300
    assert expert > 2 * medium > 4 * random


def test_resets_fill_the_box_that_is_documented() -> None:
    state = SYSTEM.reset(rows([0.0] * 6, [1.0] * 6), parameters())
    np.testing.assert_allclose(state, [[-1.2, -0.5, 0.5, -0.5, -0.2, -0.2], [1.2, 0.5, 1.7, 0.5, 0.2, 0.2]])
