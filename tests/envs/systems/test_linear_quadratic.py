"""Linear-quadratic system: the Riccati gain earns the closed-form cost, and nothing else earns as much."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import pytest
import scipy.integrate
import torch

from surefoot import cuda_ext
from surefoot.core.base.errors import ConfigError
from surefoot.envs.systems.linear_quadratic import LinearQuadratic, two_carts


def total_reward(
    system: LinearQuadratic, start: torch.Tensor, gain: np.ndarray, steps: int, noise: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    p = system.default_parameters().expand(len(start), -1).clone()
    p[:, 0] = noise
    generator = torch.Generator().manual_seed(0)
    state, total = start, torch.zeros(len(start), dtype=torch.float64)
    for _ in range(steps):
        normals = torch.randn(start.shape, dtype=torch.float64, generator=generator)
        step = system.step(state, -state @ torch.from_numpy(gain).T, p, normals)
        state, total = step.state, total + step.reward
    return total, state


@pytest.mark.parametrize("sizes", [None, (1, 1), (6, 2), (32, 32)])
def test_the_riccati_gain_earns_exactly_the_closed_form_cost(sizes: tuple[int, int] | None) -> None:
    system = LinearQuadratic() if sizes is None else LinearQuadratic(*sizes, seed=3)
    cost, gain = system.riccati()
    closed = system.A - system.B @ gain
    np.testing.assert_allclose(  # Lyapunov: the cost matrix of this gain, whatever Riccati says
        cost, system.Q + gain.T @ system.R @ gain + closed.T @ cost @ closed, rtol=1e-8, atol=1e-8 * abs(cost).max()
    )
    start = torch.randn(5, len(system.states), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p = torch.from_numpy(cost)
    total, last = total_reward(system, start, gain, steps=60)
    expected = -((start @ p) * start).sum(1) + ((last @ p) * last).sum(1)
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)


def test_every_other_gain_costs_more() -> None:
    system = LinearQuadratic()
    _, gain = system.riccati()
    start = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    best, _ = total_reward(system, start, gain, steps=400)
    generator = np.random.default_rng(0)
    for _ in range(20):
        other, _ = total_reward(system, start, gain + 0.05 * generator.standard_normal(gain.shape), steps=400)
        assert bool((other < best).all())


def test_process_noise_costs_its_variance_times_the_trace_of_p_a_step() -> None:
    system = LinearQuadratic()
    cost, gain = system.riccati()
    p = torch.from_numpy(cost)
    start = torch.zeros(4000, 4, dtype=torch.float64)
    total, last = total_reward(system, start, gain, steps=40, noise=0.2)
    excess = -total + ((last @ p) * last).sum(1) - 40 * 0.2**2 * float(p.trace())
    assert abs(float(excess.mean())) < 4 * float(excess.std()) / 4000**0.5
    assert float(excess.std()) < 40 * 0.2**2 * float(p.trace())


def test_two_carts_are_held_exactly_as_the_integrator_says() -> None:
    a, b = two_carts(0.1)
    x, u = np.array([0.3, -0.5, 0.2, 0.7]), np.array([1.5, -0.4])

    def slope(_: float, s: np.ndarray) -> np.ndarray:
        left, right = s[0], s[1]
        force_1 = -left + (right - left) - 0.05 * s[2] + u[0]
        force_2 = -right - (right - left) - 0.05 * s[3] + u[1]
        return np.array([s[2], s[3], force_1, force_2])

    exact = scipy.integrate.solve_ivp(slope, (0, 0.1), x, rtol=1e-12, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(a @ x + b @ u, exact, atol=1e-11)


def test_a_step_reward_and_margin_by_hand() -> None:
    system = LinearQuadratic(A=np.array([[1.0, 2.0], [0.0, 1.0]]), B=np.array([[0.0], [1.0]]), R=np.array([[2.0]]))
    p = torch.tensor([[0.5, 2.0, 3.0, 1.0, 10.0]], dtype=torch.float64)
    step = system.step(
        torch.tensor([[1.0, -1.0]]).double(), torch.tensor([[0.5]]).double(), p, torch.tensor([[2.0, 0.0]])
    )
    # 2 A x = (-2, -2); 3 B u = (0, 1.5); noise (1, 0); reward -(1 + 1 + 2 * 0.25); margin 10 - x0
    assert step.state.tolist() == [[-1.0, -0.5]]
    assert float(step.reward) == -2.5
    assert float(step.margin) == 11.0


@pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())
@pytest.mark.parametrize("sizes", [(1, 1), (7, 3), (32, 32)])
def test_native_code_agrees_at_other_sizes(sizes: tuple[int, int]) -> None:
    path = pathlib.Path(__file__).parents[2] / "cuda_ext" / "agreement.py"
    spec = importlib.util.spec_from_file_location("agreement_of_sizes", path)
    assert spec is not None
    assert spec.loader is not None
    agreement = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agreement)
    agreement.compare(LinearQuadratic(*sizes, seed=1), torch.float64)
    agreement.compare(LinearQuadratic(*sizes, seed=1), torch.float32)


def test_matrices_that_do_not_fit_are_refused_in_words() -> None:
    eye = np.eye(2)
    with pytest.raises(ConfigError, match="give n and m, or A and B"):
        LinearQuadratic(n=3)
    with pytest.raises(ConfigError, match="33 states and 1 actions"):
        LinearQuadratic(33, 1)
    with pytest.raises(ConfigError, match=r"A has shape \(2, 3\)"):
        LinearQuadratic(A=np.zeros((2, 3)), B=eye)
    with pytest.raises(ConfigError, match="R must be symmetric"):
        LinearQuadratic(A=0.9 * eye, B=eye, R=-eye)
    with pytest.raises(ConfigError, match="Q must be symmetric"):
        LinearQuadratic(A=0.9 * eye, B=eye, Q=np.array([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(ConfigError, match="c has shape"):
        LinearQuadratic(A=0.9 * eye, B=eye, c=np.array([1.0, np.nan]))
    with pytest.raises(ConfigError, match="no stabilising gain"):
        LinearQuadratic(A=2 * eye, B=np.zeros((2, 1)))


def test_expert_costs_a_fifth_of_medium_and_medium_a_third_of_random() -> None:
    system = LinearQuadratic()

    def cost(name: str) -> float:
        generator = np.random.default_rng(0)
        p = system.default_parameters().expand(200, -1)
        state, total = system.reset(torch.from_numpy(generator.random((200, 4))), p), 0.0
        for _ in range(system.max_steps):
            action = torch.from_numpy(system.behaviours[name](state.numpy(), generator))
            assert float(action.abs().max()) <= 5.0
            step = system.step(state, action, p, torch.zeros(200, 4))
            state, total = step.state, total - float(step.reward.mean())
        return total

    random, medium, expert = (cost(name) for name in ("random", "medium", "expert"))
    assert expert < medium / 4
    assert medium < random / 3
