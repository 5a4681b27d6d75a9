"""Double integrator against the matrix exponential, its safe set against braking, its optimum against Riccati."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from surefoot.envs.systems.double_integrator import GAIN, DoubleIntegrator

SYSTEM = DoubleIntegrator()
NAMES = [parameter.name for parameter in SYSTEM.parameters]
H = SYSTEM.time_step


def parameters(count: int, **changed: float) -> Tensor:
    row = SYSTEM.default_parameters()
    for name, value in changed.items():
        row[NAMES.index(name)] = value
    return row.expand(count, -1)


def along_x(position: Tensor, velocity: Tensor) -> Tensor:
    rest = torch.zeros_like(position)
    return torch.stack((position, rest, velocity, rest), -1)


def move(state: Tensor, action: Tensor, p: Tensor) -> Tensor:
    return SYSTEM.step(state, action, p, torch.zeros(len(state), 2)).state


def brake(state: Tensor) -> Tensor:
    return (-state[:, 2:] / H).clamp(-1, 1)


@pytest.mark.parametrize("drag", [0.0, 1e-9, 0.3, 2.0])
def test_a_step_is_the_exact_zero_order_hold(drag: float) -> None:
    generator = np.random.default_rng(0)
    state, action = generator.normal(size=(50, 4)), generator.uniform(-1, 1, (50, 2))
    mass, force, wind = 1.7, 2.3, np.array([0.4, -0.3])
    p = parameters(50, drag=drag, mass=mass, force=force, wind_x=0.4, wind_y=-0.3)
    ours = move(torch.from_numpy(state), torch.from_numpy(action), p).numpy()
    held = scipy.linalg.expm(H * np.array([[0, 1, 0], [0, -drag, 1], [0, 0, 0]]))
    for axis in range(2):
        push = (force * action[:, axis] + wind[axis]) / mass
        exact = np.stack([state[:, axis], state[:, 2 + axis], push], 1) @ held.T
        np.testing.assert_allclose(ours[:, [axis, 2 + axis]], exact[:, :2], atol=2e-13)


def test_safe_value_is_the_closed_form_and_its_set_has_the_known_area() -> None:
    # one axis, walls at 1, braking 1: V = max(-x, x + v^2 / 2) - 1 for v >= 0; area (16 / 3) L sqrt(U L)
    x, v = torch.meshgrid(
        torch.linspace(-1.2, 1.2, 301, dtype=torch.float64), torch.linspace(-2.4, 2.4, 601).double(), indexing="ij"
    )
    value = SYSTEM.safe_value(along_x(x.flatten(), v.flatten()), parameters(x.numel()))
    unsafe = torch.where(v >= 0, torch.maximum(-x, x + v**2 / 2), torch.maximum(x, -x + v**2 / 2)) - 1
    torch.testing.assert_close(value, -unsafe.flatten(), atol=1e-12, rtol=0)
    area = float((value >= 0).double().mean()) * (2.4 * 301 / 300) * (4.8 * 601 / 600)
    assert area == pytest.approx(16 / 3, rel=5e-3)


@pytest.mark.parametrize("wind", [0.0, 0.3])
def test_full_braking_keeps_the_walls_exactly_inside_the_safe_set(wind: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(4000, dtype=torch.float64, generator=generator) - 1
    v = 4 * torch.rand(4000, dtype=torch.float64, generator=generator) - 2
    state, p = along_x(x, v), parameters(4000, wind_x=wind)
    value = SYSTEM.safe_value(state, p)
    toward = torch.sign(v)[:, None] * torch.tensor([[1.0, 0.0]])
    seen = 1 - x.abs()
    moving = torch.ones(4000, dtype=torch.bool)
    for _ in range(80):  # full braking until the axis has stopped; the margin is read at the samples
        state = move(state, -toward.double(), p)
        moving &= state[:, 2] * v > 0
        seen = torch.where(moving, torch.minimum(seen, 1 - state[:, 0].abs()), seen)
    slack = (1 + wind) * H**2 / 2  # the stop lies less than one step behind the last sample that still moved
    inside, outside = value >= 0, value < -slack
    assert inside.sum() > 1000
    assert outside.sum() > 500
    assert bool((seen[inside] >= -1e-12).all())
    assert bool((seen[outside] < 0).all())


def test_the_shield_needs_the_sampling_margin_of_a_eighth_of_u_dt_squared() -> None:
    # random actions, replaced by braking where the next state's value is below eps
    def violations(eps: float) -> int:
        generator = torch.Generator().manual_seed(0)
        state, p = along_x(torch.zeros(100).double(), torch.zeros(100).double()), parameters(100)
        worst = torch.ones(100, dtype=torch.float64)
        for _ in range(800):
            action = 2 * torch.rand(100, 2, dtype=torch.float64, generator=generator) - 1
            action[:, 1] = 0
            shielded = SYSTEM.safe_value(move(state, action, p), p) < eps
            step = SYSTEM.step(state, torch.where(shielded[:, None], brake(state), action), p, torch.zeros(100, 2))
            state, worst = step.state, torch.minimum(worst, step.margin)
        return int((worst < 0).sum())

    assert violations(0.0) > 50
    assert violations(H**2 / 8 + 1e-5) == 0


def test_near_the_goal_the_optimal_gain_earns_the_riccati_cost() -> None:
    a, b = np.array([[1, H], [0, 1]]), np.array([[H * H / 2], [H]])
    q, r = np.diag([1, 0.01]), np.array([[0.01]])
    cost = scipy.linalg.solve_discrete_are(a, b, q, r)
    gain = np.linalg.solve(r + b.T @ cost @ b, b.T @ cost @ a)[0]
    np.testing.assert_allclose(GAIN, gain, atol=0.01)
    offset = torch.tensor([[0.05, -0.03, 0.02, 0.1]], dtype=torch.float64)
    goal = torch.tensor([[0.9, 0, 0, 0]], dtype=torch.float64)
    state, p, total = offset + goal, parameters(1), 0.0
    for _ in range(400):
        error = state - goal
        step = SYSTEM.step(state, -gain[0] * error[:, :2] - gain[1] * error[:, 2:], p, torch.zeros(1, 2))
        state, total = step.state, total + float(step.reward)
    axes = offset.numpy().reshape(2, 2)
    assert total == pytest.approx(-sum(axes[:, k] @ cost @ axes[:, k] for k in range(2)), abs=1e-9)


def test_default_starts_are_safe_and_behaviours_rank_with_a_shield_that_never_violates() -> None:
    def run(name: str) -> tuple[float, float]:
        generator = np.random.default_rng(0)
        p = parameters(200)
        state = SYSTEM.reset(torch.from_numpy(generator.random((200, 4))), p)
        assert bool((SYSTEM.safe_value(state, p) > 0.1).all())
        total, cost = 0.0, 0.0
        for _ in range(SYSTEM.max_steps):
            action = SYSTEM.behaviours[name](state.numpy(), generator)
            step = SYSTEM.step(state, torch.from_numpy(action), p, torch.zeros(200, 2))
            state = step.state
            total, cost = total + float(step.reward.mean()), cost + float((step.margin < 0).double().mean())
        return total, cost

    (random, _), (medium, bumps), (reckless, crashes), (expert, none) = (
        run(name) for name in ("random", "medium", "reckless", "expert")
    )
    assert random < 2 * medium < 4 * expert < 0
    assert reckless == pytest.approx(expert, rel=0.1)
    assert none == 0
    assert crashes > 2
    assert bumps > 2
