"""Values that are known by linear algebra: a chain of five states, and the linear regulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.core.losses.value_learning import expectile_loss, gae, lambda_returns, mc_return, td_target

DISCOUNT, RIGHT = 0.9, 0.7
STATES = 5


def chain_values() -> Tensor:
    """Of the policy that goes right with probability 0.7: each step costs 0.1, going right from the last state ends
    with 1 on top, going left from the first one stays. Solved exactly."""
    move = np.zeros((STATES, STATES))
    rewards = np.full(STATES, -0.1)
    for state in range(STATES):
        move[state, max(state - 1, 0)] += 1 - RIGHT
        if state < STATES - 1:
            move[state, state + 1] += RIGHT
    rewards[-1] += RIGHT
    return torch.from_numpy(np.linalg.solve(np.eye(STATES) - DISCOUNT * move, rewards))


def played(steps: int = 60, rows: int = 6000) -> dict[str, Tensor]:
    """(T, N) steps of the policy, started anywhere; an episode that ends continues a new one."""
    source = np.random.default_rng(0)
    states = source.integers(0, STATES, rows)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("states", "right", "rewards", "ends", "following")}
    for _ in range(steps):
        right = source.random(rows) < RIGHT
        ends = right & (states == STATES - 1)
        following = np.clip(states + np.where(right, 1, -1), 0, STATES - 1)
        for name, value in zip(columns, (states, right, -0.1 + ends, ends, following), strict=True):
            columns[name].append(value)
        states = np.where(ends, source.integers(0, STATES, rows), following)
    return {name: torch.from_numpy(np.stack(value)) for name, value in columns.items()}


def by_state(states: Tensor, values: Tensor) -> Tensor:
    return torch.stack([values[states == state].mean() for state in range(STATES)])


def test_all_returns_of_a_chain_have_its_values_as_their_mean() -> None:
    exact, steps = chain_values(), played()
    cut = torch.zeros_like(steps["ends"])
    ends = (steps["ends"].double(), cut.double())
    wrong = torch.linspace(2, -2, STATES, dtype=torch.float64)  # a critic that knows nothing
    last = exact[steps["following"]]
    early = slice(0, 20)  # behind it come forty steps: what lies beyond the block counts for little there
    for name, found in {
        "monte carlo": mc_return(steps["rewards"], *ends, DISCOUNT, last),
        "gae 1": gae(steps["rewards"], wrong[steps["states"]], wrong[steps["following"]], *ends, DISCOUNT, 1.0)[1],
        "gae 0 of the truth": gae(steps["rewards"], exact[steps["states"]], last, *ends, DISCOUNT, 0.0)[1],
        "lambda 0.8 of the truth": lambda_returns(steps["rewards"], last, *ends, DISCOUNT, 0.8),
    }.items():
        means = by_state(steps["states"][early], found[early])
        torch.testing.assert_close(means, exact, rtol=0, atol=0.02, msg=lambda text, name=name: f"{name}: {text}")
    biased = gae(steps["rewards"], wrong[steps["states"]], wrong[steps["following"]], *ends, DISCOUNT, 0.0)[1]
    assert float((by_state(steps["states"], biased) - exact).abs().max()) > 0.3


@pytest.mark.parametrize(("expectile", "is_the_policys"), [(0.5, True), (0.9, False)])
def test_the_middle_expectile_of_iql_is_the_value_of_the_policy(expectile: float, is_the_policys: bool) -> None:
    exact, steps = chain_values(), played(rows=500)
    states, right = steps["states"].flatten(), steps["right"].flatten().long()
    rewards, ends = steps["rewards"].flatten(), steps["ends"].flatten().double()
    value, q = torch.zeros(STATES, dtype=torch.float64), torch.zeros(STATES, 2, dtype=torch.float64)
    for _ in range(80):
        target = td_target(rewards, ends, value[steps["following"].flatten()], DISCOUNT)
        for state in range(STATES):
            for action in range(2):
                q[state, action] = target[(states == state) & (right == action)].mean()
        for _ in range(20):  # Newton's method: the loss is quadratic between the two values of a state
            leaf = value.clone().requires_grad_()
            loss = expectile_loss(q[states, right] - leaf[states], expectile)
            slope = torch.autograd.grad(loss.sum(), leaf)[0]
            weight = torch.where(q[states, right] > value[states], expectile, 1 - expectile)
            value = value - slope / (2 * torch.zeros_like(value).index_add_(0, states, weight.double()))
    near = bool(((value - exact).abs() < 0.03).all())
    assert near == is_the_policys, (value, exact)


def test_a_quadratic_critic_finds_riccatis_cost_to_go() -> None:
    """x' = 0.9 x + 0.5 u + noise, u = -1.34427 x, cost x^2 + 0.1 u^2, discount 0.95: 1.24197 x^2 and a constant."""
    source, gain = torch.Generator().manual_seed(0), -1.34427
    x = torch.rand(20_000, generator=source, dtype=torch.float64) * 4 - 2
    u = gain * x
    following = 0.9 * x + 0.5 * u + 0.1 * torch.randn(x.shape, generator=source, dtype=torch.float64)
    costs, no = x.square() + 0.1 * u.square(), torch.zeros_like(x)
    features, ahead = (torch.stack([v.square(), torch.ones_like(v)], 1) for v in (x, following))
    weights = torch.zeros(2, dtype=torch.float64)
    for _ in range(300):
        target = td_target(costs, no, ahead @ weights, 0.95)
        weights = torch.linalg.lstsq(features, target.unsqueeze(1)).solution.squeeze(1)
    assert float(weights[0]) == pytest.approx(1.24197, rel=0.02)
    assert float(weights[1]) == pytest.approx(0.95 * 1.24197 * 0.01 / 0.05, rel=0.05)
