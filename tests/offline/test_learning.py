"""Each algorithm learns what it should on a one-step problem; none of these passes with a loss's sign flipped.

A continuous bandit: states uniform in [-1, 1]^2, actions uniform in [-1, 1], reward -(a - 1/2)^2, every step terminal.
The behaviour's mean action is 0 and the best action 1/2.
"""

from __future__ import annotations

import pytest
import torch

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.data.store import Store
from surefoot.offline import BC, IQL, RIQL, TD3BC

SPEC = Spec(2, 1, (-1.0,), (1.0,))


def bandit(follow: float = 0.0) -> Store:
    """4,000 plays; with `follow`, actions are follow * first state + a tenth of noise instead of uniform."""
    source = torch.Generator().manual_seed(3)
    states = torch.rand(4000, 2, generator=source) * 2 - 1
    actions = torch.rand(4000, 1, generator=source) * 2 - 1
    if follow:
        actions = follow * states[:, :1] + 0.1 * actions
    return Store.pack(
        {
            "observations": states,
            "actions": actions,
            "rewards": -(actions[:, 0] - 0.5).square(),
            "terminations": torch.ones(4000),
            "next_observations": states,
        }
    )


def trained(kind: type[Agent], store: Store, steps: int, **options: object) -> Agent:
    agent = kind(SPEC, hidden=(32, 32), learning_rate=3e-3, **options).fresh(0)
    learner = Learner([agent], [0], Uniform(store), batch_size=64, planned_steps=steps, kernels=True)
    learner.run(steps)
    return agent


def actions_of(agent: Agent) -> torch.Tensor:
    with torch.no_grad():
        return agent.act(torch.rand(500, 2, generator=torch.Generator().manual_seed(4)) * 2 - 1).squeeze(1)


@pytest.mark.parametrize("options", [{}, {"preset": "corl"}, {"actor": "deterministic"}])
def test_iql_moves_to_the_rewarded_actions(options: dict[str, object]) -> None:
    agent = trained(IQL, bandit(), 800, temperature=10.0, target_rate=0.05, **options)
    assert actions_of(agent).mean().item() == pytest.approx(0.5, abs=0.15)
    assert (actions_of(agent) > 0.2).float().mean() > 0.95


def test_iqls_values_are_the_expectile_of_rewards_and_its_critics_the_rewards() -> None:
    agent = trained(IQL, bandit(), 800, expectile=0.7, target_rate=0.05)
    grid = torch.linspace(-1, 1, 201)
    rewards = -(grid - 0.5).square()
    low, high = -3.0, 0.0
    for _ in range(60):  # where the two sides of the expectile's first-order condition balance
        middle = (low + high) / 2
        balance = (torch.where(rewards > middle, 0.7, 0.3) * (rewards - middle)).mean()
        low, high = (middle, high) if balance > 0 else (low, middle)
    with torch.no_grad():
        states = torch.rand(201, 2) - 0.5
        assert agent.value(states).mean().item() == pytest.approx(low, abs=0.06)
        q = agent.critic(torch.cat([states, grid.unsqueeze(1)], 1))
    assert (q - rewards).abs().mean() < 0.1


def test_riql_moves_to_the_rewarded_actions() -> None:
    agent = trained(RIQL, bandit(), 800, temperature=10.0, target_rate=0.05)
    assert actions_of(agent).mean().item() == pytest.approx(0.5, abs=0.15)
    assert (actions_of(agent) > 0.2).float().mean() > 0.95


def test_td3bc_moves_to_the_best_action_where_q_weighs_most() -> None:
    agent = trained(TD3BC, bandit(), 1200, alpha=50.0)
    assert actions_of(agent).mean().item() == pytest.approx(0.5, abs=0.15)
    assert (actions_of(agent) > 0.2).float().mean() > 0.95


def test_td3bc_clones_where_q_weighs_nothing() -> None:
    assert actions_of(trained(TD3BC, bandit(), 600, alpha=0.0)).mean().item() == pytest.approx(0, abs=0.1)


def test_bc_stays_at_the_behaviours_mean_whatever_the_rewards() -> None:
    assert actions_of(trained(BC, bandit(), 500)).mean().item() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("kind", [BC, IQL, RIQL])
def test_policies_follow_the_state_as_the_behaviour_does(kind: type[Agent]) -> None:
    agent = trained(kind, bandit(follow=0.8), 500)
    states = torch.rand(500, 2, generator=torch.Generator().manual_seed(5)) * 2 - 1
    with torch.no_grad():
        error = agent.act(states).squeeze(1) - 0.8 * states[:, 0]
    assert error.abs().mean() < 0.08


def test_a_higher_temperature_comes_nearer_to_the_best_action() -> None:
    near, far = (
        (actions_of(trained(IQL, bandit(), 600, temperature=beta, target_rate=0.05)) - 0.5).abs().mean()
        for beta in (20.0, 1.0)
    )
    assert near < far - 0.1
