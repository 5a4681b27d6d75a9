"""Feeding a Learner given batches, and comparing its agent with plain torch networks tensor by tensor, in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from plain_layers import layers
from problems import relative, spec
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP

ROWS, PLANNED, RATE, DISCOUNT = 5, 8, 3e-4, 0.99
Rows = dict[str, Tensor]


def batches(count: int) -> list[Rows]:
    """Batches of normal observations and uniform actions; two rows of five are terminal, two the expert's."""
    source = torch.Generator().manual_seed(11)
    made = []
    for _ in range(count):
        observations, following = (torch.randn(ROWS, 3, generator=source, dtype=torch.float64) for _ in range(2))
        actions = torch.rand(ROWS, 2, generator=source, dtype=torch.float64) * 2 - 1
        made.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": torch.randn(ROWS, generator=source, dtype=torch.float64) * 3,
                "terminations": torch.tensor([0, 1, 0, 0, 1.0], dtype=torch.float64),
                "expert": torch.tensor([1, 0, 0, 1, 0.0], dtype=torch.float64),
                "next_observations": following,
                "observation_actions": torch.cat([observations, actions], -1),
            }
        )
    return made


def prepared(kind: type[Agent], **options: Any) -> Agent:
    """An agent in float64, far from dead units, and with targets unlike their critics."""
    torch.manual_seed(2)
    agent = kind(spec(), **{"hidden": (4,), "learning_rate": RATE, **options}).double()
    with torch.no_grad():
        for mlp in (m for m in agent.modules() if isinstance(m, MLP)):
            for parameter in (*mlp.weights, *mlp.biases, *mlp.shifts):
                parameter.normal_(std=0.5)
        if hasattr(agent.actor, "log_std"):
            agent.actor.log_std.copy_(torch.tensor([0.3, -0.7]))
    return agent


def feeding(agent: Agent, rows: list[Rows]) -> Learner:
    """A Learner that is handed these batches one after the other, whatever rows it draws."""
    feed = iter(rows)
    source = Uniform(lambda indices: next(feed), 1000)
    return Learner([agent], [0], source, batch_size=ROWS, planned_steps=PLANNED, dtype=torch.float64)


class Plain:
    """An agent's networks as torch's own layers, an optimiser each."""

    def __init__(self, agent: Agent) -> None:
        self.config, self.taken = agent.config, 0
        count = agent.critic.mlp.members
        self.actor = layers(agent.actor.mlp)
        self.critics = [layers(agent.critic.mlp, i) for i in range(count)]
        self.targets = [layers(agent.target_critic.mlp, i) for i in range(count)]
        self.log_std = nn.Parameter(agent.actor.log_std.detach().clone()) if hasattr(agent.actor, "log_std") else None
        own = [*self.actor.parameters(), *([] if self.log_std is None else [self.log_std])]
        self.actor_adam = torch.optim.Adam(own, lr=RATE)
        self.critic_adam = torch.optim.Adam([p for q in self.critics for p in q.parameters()], lr=RATE)
        if hasattr(agent, "value"):
            self.value = layers(agent.value.mlp, epsilon=1e-6)
            self.value_adam = torch.optim.Adam(self.value.parameters(), lr=RATE)
        if hasattr(agent, "temperature"):
            self.rho = nn.Parameter(agent.temperature.rho.detach().clone())
            self.rho_adam = torch.optim.Adam([self.rho], lr=RATE)

    def descend(self, adam: torch.optim.Optimizer, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def cosine(self) -> None:
        self.actor_adam.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * self.taken / PLANNED))

    def average(self) -> None:
        with torch.no_grad():
            for target, source in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)

    def all(self, networks: list[nn.Sequential], pair: Tensor) -> Tensor:
        return torch.stack([network(pair).squeeze(1) for network in networks])

    def step(self, rows: Rows, noise: Rows) -> None:
        raise NotImplementedError


def compared(agent: Agent, plain: Plain) -> list[tuple[str, Tensor, Tensor]]:
    """(name, the agent's tensor, the plain one)."""
    found: list[tuple[str, Tensor, Tensor]] = []

    def add(name: str, mlp: MLP, networks: list[nn.Sequential]) -> None:
        for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
            linears = [[m for m in n if isinstance(m, nn.Linear)][layer] for n in networks]
            for part, tensor in (("weight", weight), ("bias", bias)):
                expected = torch.stack([getattr(linear, part) for linear in linears])
                found.append((f"{name}.{layer}.{part}", tensor.detach(), expected.detach().reshape(tensor.shape)))

    add("actor", agent.actor.mlp, [plain.actor])
    add("critic", agent.critic.mlp, plain.critics)
    add("target_critic", agent.target_critic.mlp, plain.targets)
    if plain.log_std is not None:
        found.append(("log_std", agent.actor.log_std.detach(), plain.log_std.detach()))
    if hasattr(agent, "value"):
        add("value", agent.value.mlp, [plain.value])
        norm = next(m for m in plain.value if isinstance(m, nn.LayerNorm))
        found.append(("value.scale", agent.value.mlp.scales[0].detach(), norm.weight.detach()))
    if hasattr(agent, "temperature"):
        found.append(("temperature", agent.temperature.rho.detach(), plain.rho.detach()))
    return found


def check(agent: Agent, plain: Plain, steps: int = 3) -> None:
    """Both take the same steps on the same batches and noise, and agree after each; all of it has moved."""
    rows = batches(steps)
    learner = feeding(agent, rows)
    start = {name: value.clone() for name, value, _ in compared(agent, plain)}
    for step in range(steps):
        noise = {name: value[0] for name, value in learner.stream.at(step).items()}
        learner.run(1)
        plain.step(rows[step], noise)
        plain.taken += 1
        for name, value, expected in compared(agent, plain):
            assert relative(value, expected) < 1e-10, f"{name} after step {step + 1}"
    for name, value, _ in compared(agent, plain):
        assert relative(value, start[name]) > (1e-8 if "target" in name else 1e-6), f"{name} was not trained"
