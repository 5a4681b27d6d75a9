"""Full updates against a second implementation: torch's layers and optimisers, one network and one loss at a time.

Both start from equal weights and see equal batches and noise, in float64. Three steps are compared after each step:
orders, schedules, delays and target averages all leave marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_layers import layers
from plain_updates import PLANNED, RATE, ROWS, Rows, batches
from problems import relative, spec
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP
from surefoot.offline import BC, IQL, RIQL, TD3BC


class Reference:
    """Networks, optimisers and one `step` of an algorithm, written plainly."""

    def __init__(self, agent: Agent) -> None:
        c = self.config = agent.config
        self.taken = 0
        self.actor = layers(agent.actor.mlp)
        self.log_std = nn.Parameter(agent.actor.log_std.detach().clone()) if hasattr(agent.actor, "log_std") else None
        actor_parameters = [*self.actor.parameters(), *([self.log_std] if self.log_std is not None else [])]
        self.actor_adam = torch.optim.Adam(actor_parameters, lr=c.learning_rate)
        if hasattr(agent, "critic"):
            count = agent.critic.mlp.members
            self.critics = [layers(agent.critic.mlp, i) for i in range(count)]
            self.targets = [layers(agent.target_critic.mlp, i) for i in range(count)]
            self.critic_adam = torch.optim.Adam([p for q in self.critics for p in q.parameters()], lr=c.learning_rate)
        if hasattr(agent, "value"):
            self.value = layers(agent.value.mlp)
            self.value_adam = torch.optim.Adam(self.value.parameters(), lr=c.learning_rate)
        if hasattr(agent, "target_actor"):
            self.target_actor = layers(agent.target_actor.mlp)

    def descend(self, adam: torch.optim.Optimizer, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def average(self, targets: list[nn.Sequential], sources: list[nn.Sequential], rate: float) -> None:
        with torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.copy_((1 - rate) * old + rate * new)

    def cosine(self) -> None:
        """Set the actor's rate for its step number `taken`."""
        rate = RATE * 0.5 * (1 + math.cos(math.pi * self.taken / PLANNED))
        self.actor_adam.param_groups[0]["lr"] = rate


def expectile(u: Tensor, tau: float) -> Tensor:
    return ((tau - (u < 0).double()).abs() * u**2).mean()


class ReferenceIQL(Reference):
    def step(self, rows: Rows, noise: Rows) -> None:
        c, pair = self.config, rows["observation_actions"]
        with torch.no_grad():
            target_q = torch.min(self.targets[0](pair), self.targets[1](pair)).squeeze(1)

        def v(key: str) -> Tensor:
            return self.value(rows[key]).squeeze(1)

        def advantage() -> Tensor:
            return (target_q - v("observations")).detach()

        old_advantage, old_next = advantage(), v("next_observations").detach()
        self.descend(self.value_adam, expectile(target_q - v("observations"), c.expectile))
        if c.order == "sequential":
            chosen_advantage, next_value = advantage(), v("next_observations").detach()
        else:
            chosen_advantage, next_value = old_advantage, old_next
        self.cosine()
        weight = torch.clamp(torch.exp(c.temperature * chosen_advantage), max=100.0)
        hidden = self.actor[1](self.actor[0](rows["observations"]))
        if c.dropout:
            hidden = hidden * noise["dropout"]
        mean = torch.tanh(self.actor[2](hidden))
        if self.log_std is None:
            actor_loss = (weight * ((mean - rows["actions"]) ** 2).sum(1)).mean()
        else:
            std = self.log_std.clamp(c.log_std_min, 2.0).exp()
            log_prob = torch.distributions.Normal(mean, std).log_prob(rows["actions"]).sum(1)
            actor_loss = -(weight * log_prob).mean()
        self.descend(self.actor_adam, actor_loss)
        y = rows["rewards"] + c.discount * (1 - rows["terminations"]) * next_value
        errors = sum(((q(pair).squeeze(1) - y) ** 2).mean() for q in self.critics)
        self.descend(self.critic_adam, c.critic_weight * errors)
        self.average(self.targets, self.critics, 0.005)
        self.taken += 1


class ReferenceRIQL(Reference):
    def step(self, rows: Rows, noise: Rows) -> None:
        c, pair = self.config, rows["observation_actions"]
        with torch.no_grad():
            target_q = torch.quantile(torch.stack([q(pair).squeeze(1) for q in self.targets]), c.quantile, dim=0)
            next_value = self.value(rows["next_observations"]).squeeze(1)
            advantage = target_q - self.value(rows["observations"]).squeeze(1)
        y = (rows["rewards"] + c.discount * (1 - rows["terminations"]) * next_value).clamp(-100, 1000)
        self.descend(self.value_adam, expectile(target_q - self.value(rows["observations"]).squeeze(1), c.expectile))
        huber = nn.SmoothL1Loss(beta=1 / c.sigma**2)
        self.descend(self.critic_adam, sum(huber(q(pair).squeeze(1), y) for q in self.critics) / len(self.critics))
        self.cosine()
        weight = torch.clamp(torch.exp(c.temperature * advantage), max=100.0)
        error = torch.tanh(self.actor(rows["observations"])) - rows["actions"]
        self.descend(self.actor_adam, (weight * (error**2).sum(1)).mean())
        self.average(self.targets, self.critics, 0.005)
        self.taken += 1


class ReferenceTD3BC(Reference):
    def step(self, rows: Rows, noise: Rows) -> None:
        self.taken += 1
        s, following = rows["observations"], rows["next_observations"]
        with torch.no_grad():
            smoothing = (0.2 * noise["target_noise"]).clamp(-0.5, 0.5)
            action = (torch.tanh(self.target_actor(following)) + smoothing).clamp(-1, 1)
            both = [q(torch.cat([following, action], 1)).squeeze(1) for q in self.targets]
            y = rows["rewards"] + 0.99 * (1 - rows["terminations"]) * torch.min(*both)
        pair = rows["observation_actions"]
        self.descend(self.critic_adam, sum(nn.functional.mse_loss(q(pair).squeeze(1), y) for q in self.critics))
        if self.taken % 2 == 0:
            action = torch.tanh(self.actor(s))
            q = self.critics[0](torch.cat([s, action], 1))
            loss = -self.config.alpha / q.abs().mean().detach() * q.mean() + nn.functional.mse_loss(
                action, rows["actions"]
            )
            self.descend(self.actor_adam, loss)
            self.average(self.targets, self.critics, 0.005)
            self.average([self.target_actor], [self.actor], 0.005)


class ReferenceBC(Reference):
    def step(self, rows: Rows, noise: Rows) -> None:
        self.descend(
            self.actor_adam, nn.functional.mse_loss(torch.tanh(self.actor(rows["observations"])), rows["actions"])
        )


def pairs(agent: Agent, reference: Reference) -> list[tuple[str, Tensor, Tensor]]:
    """(name, the agent's tensor, the reference's)."""
    found: list[tuple[str, Tensor, Tensor]] = []

    def add(name: str, mlp: MLP, networks: list[nn.Sequential]) -> None:
        for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
            linears = [[m for m in n if isinstance(m, nn.Linear)][layer] for n in networks]
            for part, tensor in (("weight", weight), ("bias", bias)):
                expected = torch.stack([getattr(linear, part) for linear in linears])
                found.append((f"{name}.{layer}.{part}", tensor.detach(), expected.detach().reshape(tensor.shape)))

    add("actor", agent.actor.mlp, [reference.actor])
    if reference.log_std is not None:
        found.append(("log_std", agent.actor.log_std.detach(), reference.log_std.detach()))
    if hasattr(reference, "critics"):
        add("critic", agent.critic.mlp, reference.critics)
        add("target_critic", agent.target_critic.mlp, reference.targets)
    if hasattr(reference, "value"):
        add("value", agent.value.mlp, [reference.value])
    if hasattr(reference, "target_actor"):
        add("target_actor", agent.target_actor.mlp, [reference.target_actor])
    return found


def prepared(kind: type[Agent], **options: Any) -> Agent:
    agent = kind(spec(), **{"hidden": (3,), "learning_rate": RATE, **options}).double()
    with torch.no_grad():  # far from dead units, and targets unlike their critics
        for mlp in (m for m in agent.modules() if isinstance(m, MLP)):
            for bias in mlp.biases:
                bias.normal_(std=0.5)
        if hasattr(agent.actor, "log_std"):
            agent.actor.log_std.copy_(torch.tensor([0.3, -0.7]))
    return agent


def trained(agent: Agent, rows: list[Rows]) -> Learner:
    """A Learner that is handed these batches one after the other, whatever rows it draws."""
    feed = iter(rows)
    return Learner(
        [agent],
        [0],
        Uniform(lambda indices: next(feed), 1000),
        batch_size=ROWS,
        planned_steps=PLANNED,
        dtype=torch.float64,
    )


CASES: dict[str, tuple[type[Agent], type[Reference], dict[str, Any]]] = {
    "iql official": (IQL, ReferenceIQL, {}),
    "iql corl": (IQL, ReferenceIQL, {"preset": "corl"}),
    "iql deterministic": (IQL, ReferenceIQL, {"actor": "deterministic", "expectile": 0.9, "temperature": 10.0}),
    "iql dropout": (IQL, ReferenceIQL, {"dropout": 0.4}),
    "riql": (RIQL, ReferenceRIQL, {}),
    "riql k3": (RIQL, ReferenceRIQL, {"critics": 3, "quantile": 0.1, "sigma": 3.0}),
    "td3bc": (TD3BC, ReferenceTD3BC, {}),
    "bc": (BC, ReferenceBC, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_full_updates_equal_the_second_implementation(case: str) -> None:
    kind, plain, options = CASES[case]
    agent = prepared(kind, **options)
    reference, rows = plain(agent), batches(4)
    learner = trained(agent, rows)
    start = {name: value.clone() for name, value, _ in pairs(agent, reference)}
    for step in range(4):
        noise = {name: value[0] for name, value in learner.stream.at(step).items()}
        learner.run(1)
        reference.step(rows[step], noise)
        for name, value, expected in pairs(agent, reference):
            assert relative(value, expected) < 1e-10, f"{name} after step {step + 1}"
    for name, value, _ in pairs(agent, reference):
        moved = relative(value, start[name])
        assert moved > (1e-7 if "target" in name else 1e-5), f"{name} was not trained"


def one_step(order: str) -> tuple[dict[str, list[float]], Agent]:
    """IQL's first step where every target value is far above V, with a value step large enough to see."""
    agent = prepared(IQL, order=order, learning_rate=0.05)
    with torch.no_grad():
        agent.target_critic.mlp.biases[-1].fill_(1.0)
        agent.value.mlp.biases[-1].fill_(0.0)
        agent.value.mlp.weights[-1].mul_(0.1)
        agent.target_critic.mlp.weights[-1].mul_(0.1)
    rows = batches(1)
    rows[0]["rewards"] = torch.full((ROWS,), 50.0, dtype=torch.float64)
    return trained(agent, rows).run(1), agent


def test_sequential_actor_sees_smaller_advantages_and_critic_higher_targets() -> None:
    """V rises towards the targets above it: after that step advantages are smaller and TD targets higher."""
    torch.manual_seed(5)
    sequential, _ = one_step("sequential")
    torch.manual_seed(5)
    together, _ = one_step("together")
    assert together["advantage"][0] > 0
    assert sequential["value_loss"] == together["value_loss"]
    assert sequential["weight"][0] < together["weight"][0]
    assert sequential["critic_loss"][0] > together["critic_loss"][0]  # Q is far below: a higher target is further


@pytest.mark.parametrize("kind", [IQL, RIQL])
def test_only_the_actors_rate_falls_and_along_a_cosine(kind: type[Agent]) -> None:
    agent = prepared(kind)
    learner = trained(agent, batches(PLANNED))
    seen: dict[str, list[float]] = {update.name: [] for update in learner.updates}
    for _ in range(PLANNED):
        for update, optimizer in zip(learner.updates, learner.optimizers, strict=True):
            seen[update.name].append(optimizer.learning_rate())
        learner.run(1)
    actor = next(name for name in seen if "actor" in name)
    # 1 + cos(k pi / 8) over 2
    expected = [1, 0.9619398, 0.8535534, 0.6913417, 0.5, 0.3086583, 0.1464466, 0.0380602]
    assert seen[actor] == pytest.approx([RATE * e for e in expected], rel=1e-6)
    assert all(seen[name] == [RATE] * PLANNED for name in seen if name != actor)
    assert learner.optimizers[[u.name for u in learner.updates].index(actor)].learning_rate() == pytest.approx(
        0, abs=1e-12
    )


def test_td3bc_moves_actor_and_targets_at_even_steps_only() -> None:
    agent = prepared(TD3BC)
    learner = trained(agent, batches(6))
    names = ("critic", "actor", "target_critic", "target_actor")
    for step in range(1, 7):
        before = {name: learner.networks[name].value.clone() for name in names}
        learner.run(1)
        moved = {name: not torch.equal(before[name], learner.networks[name].value) for name in names}
        even = step % 2 == 0
        assert moved == {"critic": True, "actor": even, "target_critic": even, "target_actor": even}


def test_iql_targets_follow_by_their_rate_every_step() -> None:
    agent = prepared(IQL)
    learner = trained(agent, batches(3))
    for _ in range(3):
        before = learner.networks["target_critic"].value.clone()
        learner.run(1)
        expected = 0.995 * before + 0.005 * learner.networks["critic"].value
        torch.testing.assert_close(learner.networks["target_critic"].value, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("kind", "checks"), [
    (IQL, {"weights": lambda w: torch.allclose(w @ w.T if len(w) < w.shape[1] else w.T @ w,
                                               2 * torch.eye(min(w.shape)), atol=1e-4)}),
    (RIQL, {"biases": lambda b: bool((b.abs() <= 0.1).all())}),
])  # fmt: skip
def test_initialisations_are_the_papers(kind: type[Agent], checks: dict[str, Callable[[Tensor], bool]]) -> None:
    agent = kind(spec(), hidden=(8, 6))
    for part, holds in checks.items():
        for parameter in getattr(agent.critic.mlp, part):
            assert all(holds(member.detach()) for member in parameter)
    for target, source in zip(agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
        assert torch.equal(target, source)
