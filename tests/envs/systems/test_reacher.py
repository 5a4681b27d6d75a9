"""Reacher against Lagrange's equations from the links' Jacobians, integrated by scipy, and geometry by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import torch

from surefoot.envs.systems.reacher import Reacher

SYSTEM = Reacher()
NAMES = [parameter.name for parameter in SYSTEM.parameters]


def parameters(count: int, **changed: float) -> torch.Tensor:
    row = SYSTEM.default_parameters()
    for name, value in changed.items():
        row[NAMES.index(name)] = value
    return row.expand(count, -1)


def lagrange(p: dict[str, float], torque: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Time derivative of (q, w); rods with m l^2 / 12 about their centres, a point mass at the tip."""

    def bodies(q: np.ndarray) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """(mass, Jacobian of its centre, height) of both rods and the payload."""
        a, b = q[0], q[0] + q[1]
        turn_a = p["length_1"] * np.array([[-np.sin(a), 0], [np.cos(a), 0]])
        turn_b = p["length_2"] * np.array([[-np.sin(b)] * 2, [np.cos(b)] * 2])
        up_a, up_b = p["length_1"] * np.sin(a), p["length_2"] * np.sin(b)
        return [
            (p["mass_1"], turn_a / 2, up_a / 2),
            (p["mass_2"], turn_a + turn_b / 2, up_a + up_b / 2),
            (p["payload"], turn_a + turn_b, up_a + up_b),
        ]

    def mass_matrix(q: np.ndarray) -> np.ndarray:
        spin_1 = p["mass_1"] * p["length_1"] ** 2 / 12 * np.array([[1, 0], [0, 0]])
        spin_2 = p["mass_2"] * p["length_2"] ** 2 / 12 * np.ones((2, 2))
        return sum(m * j.T @ j for m, j, _ in bodies(q)) + spin_1 + spin_2 + p["armature"] * np.eye(2)

    q, w = state[:2], state[2:]
    shifted = [q + 1e-30j * e for e in np.eye(2)]  # complex step: exact derivatives
    by = [mass_matrix(x).imag / 1e-30 for x in shifted]
    weight = np.array([p["gravity"] * sum(m * up for m, _, up in bodies(x)).imag / 1e-30 for x in shifted])
    forces = torque - p["friction"] * w - (by[0] * w[0] + by[1] * w[1]) @ w - weight
    forces = forces + 0.5 * np.array([w @ by[0] @ w, w @ by[1] @ w])
    return np.concatenate([w, np.linalg.solve(mass_matrix(q), forces)])


@pytest.mark.parametrize("changed", [{}, {"gravity": 9.81, "payload": 0.05, "mass_1": 0.1, "armature": 3e-4}])
def test_a_step_is_the_integral_of_lagranges_equations_to_the_order_of_runge_kutta(changed: dict[str, float]) -> None:
    generator = np.random.default_rng(0)
    count = 25
    arm = generator.uniform((-3, -2.9, -15, -15), (3, 2.9, 15, 15), (count, 4))
    action = generator.uniform(-1, 1, (count, 2))
    p = parameters(count, **changed)
    named = dict(zip(NAMES, p[0].tolist()))
    state = torch.from_numpy(np.concatenate([arm, np.full((count, 2), 0.1)], 1))
    ours = SYSTEM.step(state, torch.from_numpy(action), p, torch.zeros(count, 2)).state.numpy()
    for k in range(count):
        torque = named["torque"] * action[k]
        exact = scipy.integrate.solve_ivp(
            lambda _, s, torque=torque: lagrange(named, torque, s), (0, 0.02), arm[k], rtol=1e-11, atol=1e-12
        ).y[:, -1]
        # local error (w h)^5 / 120 with w up to 50 rad/s, h 0.01 s, of velocities up to 50
        np.testing.assert_allclose(ours[k, :2], exact[:2], atol=3e-5)
        np.testing.assert_allclose(ours[k, 2:4], exact[2:], atol=5e-3)
        assert (ours[k, 4:] == 0.1).all()
    errors = [np.abs(ours[k, :4] - arm[k]).max() for k in range(count)]
    assert min(errors) > 0.02  # the arm moved


def test_halving_the_time_between_samples_divides_the_error_by_about_sixteen() -> None:
    p = parameters(1)
    named = dict(zip(NAMES, p[0].tolist()))
    arm = np.array([0.3, 1.1, 6.0, -9.0])
    exact = scipy.integrate.solve_ivp(
        lambda _, s: lagrange(named, np.array([0.025, -0.04]), s), (0, 0.08), arm, rtol=1e-12, atol=1e-13
    ).y[:, -1]

    def error(step: float) -> float:
        class Slower(Reacher):
            time_step = step

        state = torch.from_numpy(np.concatenate([arm, [0.1, 0.1]]))[None]
        for _ in range(round(0.08 / step)):
            state = Slower().step(state, torch.tensor([[0.5, -0.8]]).double(), p, torch.zeros(1, 2)).state
        return float(np.abs(state[0, :4].numpy() - exact).max())

    assert 10 < error(0.02) / error(0.01) < 25


def test_margin_is_the_distance_of_the_obstacle_from_densely_sampled_links_or_the_elbows_arc() -> None:
    generator = np.random.default_rng(1)
    count = 300
    state = torch.from_numpy(generator.uniform((-3, -3.2, 0, 0, 0, 0), (3, 3.2, 1, 1, 0.1, 0.1), (count, 6)))
    p = parameters(count, obstacle_distance=0.12, obstacle_angle=1.0, obstacle_radius=0.02)
    step = SYSTEM.step(state, torch.zeros(count, 2), p, torch.zeros(count, 2))
    q1, q2 = step.state[:, 0].numpy(), step.state[:, 1].numpy()
    share = np.linspace(0, 1, 2001)[:, None]
    elbow = 0.1 * np.stack([np.cos(q1), np.sin(q1)])
    tip = elbow + 0.11 * np.stack([np.cos(q1 + q2), np.sin(q1 + q2)])
    obstacle = 0.12 * np.array([np.cos(1.0), np.sin(1.0)])[:, None, None]
    upper, fore = share * elbow[:, None], elbow[:, None] + share * (tip - elbow)[:, None]
    distance = np.minimum(*(np.linalg.norm(link - obstacle, axis=0).min(0) for link in (upper, fore))) - 0.02
    expected = np.minimum(distance, 0.11 * (3.0 - np.abs(q2)))
    np.testing.assert_allclose(step.margin.numpy(), expected, atol=1e-6)
    assert 10 < (expected < 0).sum() < 290
    error = np.linalg.norm(tip - state[:, 4:].numpy().T, axis=0)
    np.testing.assert_allclose(step.reward.numpy(), -10 * error, atol=1e-12)
    np.testing.assert_allclose(
        SYSTEM.observe(step.state, p)[:, 8:].numpy(), (tip - state[:, 4:].numpy().T).T, atol=1e-12
    )


def test_targets_lie_in_reach_and_away_from_the_obstacle() -> None:
    u = torch.rand(2000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = SYSTEM.reset(u, parameters(2000))
    radius = state[:, 4:].norm(dim=1)
    assert 0.06 <= float(radius.min()) < 0.07
    assert 0.195 < float(radius.max()) <= 0.2
    to_obstacle = (state[:, 4:] - torch.tensor([0.0, 0.15])).norm(dim=1)
    assert float(to_obstacle.min()) > 0.08


def test_expert_holds_the_target_and_behaviours_rank() -> None:
    def run(name: str) -> tuple[float, float, float]:
        generator = np.random.default_rng(0)
        p = parameters(150)
        state = SYSTEM.reset(torch.from_numpy(generator.random((150, 6))), p)
        total, cost = 0.0, 0.0
        for _ in range(SYSTEM.max_steps):
            action = SYSTEM.behaviours[name](SYSTEM.observe(state, p).numpy(), generator)
            step = SYSTEM.step(state, torch.from_numpy(action), p, torch.zeros(150, 2))
            state, total = step.state, total + float(step.reward.mean())
            cost += float((step.margin < 0).double().mean())
        return total, cost, float(SYSTEM.observe(state, p)[:, 8:].norm(dim=1).median())

    (random, _, _), (medium, touches, _), (expert, few, distance) = (run(n) for n in ("random", "medium", "expert"))
    assert distance < 1e-3
    assert expert > -45
    assert random < medium - 60 < expert - 100
    assert few < 1 < touches
