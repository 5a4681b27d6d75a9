"""SAC's and TD3's full updates against a second implementation: torch's layers and optimisers, one loss at a time.

Both start from equal weights and see equal batches and noise, in float64. Orders, delays, target averages and
the entropy's signs all leave marks.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any

import pytest
import torch
from plain_layers import layers
from torch import Tensor, nn

from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.online import REDQ, SAC, TD3

ROWS, STEPS = 5, 4
PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
Rows = dict[str, Tensor]


def batches(count: int, rows: int) -> list[Rows]:
    source = torch.Generator().manual_seed(11)
    made = []
    for _ in range(count):
        observations, following = (torch.randn(rows, 3, generator=source, dtype=torch.float64) for _ in range(2))
        actions = torch.rand(rows, 2, generator=source, dtype=torch.float64) * 2 - 1
        made.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": torch.randn(rows, generator=source, dtype=torch.float64) * 3,
                "terminations": (torch.rand(rows, generator=source) < 0.3).double(),
                "next_observations": following,
                "observation_actions": torch.cat([observations, actions], -1),
            }
        )
    return made


def descend(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()


def average(targets: list[nn.Module], sources: list[nn.Module], rate: float) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            for old, new in zip(target.parameters(), source.parameters(), strict=True):
                old.mul_(1 - rate).add_(rate * new)


class Second:
    """Networks and optimisers of an agent, as torch's own."""

    def __init__(self, agent: Any, actor_rate: float, critic_rate: float) -> None:
        self.c = agent.config
        count = agent.critic.mlp.members
        self.critics: list[nn.Module] = [layers(agent.critic.mlp, i) for i in range(count)]
        self.targets: list[nn.Module] = [layers(agent.target_critic.mlp, i) for i in range(count)]
        self.actor, self.target_actor = layers(agent.actor.mlp), layers(agent.actor.mlp)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=actor_rate)
        self.critic_adam = torch.optim.Adam([p for q in self.critics for p in q.parameters()], lr=critic_rate)
        self.taken = 0

    def values(self, networks: list[nn.Module], observations: Tensor, actions: Tensor) -> Tensor:
        return torch.stack([q(torch.cat([observations, actions], 1)).squeeze(1) for q in networks])


class SecondSAC(Second):
    """Of REDQ and its kin too; SAC is two critics, one critic step, and their minimum everywhere."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent, agent.config.actor_learning_rate, agent.config.critic_learning_rate)
        plain = {"critic_steps": 1, "subset": 2, "entropy_backup": True, "actor_value": "min", "actor_rows": "last",
                 "temperature_at": "observations"}  # fmt: skip
        self.c = types.SimpleNamespace(**{**plain, **dataclasses.asdict(agent.config)})
        self.rho = nn.Parameter(agent.temperature.rho.detach().double().clone())
        self.rho_adam = torch.optim.Adam([self.rho], lr=agent.config.temperature_learning_rate)

    def draw(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observations).chunk(2, 1)
        log_std = log_std.clamp(*self.c.log_std_range)
        normal = torch.distributions.Normal(mean, log_std.exp())
        unsquashed = mean + log_std.exp() * noise
        action = torch.tanh(unsquashed)
        # float64 and moderate values: the plain Jacobian is exact enough here
        return action, (normal.log_prob(unsquashed) - torch.log(1 - action**2)).sum(1)

    def alpha(self) -> Tensor:
        return torch.log1p(self.rho.exp()) if self.c.temperature_form == "softplus" else self.rho.exp()

    def step(self, batch: Rows, noise: Rows) -> None:
        c, size = self.c, len(batch["rewards"]) // self.c.critic_steps
        for turn in range(c.critic_steps):
            own = {k: v[turn * size : (turn + 1) * size] for k, v in {**batch, **noise}.items()}
            with torch.no_grad():
                following = own["next_observations"]
                action, density = self.draw(following, own["next_action"])
                q = self.values(self.targets, following, action)
                if "subset" in own:
                    q = q[own["subset"][0].argsort()[: c.subset]]
                soft = q.min(0).values - (self.alpha() * density if c.entropy_backup else 0)
                y = own["rewards"] + c.discount * (1 - own["terminations"]) * soft
            errors = [
                nn.functional.mse_loss(q, y) for q in self.values(self.critics, own["observations"], own["actions"])
            ]
            weight = {"half_sum": 0.5, "sum": 1.0, "mean": 1 / len(errors)}[c.critic_loss_over]
            descend(self.critic_adam, weight * sum(errors))  # type: ignore[arg-type]
            average(self.targets, self.critics, c.target_rate)
        last = slice(None) if c.actor_rows == "all" else slice(-size, None)
        observations, draws = batch["observations"][last], noise["action"][last]
        alpha = self.alpha().detach()
        with torch.no_grad():
            _, measured = self.draw(batch[c.temperature_at][last], draws)
        action, density = self.draw(observations, draws)
        q = self.values(self.critics, observations, action)
        value = q.min(0).values if c.actor_value == "min" else q.mean(0)
        descend(self.actor_adam, (alpha * density - value).mean())
        target = agent_target(c)
        scale = self.rho if c.temperature_form == "log" else self.alpha()
        descend(self.rho_adam, -scale * (measured.mean() + target))


def agent_target(config: Any) -> float:
    return float(config.target_entropy_per_dimension * 2)


class SecondTD3(Second):
    def __init__(self, agent: TD3) -> None:
        super().__init__(agent, agent.config.learning_rate, agent.config.learning_rate)

    def step(self, batch: Rows, noise: Rows) -> None:
        c = self.c
        self.taken += 1
        with torch.no_grad():
            following = batch["next_observations"]
            smoothing = (c.target_noise * noise["target_noise"]).clip(-c.target_noise_clip, c.target_noise_clip)
            action = (torch.tanh(self.target_actor(following)) + smoothing).clip(-1, 1)
            q = self.values(self.targets, following, action).min(0).values
            y = batch["rewards"] + c.discount * (1 - batch["terminations"]) * q
        found = self.values(self.critics, batch["observations"], batch["actions"])
        descend(self.critic_adam, sum(nn.functional.mse_loss(q, y) for q in found))  # type: ignore[arg-type]
        if self.taken % 2 == 0:
            action = torch.tanh(self.actor(batch["observations"]))
            descend(self.actor_adam, -self.values(self.critics, batch["observations"], action)[0].mean())
            average(self.targets, self.critics, c.target_rate)
            average([self.target_actor], [self.actor], c.target_rate)


def assert_same(agent: Agent, second: Second) -> None:
    pairs = [(agent.actor.mlp, None, second.actor)]
    pairs += [(agent.critic.mlp, i, q) for i, q in enumerate(second.critics)]  # type: ignore[union-attr, list-item]
    pairs += [(agent.target_critic.mlp, i, q) for i, q in enumerate(second.targets)]  # type: ignore[union-attr, list-item]
    if hasattr(agent, "target_actor"):
        pairs.append((agent.target_actor.mlp, None, second.target_actor))
    for mlp, member, other in pairs:
        mine = [p for pair in zip(mlp.weights, mlp.biases, strict=True) for p in pair]
        for value, expected in zip(mine, other.parameters(), strict=True):
            own = value if member is None else value[member]
            torch.testing.assert_close(own.detach(), expected.detach(), rtol=1e-9, atol=1e-12)
    if isinstance(second, SecondSAC):
        torch.testing.assert_close(agent.temperature.rho.detach(), second.rho.detach(), rtol=1e-9, atol=1e-12)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SAC, {}),
        (SAC, {"preset": "cleanrl"}),
        (REDQ, {"critics": 4, "subset": 2, "critic_steps": 3, "critic_loss_over": "sum", "actor_value": "mean"}),
        (
            REDQ,
            {
                "critics": 3,
                "critic_steps": 2,
                "actor_rows": "all",
                "temperature_form": "softplus",
                "temperature_at": "next_observations",
                "entropy_backup": False,
                "critic_loss_over": "mean",
                "actor_value": "min",
                "target_entropy_per_dimension": -0.5,
            },
        ),
        (TD3, {}),
    ],
)
def test_full_updates_equal_the_second_implementation(kind: Any, options: dict[str, Any]) -> None:
    agent = kind(PROBLEM, hidden=(7, 6), **options).fresh(2)
    agent.batch_size = ROWS
    for name, value in agent.named_parameters():
        if name.startswith("target_critic"):  # targets that differ from the critics, or their average says nothing
            value.data.add_(0.1)
    rows = ROWS * getattr(agent.config, "critic_steps", 1)
    given = batches(STEPS, rows)
    assert_updates_equal(agent, given, given, ROWS)


def assert_updates_equal(agent: Any, given: list[Rows], plain: list[Rows], batch_size: int) -> None:
    """Step by step, of the agent on the batches and of the second implementation on the same as rows of one step."""
    learner = Learner([agent], [0], Numbered(given), batch_size=batch_size, dtype=torch.float64)
    second = (SecondTD3 if isinstance(agent, TD3) else SecondSAC)(agent)
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], len(plain[0]["rewards"]), noises, torch.device("cpu"), torch.float64)
    for step, rows in enumerate(plain):
        learner.run(1)
        second.step(rows, {name: value[0] for name, value in stream.at(step).items()})
        assert_same(agent, second)


class Numbered:
    """Source of a given batch for each step."""

    def __init__(self, batches: list[Rows]) -> None:
        self.batches = batches

    def bind(self, seeds: Any, rows: int, device: torch.device) -> None:
        self.count = rows

    def rows(self, step: int) -> Tensor:
        return torch.full((1, self.count), step)

    def gather(self, indices: Tensor, out: Any = None) -> Rows:
        return self.batches[int(indices[0])]


def test_the_soft_target_by_hand() -> None:
    """Worked out by hand: mean 0.2, deviation 0.7, u = 0.5: log pi = -0.41387131 and a = 0.46211716."""
    agent = SAC(Spec(1, 1, (-1.0,), (1.0,)), hidden=(1,), temperature=0.3, discount=0.9).double()
    with torch.no_grad():
        for network in (agent.actor, agent.critic, agent.target_critic):
            for parameter in network.parameters():
                parameter.zero_()
        agent.actor.mlp.biases[-1].copy_(torch.tensor([0.2, math.log(0.7)]))
        # Q_i(s, a) = relu(a + 1) w_i: the lower of 2 x 1.46211716 and 3 x 1.46211716
        agent.target_critic.mlp.weights[0][:, 0, 1] = 1.0
        agent.target_critic.mlp.biases[0].fill_(1.0)
        agent.target_critic.mlp.weights[1][:, 0, 0] = torch.tensor([2.0, 3.0], dtype=torch.float64)
    batch = {
        "observations": torch.zeros(2, 1),
        "next_observations": torch.zeros(2, 1),
        "rewards": torch.tensor([1.0, 1.0]),
        "terminations": torch.tensor([0.0, 1.0]),
        "observation_actions": torch.zeros(2, 2),
    }
    batch = {name: value.double() for name, value in batch.items()}
    noise = {"next_action": torch.full((2, 1), 0.3 / 0.7, dtype=torch.float64)}
    loss, _ = agent.critic_loss(batch, noise)
    target = 1 + 0.9 * (2 * 1.46211716 + 0.3 * 0.41387131)
    # critics are 0: half the sum over two of the mean over two rows of the squared targets, of which the ended one is r
    assert float(loss.detach()) == pytest.approx(0.5 * (target**2 + 1.0), rel=1e-7)
