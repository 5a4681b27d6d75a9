"""What tests of cql share."""

from __future__ import annotations

import math

import pytest
import torch
from plain_layers import layers
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.offline import CQL, CalQL

ROWS = 5
Rows = dict[str, Tensor]


def trained(agent: Agent, rows: list[Rows]) -> Learner:
    """A Learner that is handed these batches one after the other."""
    feed = iter(rows)
    return Learner(
        [agent], [0], Uniform(lambda _: next(feed), 1000), batch_size=ROWS, planned_steps=8, dtype=torch.float64
    )


class Plain:
    """CQL and Cal-QL with one network, one action and one loss at a time."""

    def __init__(self, agent: CQL) -> None:
        self.c = c = agent.config
        self.calibrated = isinstance(agent, CalQL)
        self.actor = layers(agent.actor.mlp)
        self.critics = [layers(agent.critic.mlp, i) for i in range(c.critics)]
        self.targets = [layers(agent.target_critic.mlp, i) for i in range(c.critics)]
        self.rho = nn.Parameter(agent.temperature.rho.detach().clone())
        assert float(self.rho.detach()) == pytest.approx(math.log(math.e - 1), rel=1e-6)  # softplus of it is 1
        self.weight_rho = nn.Parameter(torch.zeros((), dtype=torch.float64))
        if c.learn_cql_weight:
            self.weight_rho = nn.Parameter(agent.cql_weight.rho.detach().clone())
        critic_parameters = [p for q in self.critics for p in q.parameters()]
        if c.learn_cql_weight:
            critic_parameters.append(self.weight_rho)
        self.adams = [
            torch.optim.Adam(critic_parameters, lr=3e-4),
            torch.optim.Adam(self.actor.parameters(), lr=1e-4),
            torch.optim.Adam([self.rho], lr=1e-4),
        ]

    def draw(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        out = self.actor(observations)
        u = out[:, :2] + out[:, 2:].exp() * noise
        normal = torch.distributions.Normal(out[:, :2], out[:, 2:].exp()).log_prob(u).sum(1)
        return torch.tanh(u), normal - torch.log(1 - torch.tanh(u) ** 2).sum(1)

    @staticmethod
    def q(critic: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        return critic(torch.cat([observations, actions], 1)).squeeze(1)

    def members(self, noise: Rows) -> list[int]:
        c = self.c
        if c.subset == c.critics:
            return list(range(c.critics))
        draws = noise["subset"][0]
        if c.subset_replacement:
            return sorted({int(x * c.critics) for x in draws[: c.subset].tolist()})
        return sorted(draws.argsort()[: c.subset].tolist())

    def critic_loss(self, rows: Rows, noise: Rows) -> Tensor:
        c, s, following = self.c, rows["observations"], rows["next_observations"]
        members = self.members(noise)
        with torch.no_grad():
            candidates = []
            for k in range(c.sampled_actions if c.max_target_backup else 1):
                action, _ = self.draw(following, noise["next_action"][:, 2 * k : 2 * k + 2])
                candidates.append(torch.stack([self.q(self.targets[i], following, action) for i in members]).amin(0))
            best = torch.stack(candidates).amax(0)
            y = rows["rewards"] + c.discount * (1 - rows["terminations"]) * best
            sampled = []
            for k in range(c.sampled_actions):
                part = slice(2 * k, 2 * k + 2)
                uniform = 2 * noise["uniform_action"][:, part] - 1
                sampled.append((uniform, torch.full((ROWS,), math.log(0.25), dtype=torch.float64), False))
                sampled.append((*self.draw(s, noise["policy_action"][:, part]), True))
                sampled.append((*self.draw(following, noise["next_policy_action"][:, part]), True))
        data = [self.q(critic, s, rows["actions"]) for critic in self.critics]
        td = sum(((q - y) ** 2).mean() for q in data) / c.critics
        gaps = []
        for i in members:
            entries = []
            for action, density, of_policy in sampled:
                q = self.q(self.critics[i], s, action)
                if of_policy and self.calibrated:
                    q = torch.max(q, rows["returns_to_go"])
                entries.append(q - density if c.importance_sampling else q)
            if not c.importance_sampling:
                entries = [entry - c.cql_temperature * math.log(len(entries) + 1) for entry in [*entries, data[i]]]
            lse = c.cql_temperature * torch.logsumexp(torch.stack(entries) / c.cql_temperature, 0)
            gap = lse - data[i]
            low = -math.inf if c.gap_low is None else c.gap_low
            high = math.inf if c.gap_high is None else c.gap_high
            gaps.append(gap.clamp(low, high).mean())
        gap = sum(gaps) / len(gaps)
        if not c.learn_cql_weight:
            return td + c.cql_weight * gap
        weight = nn.functional.softplus(self.weight_rho)
        return td + weight.detach() * (gap - c.cql_gap) - weight * (gap.detach() - c.cql_gap)

    def step(self, rows: Rows, noise: Rows) -> None:
        alpha = nn.functional.softplus(self.rho)
        action, density = self.draw(rows["observations"], noise["action"])
        q = torch.stack([self.q(critic, rows["observations"], action) for critic in self.critics]).amin(0)
        _, next_density = self.draw(rows["next_observations"], noise["action"])
        losses = [
            self.critic_loss(rows, noise),
            (alpha.detach() * density - q).mean(),
            alpha * (-next_density.detach().mean() + 2),
        ]
        self.descend(losses)

    def descend(self, losses: list[Tensor]) -> None:
        for adam, loss in zip(self.adams, losses, strict=True):  # all gradients are those at the old parameters
            own = adam.param_groups[0]["params"]
            for parameter, gradient in zip(own, torch.autograd.grad(loss, own, retain_graph=True), strict=True):
                parameter.grad = gradient
        for adam in self.adams:
            adam.step()
        with torch.no_grad():
            for target, source in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)


def pairs(agent: CQL, plain: Plain) -> list[tuple[str, Tensor, Tensor]]:
    found = [("temperature", agent.temperature.rho.detach(), plain.rho.detach())]
    if agent.config.learn_cql_weight:
        found.append(("cql_weight", agent.cql_weight.rho.detach(), plain.weight_rho.detach()))
    for name, networks in (("actor", [plain.actor]), ("critic", plain.critics), ("target_critic", plain.targets)):
        mlp = getattr(agent, name).mlp
        linears = [[m for m in n if isinstance(m, nn.Linear)] for n in networks]
        for layer in range(len(mlp.weights)):
            for part, own in (("weight", mlp.weights[layer]), ("bias", mlp.biases[layer])):
                expected = torch.stack([getattr(line[layer], part) for line in linears]).detach()
                found.append((f"{name}.{layer}.{part}", own.detach(), expected.reshape(own.shape)))
    return found


# -- identities --------------------------------------------------------------------------------------------


def losses(agent: CQL, rows: Rows) -> dict[str, float]:
    return {name: value[0] for name, value in trained(agent, [rows]).run(1).items()}
