"""Losses of every algorithm on networks small enough to be worked by hand, in float64.

All networks have one observation s, one action a and one hidden unit; `relu` is of the first layer. Two rows:

    row  s   a    r  d  s'   relu(s + a)
    A    1   1/2  1  0  2    3/2
    B   -1   1/2  0  1  1    0

V(s) = 2 relu(s) + 1/2: V(A) = 5/2, V(B) = 1/2, V(A') = 9/2. pi(s) = tanh(log(3)/2 relu(s)): 1/2 at A, 0 at B.
Critics Q1 = 2 relu(s + a), Q2 = relu(s + a) + 1: at A 3 and 5/2, at B 0 and 1. Target critics 4 relu(s + a) and
2 relu(s + a) + 1: at A 6 and 4, at B 0 and 1, so their minimum is 4 and 0.
"""

from __future__ import annotations

import math

import pytest
import torch
from problems import spec
from torch import Tensor

from surefoot.core.engine.agent import Agent
from surefoot.core.nn.networks import MLP
from surefoot.offline import BC, IQL, RIQL, TD3BC

LOG2, HALF_LOG_2PI = math.log(2), 0.5 * math.log(2 * math.pi)


def affine(mlp: MLP, slopes: list[float], offsets: list[float]) -> None:
    """Make member i of the network slopes[i] * relu(sum of inputs) + offsets[i]."""
    with torch.no_grad():
        mlp.weights[0].fill_(1)
        mlp.biases[0].zero_()
        mlp.weights[1].copy_(torch.tensor(slopes).reshape(mlp.weights[1].shape))
        mlp.biases[1].copy_(torch.tensor(offsets).reshape(mlp.biases[1].shape))


def batch() -> dict[str, Tensor]:
    rows = {
        "observations": [[1.0], [-1.0]],
        "actions": [[0.5], [0.5]],
        "rewards": [1.0, 0.0],
        "terminations": [0.0, 1.0],
        "next_observations": [[2.0], [1.0]],
    }
    made = {key: torch.tensor(value, dtype=torch.float64) for key, value in rows.items()}
    made["observation_actions"] = torch.cat([made["observations"], made["actions"]], -1)
    return made


def build(kind: type[Agent], **options: object) -> Agent:
    agent = kind(spec(1, 1), hidden=(1,), **options).double()
    affine(agent.actor.mlp, [math.log(3) / 2], [0.0])
    if hasattr(agent, "value"):
        affine(agent.value.mlp, [2.0], [0.5])
    if hasattr(agent, "critic"):
        members = agent.critic.mlp.members
        affine(agent.critic.mlp, [2.0, 1.0, 0.0][:members], [0.0, 1.0, 5.0][:members])
        affine(agent.target_critic.mlp, [4.0, 2.0, 6.0][:members], [0.0, 1.0, 0.0][:members])
    if hasattr(agent, "target_actor"):
        affine(agent.target_actor.mlp, [math.log(3) / 2], [0.0])
    return agent


def loss(
    agent: Agent, name: str, noise: dict[str, Tensor] | None = None, rows: dict[str, Tensor] | None = None
) -> float:
    with torch.no_grad():
        return getattr(agent, name)(agent.annotate(rows or batch()), noise or {})[0].item()


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-7)


def test_iql_value_loss() -> None:
    # u = 4 - 5/2 = 3/2 at A and 0 - 1/2 at B: (.7 * 9/4 + .3 * 1/4) / 2
    assert loss(build(IQL, expectile=0.7), "value_loss") == exactly(0.825)


def test_iql_critic_loss_official_is_the_sum_over_critics_and_corls_half_of_it() -> None:
    # y = 1 + .9 * 9/2 = 5.05 at A, 0 at B. Q1: (2.05^2 + 0) / 2 = 2.10125; Q2: (2.55^2 + 1) / 2 = 3.75125
    assert loss(build(IQL, discount=0.9), "critic_loss") == exactly(5.8525)
    assert loss(build(IQL, discount=0.9, preset="corl"), "critic_loss") == exactly(2.92625)


def test_iql_gaussian_actor_loss() -> None:
    # weights exp(2 log 2 u) are 2^3 and 2^-1; sd 2: log-densities -log 2 - c at A (a is the mean), 1/32 less at B
    agent = build(IQL, temperature=2 * LOG2)
    with torch.no_grad():
        agent.actor.log_std.fill_(LOG2)
    at_a, at_b = LOG2 + HALF_LOG_2PI, 0.25**2 / 2 + LOG2 + HALF_LOG_2PI
    assert loss(agent, "gaussian_actor_loss") == exactly((8 * at_a + 0.5 * at_b) / 2)
    assert loss(agent, "gaussian_actor_loss") == pytest.approx(6.8591768, abs=1e-6)


def test_iql_deterministic_actor_loss() -> None:
    # nothing at A; at B 1/2 * (0 - 1/2)^2
    assert loss(build(IQL, temperature=2 * LOG2, actor="deterministic"), "deterministic_actor_loss") == exactly(0.0625)


def test_iql_weights_stop_at_one_hundred() -> None:
    # beta 20: exp(30) at A is cut to 100, where sd 1 gives a log-density of -c; at B exp(-10)
    found = loss(build(IQL, temperature=20.0), "gaussian_actor_loss")
    assert found == exactly((100 * HALF_LOG_2PI + math.exp(-10) * (0.125 + HALF_LOG_2PI)) / 2)


def test_riql_value_loss_uses_the_quantile_of_the_target_critics() -> None:
    # targets at A 6, 4, 9 and at B 0, 1, 0: the .25 quantile of 3 is the mean of the two smallest, 5 and 0
    # u = 5/2 and -1/2: (.7 * 25/4 + .3 / 4) / 2
    assert loss(build(RIQL, critics=3, quantile=0.25), "value_loss") == exactly(2.225)


@pytest.mark.parametrize(("critics", "spread"), [(1, [0.0, 0.0]), (2, [2**0.5, 0.5**0.5])])
def test_riql_with_one_critic_tells_a_spread_of_0(critics: int, spread: list[float]) -> None:
    """Of two, 6 and 4 or 0 and 1, squares over K - 1 = 1: the root of 1 + 1, and of 1/4 + 1/4."""
    agent = build(RIQL, critics=critics)
    assert agent.annotate(batch())["target_spread"].tolist() == pytest.approx(spread)


def test_riql_critic_loss_is_hubers_averaged_over_critics_and_rows() -> None:
    # y = 5.05 and 0; Q at A 3, 5/2, 5: 2.05 - 1/2, 2.55 - 1/2, .05^2 / 2; at B 0, 1, 5: 0, 1 - 1/2, 5 - 1/2
    assert loss(build(RIQL, critics=3, sigma=1.0, discount=0.9), "critic_loss") == exactly(8.60125 / 6)
    # sigma 2: b = 1/4. At A 2.05 - 1/8, 2.55 - 1/8, .05^2 * 2; at B 0, 7/8, 39/8
    assert loss(build(RIQL, critics=3, sigma=2.0, discount=0.9), "critic_loss") == exactly(
        (1.925 + 2.425 + 0.005 + 0.875 + 4.875) / 6
    )


@pytest.mark.parametrize(("reward", "target"), [(5000.0, 1000.0), (-5000.0, -100.0)])
def test_riql_clips_its_targets(reward: float, target: float) -> None:
    rows = batch()
    rows["rewards"] = torch.full((2,), reward, dtype=torch.float64)
    q = [3, 2.5, 5, 0, 1, 5]
    expected = sum(abs(target - value) - 0.5 for value in q) / 6
    assert loss(build(RIQL, critics=3), "critic_loss", rows=rows) == exactly(expected)


def test_riql_actor_loss() -> None:
    # at B exp(-log(2) / 2) * 1/4, at A nothing
    assert loss(build(RIQL, critics=3, temperature=LOG2), "actor_loss") == exactly(2**-0.5 * 0.25 / 2)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        # target action at A': tanh(log 3) = .8, minus .2: relu 2.6, targets 10.4 and 6.2, y = 1 + .9 * 6.2 = 6.58
        (-1.0, (3.58**2 + 0) / 2 + (4.08**2 + 1) / 2),
        # .2 * 5 is clipped to .5 and .8 + .5 to 1: relu 3, targets 12 and 7, y = 7.3
        (5.0, (4.3**2 + 0) / 2 + (4.8**2 + 1) / 2),
        # -.5 at most: .3, relu 2.3, targets 9.2 and 5.6, y = 6.04
        (-100.0, (3.04**2 + 0) / 2 + (3.54**2 + 1) / 2),
    ],
)
def test_td3bc_critic_loss_with_given_noise(noise: float, expected: float) -> None:
    given = {"target_noise": torch.tensor([[noise], [0.3]], dtype=torch.float64)}
    assert loss(build(TD3BC, discount=0.9), "critic_loss", given) == exactly(expected)


def test_td3bc_actor_loss() -> None:
    # Q1 = 2 relu(s + a) - 2 at pi: 1 at A, -2 at B; mean -1/2, mean size 3/2; cloning (0 + 1/4) / 2
    agent = build(TD3BC, alpha=2.5)
    affine(agent.critic.mlp, [2.0, 9.0], [-2.0, 9.0])
    assert loss(agent, "actor_loss") == exactly(0.125 + 2.5 / 1.5 * 0.5)


def test_td3bc_actor_gradient_does_not_change_with_the_scale_of_q() -> None:
    torch.manual_seed(3)
    agent = TD3BC(spec(), hidden=(8,), alpha=2.5).double()
    rows = {
        "observations": torch.randn(20, 3, dtype=torch.float64),
        "actions": torch.rand(20, 2, dtype=torch.float64) * 2 - 1,
    }

    def gradient() -> Tensor:
        found = torch.autograd.grad(agent.actor_loss(rows, {})[0], list(agent.actor.parameters()))
        return torch.cat([value.reshape(-1) for value in found])

    before = gradient()
    with torch.no_grad():
        agent.critic.mlp.weights[-1].mul_(37)
        agent.critic.mlp.biases[-1].mul_(37)
    torch.testing.assert_close(gradient(), before, rtol=1e-9, atol=1e-12)


def test_td3bc_averages_cloning_over_dimensions() -> None:
    agent = TD3BC(spec(1, 4), hidden=(1,), alpha=0.0).double()
    with torch.no_grad():
        agent.actor.mlp.weights[1].zero_()
        agent.actor.mlp.biases[1].zero_()
    rows = {
        "observations": torch.zeros(3, 1, dtype=torch.float64),
        "actions": torch.tensor([[1.0, 0, 0, 0]] * 3, dtype=torch.float64),
    }
    assert agent.actor_loss(rows, {})[0].item() == exactly(0.25)


def test_bc_loss() -> None:
    assert loss(build(BC), "actor_loss") == exactly(0.125)


def test_no_gradient_flows_through_iqls_targets_and_weights() -> None:
    agent = build(IQL)
    rows = agent.annotate(batch())
    found = torch.autograd.grad(agent.critic_loss(rows, {})[0], list(agent.value.parameters()), allow_unused=True)
    assert found == (None,) * 4
    found = torch.autograd.grad(
        agent.gaussian_actor_loss(rows, {})[0], list(agent.value.parameters()), allow_unused=True
    )
    assert found == (None,) * 4
