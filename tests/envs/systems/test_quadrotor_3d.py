"""3-D quadrotor against rigid-body mechanics written with rotation matrices and cross products, by scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate
import torch
from scipy.spatial.transform import Rotation

from surefoot.envs.systems.quadrotor_3d import Quadrotor3D

SYSTEM = Quadrotor3D()
NAMES = [parameter.name for parameter in SYSTEM.parameters]
HOVER = 1 / 2.25  # thrust over weight is 2.25


def parameters(count: int, **changed: float) -> torch.Tensor:
    row = SYSTEM.default_parameters()
    for name, value in changed.items():
        row[NAMES.index(name)] = value
    return row.expand(count, -1)


def level(height: float = 1.0, share: float = HOVER) -> torch.Tensor:
    """At rest above the goal's foot, thrusts at a share of the largest."""
    thrust = share * float(SYSTEM.default_parameters()[NAMES.index("max_thrust")])
    return torch.tensor([[0, 0, height, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, *[thrust] * 4]], dtype=torch.float64)


def mechanics(p: dict[str, float], command: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Derivative of (position, velocity, rotation matrix, body rates, thrusts): 22 numbers."""
    velocity, rotation, rates, thrust = s[3:6], s[6:15].reshape(3, 3), s[15:18], s[18:]
    d = p["arm"] / np.sqrt(2)  # front left, rear left, rear right, front right; x forward, y left
    places = np.array([[d, d, 0], [-d, d, 0], [-d, -d, 0], [d, -d, 0]])
    forces = thrust[:, None] * np.array([0, 0, 1])
    turning = np.array([1, -1, 1, -1])  # reaction of rotors that alternate
    torque = np.cross(places, forces).sum(0) + [0, 0, p["torque_per_thrust"] * (turning * thrust).sum()]
    inertia = np.diag([p["inertia_x"], p["inertia_y"], p["inertia_z"]])
    drag = p["drag"] * (velocity - [p["wind_x"], p["wind_y"], 0])
    acceleration = (rotation @ forces.sum(0) - drag) / p["mass"] - [0, 0, p["gravity"]]
    spin = np.linalg.solve(inertia, torque - np.cross(rates, inertia @ rates))
    cross = np.array([[0, -rates[2], rates[1]], [rates[2], 0, -rates[0]], [-rates[1], rates[0], 0]])
    return np.concatenate([velocity, acceleration, (rotation @ cross).ravel(), spin, (command - thrust) / p["lag"]])


def test_a_step_is_the_integral_of_rigid_body_mechanics_to_the_order_of_runge_kutta() -> None:
    generator = np.random.default_rng(0)
    count = 25
    p = parameters(count, wind_x=2.0, wind_y=-1.0, drag=0.02, inertia_y=1.8e-5, arm=0.05)
    named = dict(zip(NAMES, p[0].tolist()))
    quaternion = generator.standard_normal((count, 4))
    quaternion /= np.linalg.norm(quaternion, axis=1, keepdims=True)
    body = generator.uniform(-2, 2, (count, 6))
    rates = generator.uniform(-8, 8, (count, 3))
    thrust = generator.uniform(0, named["max_thrust"], (count, 4))
    action = generator.uniform(0, 1, (count, 4))
    state = torch.from_numpy(np.concatenate([body, quaternion, rates, thrust], 1))
    step = SYSTEM.step(state, torch.from_numpy(action), p, torch.zeros(count, 4))
    seen = SYSTEM.observe(step.state, p).numpy()
    ours = step.state.numpy()
    for k in range(count):
        rotation = Rotation.from_quat(np.roll(quaternion[k], -1)).as_matrix()
        start = np.concatenate([body[k], rotation.ravel(), rates[k], thrust[k]])
        command = named["max_thrust"] * action[k]
        exact = scipy.integrate.solve_ivp(
            lambda _, s, command=command: mechanics(named, command, s), (0, 1 / 60), start, rtol=1e-11, atol=1e-12
        ).y[:, -1]
        np.testing.assert_allclose(ours[k, :6], exact[:6], atol=1e-5)  # (20 rad/s / 120 Hz)^5 / 120 = 1e-6
        np.testing.assert_allclose(seen[k, 6:15], exact[6:15], atol=1e-5)
        np.testing.assert_allclose(ours[k, 10:13], exact[15:18], atol=1e-4)
        np.testing.assert_allclose(ours[k, 13:], exact[18:], rtol=1e-9)
        assert np.linalg.norm(ours[k, 6:10]) == pytest.approx(1, abs=1e-14)


def test_hover_stays_and_earns_one_a_step() -> None:
    step = SYSTEM.step(level(), torch.full((1, 4), HOVER, dtype=torch.float64), parameters(1), torch.zeros(1, 4))
    torch.testing.assert_close(step.state, level(), atol=1e-15, rtol=0)
    assert float(step.reward) == 1.0
    assert float(step.margin) == pytest.approx(0.7 - 0.3, abs=1e-12)  # to the sphere; 1 - cos(1 rad) = 0.4597 is more
    assert not bool(step.terminated)


def test_free_fall_is_a_parabola_and_the_floor_ends_it() -> None:
    p, state = parameters(1, drag=0.0), level(share=0.0)
    for k in range(1, 40):
        step = SYSTEM.step(state, torch.zeros(1, 4).double(), p, torch.zeros(1, 4))
        state, fallen = step.state, 1 - 4.9 * (k / 60) ** 2
        assert float(state[0, 2]) == pytest.approx(fallen, abs=1e-12)
        assert bool(step.terminated) == (fallen < 0)
        assert float(step.margin) <= fallen - 0.1 + 1e-12
    assert fallen < 0


def test_margin_reads_the_sphere_the_room_and_the_tilt() -> None:
    def margin(**place: float) -> float:
        state = level()
        for name, value in place.items():
            state[0, SYSTEM.states.index(name)] = value
        return float(
            SYSTEM.step(state, torch.full((1, 4), HOVER, dtype=torch.float64), parameters(1), torch.zeros(1, 4)).margin
        )

    assert margin(x=-0.7, y=0.2) == pytest.approx(-0.1, abs=1e-9)
    assert margin(y=2.6) == pytest.approx(-0.1, abs=1e-9)
    assert margin(z=2.4) == pytest.approx(0.1, abs=1e-9)
    assert margin(q_w=np.cos(0.6), q_x=np.sin(0.6)) == pytest.approx(np.cos(1.2) - np.cos(1.0), abs=1e-9)


def test_starts_are_safe_and_on_the_far_side_of_the_sphere() -> None:
    u = torch.rand(500, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = SYSTEM.reset(u, parameters(500))
    step = SYSTEM.step(state, torch.full((500, 4), HOVER, dtype=torch.float64), parameters(500), torch.zeros(500, 4))
    assert float(step.margin.min()) > 0.1
    assert float(state[:, 0].max()) <= -1.2


def test_expert_flies_around_the_sphere_and_behaviours_rank() -> None:
    def run(name: str, episodes: int = 60) -> tuple[float, float]:
        generator = np.random.default_rng(0)
        p = parameters(episodes)
        state = SYSTEM.reset(torch.from_numpy(generator.random((episodes, 12))), p)
        running, total, hit = torch.ones(episodes), torch.zeros(episodes), torch.zeros(episodes)
        for _ in range(SYSTEM.max_steps):
            action = torch.from_numpy(SYSTEM.behaviours[name](SYSTEM.observe(state, p).numpy(), generator))
            step = SYSTEM.step(state, action, p, torch.zeros(episodes, 4))
            state, total = step.state, total + running * step.reward
            hit = torch.maximum(hit, running * (step.margin < 0))
            running = running * ~step.terminated
        return float(total.mean()), float(hit.mean())

    (random, _), (medium, _), (reckless, hits), (expert, none) = (
        run(name) for name in ("random", "medium", "reckless", "expert")
    )
    assert random < 15
    assert 100 < medium < expert - 50
    assert expert > 230
    assert none == 0
    assert reckless > 230
    assert hits > 0.5
