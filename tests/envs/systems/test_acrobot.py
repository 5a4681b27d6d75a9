"""Acrobot against gymnasium's own class, and against the equations of motion worked out another way."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.acrobot import AcrobotEnv

from surefoot.envs.systems.acrobot import Acrobot

ACROBOT = Acrobot()
NAMES = [parameter.name for parameter in ACROBOT.parameters]


def parameters(count: int, **changed: float) -> torch.Tensor:
    row = ACROBOT.default_parameters()
    for name, value in changed.items():
        row[NAMES.index(name)] = value
    return row.expand(count, -1)


def one_step(state: np.ndarray, action: float, **changed: float) -> np.ndarray:
    step = ACROBOT.step(
        torch.from_numpy(state)[None],
        torch.tensor([[action]], dtype=torch.float64),
        parameters(1, **changed),
        torch.zeros(1, 1),
    )
    return step.state[0].numpy()


def mean_return(behaviour: str, episodes: int = 40) -> float:
    generator = np.random.default_rng(0)
    p = parameters(episodes)
    state = ACROBOT.reset(torch.from_numpy(generator.random((episodes, 4))), p)
    running, total = torch.ones(episodes), torch.zeros(episodes)
    for _ in range(ACROBOT.max_steps):
        action = ACROBOT.behaviours[behaviour](ACROBOT.observe(state, p).numpy(), generator)
        step = ACROBOT.step(state, torch.from_numpy(action), p, torch.zeros(episodes, 1))
        state, total = step.state, total + running * step.reward
        running = running * ~step.terminated
    return float(total.mean())


def test_every_step_equals_gymnasiums_acrobot_for_its_three_torques() -> None:
    env = gymnasium.make("Acrobot-v1").unwrapped
    assert isinstance(env, AcrobotEnv)
    generator = np.random.default_rng(0)
    high = np.array([np.pi, np.pi, 4 * np.pi, 9 * np.pi])
    states = np.concatenate([generator.uniform(-high, high, (150, 4)), generator.uniform(-1, 1, (150, 4))])
    actions = generator.integers(0, 3, 300)
    ours = ACROBOT.step(
        torch.from_numpy(states), torch.from_numpy(actions[:, None] - 1.0), parameters(300), torch.zeros(300, 1)
    )
    seen = ACROBOT.observe(ours.state, parameters(300)).numpy()
    env.reset(seed=0)
    ended = 0
    for k in range(300):
        env.state = states[k]
        observation, reward, terminated, _, _ = env.step(int(actions[k]))
        np.testing.assert_allclose(ours.state[k].numpy(), env.state, atol=1e-11)
        np.testing.assert_allclose(seen[k], observation, atol=1e-6)  # gymnasium rounds it to float32
        assert (float(ours.reward[k]), bool(ours.terminated[k])) == (reward, terminated)
        ended += terminated
    assert 10 < ended < 290


def accelerations(state: np.ndarray, torque: float, masses: tuple[float, float], friction: float) -> np.ndarray:
    """From kinetic energy T = w M(q) w / 2: M w' = forces - M' w + grad T - grad V, M from the centres' Jacobians."""
    gravity, length, centre, inertia = 9.8, 1.0, 0.5, 1.0

    def mass_matrix(q: np.ndarray) -> np.ndarray:
        a, b = q[0], q[0] + q[1]
        one = centre * np.array([[np.cos(a), 0], [np.sin(a), 0]])
        two = length * np.array([[np.cos(a), 0], [np.sin(a), 0]]) + centre * np.array(
            [[np.cos(b)] * 2, [np.sin(b)] * 2]
        )
        spin = inertia * (np.array([[1, 0], [0, 0]]) + np.ones((2, 2)))
        return masses[0] * one.T @ one + masses[1] * two.T @ two + spin

    def potential(q: np.ndarray) -> np.ndarray:
        second = -length * np.cos(q[0]) - centre * np.cos(q[0] + q[1])
        return gravity * (masses[1] * second - masses[0] * centre * np.cos(q[0]))

    q, w, tiny = state[:2], state[2:], 1e-30j
    by = [mass_matrix(q + tiny * e).imag / 1e-30 for e in np.eye(2)]
    slope = np.array([potential(q + tiny * e).imag / 1e-30 for e in np.eye(2)])
    forces = np.array([0, torque]) - friction * w - (by[0] * w[0] + by[1] * w[1]) @ w - slope
    return np.linalg.solve(mass_matrix(q), forces + 0.5 * np.array([w @ by[0] @ w, w @ by[1] @ w]))


@pytest.mark.parametrize(("masses", "friction"), [((1.0, 1.0), 0.0), ((0.7, 1.6), 0.4)])
def test_one_step_is_the_runge_kutta_step_of_the_lagrangian_equations(
    masses: tuple[float, float], friction: float
) -> None:
    def slope(s: np.ndarray) -> np.ndarray:
        return np.concatenate([s[2:], accelerations(s, 0.7, masses, friction)])

    for state in np.random.default_rng(1).uniform(-1.5, 1.5, (20, 4)):
        k1 = slope(state)
        k2 = slope(state + 0.1 * k1)
        k3 = slope(state + 0.1 * k2)
        k4 = slope(state + 0.2 * k3)
        expected = state + 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        ours = one_step(state, 0.7, mass_1=masses[0], mass_2=masses[1], friction=friction)
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_torque_and_noise_scale_what_the_action_does() -> None:
    state = np.array([0.1, -0.2, 0.3, 0.4])
    np.testing.assert_allclose(one_step(state, 0.5, torque=2.0), one_step(state, 1.0), atol=1e-14)
    noisy = ACROBOT.step(
        torch.from_numpy(state)[None], torch.zeros(1, 1), parameters(1, action_noise=0.25), torch.full((1, 1), 2.0)
    )
    np.testing.assert_allclose(noisy.state[0].numpy(), one_step(state, 0.5), atol=1e-14)


def test_margin_is_the_smaller_of_speed_share_and_room_below_the_ceiling() -> None:
    hanging = torch.zeros(1, 4, dtype=torch.float64)
    rest = ACROBOT.step(hanging, torch.zeros(1, 1), parameters(1), torch.zeros(1, 1))
    assert float(rest.margin) == 1.0  # no speed; the tip hangs 3.8 m below the ceiling
    low = ACROBOT.step(hanging, torch.zeros(1, 1), parameters(1, ceiling=-2.5), torch.zeros(1, 1))
    assert float(low.margin) == pytest.approx(-0.5)
    fast = ACROBOT.step(
        torch.tensor([[0.0, 0.0, 0.0, 28.0]]).double(), torch.zeros(1, 1), parameters(1), torch.zeros(1, 1)
    )
    assert float(fast.margin) == pytest.approx(1 - abs(float(fast.state[0, 3])) / 7.0)
    assert float(fast.margin) < 0


def test_expert_swings_up_twice_as_fast_as_medium_and_random_never_does() -> None:
    random, medium, expert = (mean_return(name) for name in ("random", "medium", "expert"))
    assert expert > -110
    assert -260 < medium < expert - 50
    assert random < -450
