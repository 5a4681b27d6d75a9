"""The first systems against independent references: gymnasium's classes and scipy's integrator."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import scipy.integrate
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Step, System
from surefoot.envs.systems import system


def one_step(s: System, state: list[float], action: float) -> Step:
    parameters = s.default_parameters()[None]
    normals = torch.zeros(1, 1, dtype=torch.float64)
    return s.step(*(torch.tensor([row], dtype=torch.float64) for row in (state, [action])), parameters, normals)


def test_the_pendulum_is_gymnasiums_step_by_step() -> None:
    s, env = system("pendulum"), gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(200):
        torque = generator.uniform(-2, 2)
        result = one_step(s, env.state.tolist(), torque)
        observation, reward, _, _, _ = env.step([torque])
        assert result.state[0].numpy() == pytest.approx(env.state, abs=1e-12)
        assert float(result.reward[0]) == pytest.approx(reward, abs=1e-12)
        seen = s.observe(result.state, s.default_parameters()[None])
        assert seen[0].numpy() == pytest.approx(observation, abs=1e-6)  # gymnasium's is float32


def test_the_cart_pole_is_gymnasiums_step_by_step() -> None:
    s, env = system("cartpole_balance"), gymnasium.make("CartPole-v1").unwrapped
    generator = np.random.default_rng(0)
    ends = 0
    for episode in range(20):
        env.reset(seed=episode)
        terminated = False
        while not terminated:
            right = int(generator.integers(2))
            result = one_step(s, list(map(float, env.state)), 10.0 if right else -10.0)
            _, reward, terminated, _, _ = env.step(right)
            assert result.state[0].numpy() == pytest.approx(np.asarray(env.state), abs=1e-12)
            assert float(result.reward[0]) == reward
            assert bool(result.terminated[0]) == terminated
        ends += terminated
    assert ends == 20


def lagrangian_slope(t: float, y: Tensor, force: float, p: dict[str, float]) -> np.ndarray:
    """The cart-pole's equations of motion as the 2 x 2 linear system of its Lagrangian, solved numerically."""
    _, velocity, angle, rate = y
    m, length, total = p["pole_mass"], p["pole_half_length"], p["cart_mass"] + p["pole_mass"]
    sine, cosine = np.sin(angle), np.cos(angle)
    mass = np.array([[total, m * length * cosine], [m * length * cosine, 4 / 3 * m * length**2]])
    right = np.array(
        [
            force + p["wind"] - p["friction"] * velocity + m * length * rate**2 * sine,
            m * p["gravity"] * length * sine + p["wind"] * length * cosine - p["damping"] * rate,
        ]
    )
    return np.array([velocity, 0, rate, 0]) + np.linalg.solve(mass, right)[[0, 0, 1, 1]] * [0, 1, 0, 1]


def test_the_swing_up_follows_the_lagrangian_with_friction_and_wind() -> None:
    s = system("cartpole_swingup")
    values = {parameter.name: parameter.default for parameter in s.parameters}
    values.update(friction=0.4, damping=0.01, wind=0.3, gain=1.2)
    parameters = torch.tensor([list(values.values())], dtype=torch.float64)
    state = torch.tensor([[0.1, -0.3, 2.5, 4.0]], dtype=torch.float64)
    for force in (-8.0, 3.0, 10.0):
        exact = scipy.integrate.solve_ivp(
            lagrangian_slope, (0, 0.02), state[0].numpy(), args=(1.2 * force, values), rtol=1e-12, atol=1e-12
        )
        step = s.step(state, torch.tensor([[force]]).double(), parameters, torch.zeros(1, 1).double())
        assert step.state[0].numpy() == pytest.approx(exact.y[:, -1], abs=2e-6)  # fourth order in 0.02 s
        state = step.state


@pytest.mark.parametrize("name", ["pendulum", "cartpole_balance", "cartpole_swingup"])
def test_experts_beat_medium_which_beat_random(name: str) -> None:
    s = system(name)
    mean = {}
    for behaviour in ("random", "medium", "expert"):
        generator = np.random.default_rng(0)
        parameters = s.default_parameters().expand(100, -1)
        state = s.reset(torch.from_numpy(generator.random((100, s.uniforms))), parameters)
        going, total = torch.ones(100, dtype=torch.bool), torch.zeros(100, dtype=torch.float64)
        for _ in range(s.max_steps):
            action = s.behaviours[behaviour](s.observe(state, parameters).numpy(), generator)
            assert action.shape == (100, 1)
            assert (np.abs(action) <= np.asarray(s.action_high)).all()
            step = s.step(state, torch.from_numpy(action), parameters, torch.zeros(100, 1).double())
            total += torch.where(going, step.reward, 0)
            going &= ~step.terminated
            state = step.state
        mean[behaviour] = float(total.mean())
    spread = abs(mean["expert"] - mean["random"])
    assert mean["random"] + 0.1 * spread < mean["medium"] < mean["expert"] - 0.1 * spread, mean
