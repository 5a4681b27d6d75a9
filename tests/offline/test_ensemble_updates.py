"""EDAC, SAC-N, MSG, MCQ and AWAC: losses by hand, updates against plain torch, a problem that tells signs apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from plain_layers import layers
from plain_updates import DISCOUNT, Plain, Rows, batches, check, prepared
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import Code
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn import ensembles
from surefoot.data.store import Store
from surefoot.offline import AWAC, EDAC, MCQ, MSG, SACN


class PlainEDAC(Plain):
    """Temperature, actor, critics; the critics' gradients by actions through autograd, twice."""

    def draw(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = mean + normal.scale * noise
        return torch.tanh(raw), (normal.log_prob(raw) - 2 * torch.log(1 / torch.cosh(raw))).sum(-1)

    def bound(self, values: Tensor) -> Tensor:
        if isinstance(self.config, MSG.Config):
            return values.mean(0) - self.config.deviations * values.std(0)
        return values.min(0).values

    def agreement(self, rows: Rows) -> Tensor:
        count, found = len(self.critics), []
        for critic in self.critics:
            action = rows["actions"].clone().requires_grad_(True)
            value = critic(torch.cat([rows["observations"], action], -1)).sum()
            gradient = torch.autograd.grad(value, action, create_graph=True)[0]
            found.append(gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10))
        total = sum((found[i] * found[j]).sum(-1).mean() for i in range(count) for j in range(count) if i != j)
        return total / (count - 1)

    def step(self, rows: Rows, noise: Rows) -> None:
        s, following = rows["observations"], rows["next_observations"]
        density = self.draw(s, noise["entropy_action"])[1].detach()
        self.descend(self.rho_adam, -(self.rho * (density - 2.0)).mean())
        alpha = self.rho.exp().detach()
        action, density = self.draw(s, noise["action"])
        value = self.bound(self.all(self.critics, torch.cat([s, action], -1)))
        self.descend(self.actor_adam, (alpha * density - value).mean())
        with torch.no_grad():
            action, density = self.draw(following, noise["next_action"])
            next_q = self.all(self.targets, torch.cat([following, action], -1))
            if getattr(self.config, "targets", "") != "independent":
                next_q = self.bound(next_q)
            y = rows["rewards"] + DISCOUNT * (1 - rows["terminations"]) * (next_q - alpha * density)
        loss = ((self.all(self.critics, rows["observation_actions"]) - y) ** 2).mean(-1).sum()
        if self.config.diversity:
            loss = loss + self.config.diversity * self.agreement(rows)
        self.descend(self.critic_adam, loss)
        self.average()


class PlainMCQ(PlainEDAC):
    """Behaviour model, critics, actor, temperature; sampled actions one by one."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.encoder, self.decoder = layers(agent.vae.encoder), layers(agent.vae.decoder)
        own = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.vae_adam = torch.optim.Adam(own, lr=self.config.vae_learning_rate)

    def decode(self, seen: Tensor, latents: Tensor) -> Tensor:
        return torch.tanh(self.decoder(torch.cat([seen, latents], -1)))

    def pseudo(self, seen: Tensor, latents: Tensor) -> Tensor:
        best = []
        for target in self.targets:
            values = [
                target(torch.cat([seen, self.decode(seen, z.clamp(-0.5, 0.5))], -1)).squeeze(1)
                for z in latents.split(4, -1)
            ]
            best.append(torch.stack(values).max(0).values)
        return torch.stack(best).min(0).values

    def step(self, rows: Rows, noise: Rows) -> None:
        s, following, a = rows["observations"], rows["next_observations"], rows["actions"]
        mean, log_std = self.encoder(torch.cat([s, a], -1)).chunk(2, -1)
        code = torch.distributions.Normal(mean, log_std.clamp(-4, 15).exp())
        told = torch.distributions.kl_divergence(code, torch.distributions.Normal(0.0, 1.0)).mean()
        self.descend(self.vae_adam, ((self.decode(s, mean + code.scale * noise["encoded"]) - a) ** 2).mean() + told)
        alpha, weight = self.rho.exp().detach(), self.config.data_weight
        with torch.no_grad():
            action, density = self.draw(following, noise["next_action"])
            next_q = self.all(self.targets, torch.cat([following, action], -1)).min(0).values
            y = rows["rewards"] + DISCOUNT * (1 - rows["terminations"]) * (next_q - alpha * density)
        loss = weight * ((self.all(self.critics, rows["observation_actions"]) - y) ** 2).mean(-1).sum()
        for half, states in enumerate((s, following)):  # each half of the 2 B rows has half of their mean
            with torch.no_grad():
                own = self.draw(states, noise["own_action"].chunk(2, -1)[half])[0]
                goal = self.pseudo(states, noise["latents"].chunk(2, -1)[half])
            error = (self.all(self.critics, torch.cat([states, own], -1)) - goal) ** 2
            loss = loss + (1 - weight) * error.mean(-1).sum() / 2
        self.descend(self.critic_adam, loss)
        self.average()
        action, density = self.draw(s, noise["action"])
        value = self.all(self.critics, torch.cat([s, action], -1)).min(0).values
        self.descend(self.actor_adam, (alpha * density - value).mean())
        density = self.draw(s, noise["entropy_action"])[1].detach()
        self.descend(self.rho_adam, -(self.rho * (density - 2.0)).mean())


class PlainAWAC(Plain):
    def draw(self, seen: Tensor, noise: Tensor) -> Tensor:
        return (self.actor(seen) + self.log_std.clamp(-20, 2).exp() * noise).clamp(-1, 1)

    def step(self, rows: Rows, noise: Rows) -> None:
        s, following, pair = rows["observations"], rows["next_observations"], rows["observation_actions"]
        with torch.no_grad():
            both = torch.cat([following, self.draw(following, noise["next_action"])], -1)
            y = rows["rewards"] + DISCOUNT * (1 - rows["terminations"]) * self.all(self.targets, both).min(0).values
        self.descend(self.critic_adam, ((self.all(self.critics, pair) - y) ** 2).mean(-1).sum())
        self.average()
        with torch.no_grad():
            own = torch.cat([s, self.draw(s, noise["action"])], -1)
            advantage = self.all(self.critics, pair).min(0).values - self.all(self.critics, own).min(0).values
            weight = (self.config.temperature * advantage).exp().clamp(max=100)
        normal = torch.distributions.Normal(self.actor(s), self.log_std.clamp(-20, 2).exp())
        self.descend(self.actor_adam, -(weight * normal.log_prob(rows["actions"]).sum(-1)).mean())


CASES: dict[str, tuple[type[Agent], type[Plain], dict[str, Any]]] = {
    "edac": (EDAC, PlainEDAC, {"critics": 3, "diversity": 0.7}),
    "sac_n": (SACN, PlainEDAC, {"critics": 4}),
    "msg": (MSG, PlainEDAC, {"critics": 3}),
    "msg shared": (MSG, PlainEDAC, {"critics": 3, "targets": "shared", "deviations": 1.5}),
    "mcq": (MCQ, PlainMCQ, {"vae_hidden": (5,), "sampled_actions": 3, "data_weight": 0.7}),
    "awac": (AWAC, PlainAWAC, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_full_updates_equal_the_second_implementation(case: str) -> None:
    kind, plain, options = CASES[case]
    agent = prepared(kind, **options)
    check(agent, plain(agent))


def test_diversity_is_the_number_of_critics_where_they_are_equal_and_0_where_their_gradients_are_orthogonal() -> None:
    same = torch.tensor([[3.0, 4.0], [-1.0, 2.0]]).expand(5, -1, -1)
    assert float(ensembles.diversity(same)) == pytest.approx(5, rel=1e-5)
    orthogonal = torch.tensor([[[2.0, 0, 0]], [[0, 0.1, 0]], [[0, 0, -7.0]]])
    assert float(ensembles.diversity(orthogonal)) == pytest.approx(0, abs=1e-6)
    opposed = torch.tensor([[[1.0, 0]], [[-3.0, 0]]])
    assert float(ensembles.diversity(opposed)) == pytest.approx(-2, rel=1e-5)


def test_an_edac_of_equal_critics_pays_eta_times_their_number() -> None:
    agent = prepared(EDAC, critics=4, diversity=2.5)
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter).clone())
    rows = batches(1)[0]
    noise = {"next_action": torch.zeros(5, 2, dtype=torch.float64)}
    with_term, metrics = agent.critic_loss(rows, noise)
    target, q = agent.targets(rows, noise), agent.critic(rows["observation_actions"])
    assert float(metrics["agreement"].detach()) == pytest.approx(4, rel=1e-8)
    assert float(with_term.detach()) == pytest.approx(
        4 * float((q[0] - target).square().mean().detach()) + 2.5 * 4, rel=1e-8
    )


def test_the_lower_bound_of_msg_by_hand_and_its_critics_see_targets_of_their_own() -> None:
    agent = MSG(Spec(1, 1, (-1.0,), (1.0,)), critics=3, deviations=4.0)
    values = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]])  # means 3 and 1, deviations over 2: sqrt 7 and sqrt 3
    expected = [3 - 4 * math.sqrt(7), 1 - 4 * math.sqrt(3)]
    assert agent.pessimistic(values).tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(agent.next_values(values), values)
    agent = MSG(Spec(1, 1, (-1.0,), (1.0,)), critics=3, targets="shared", deviations=1.0)
    assert agent.next_values(values).tolist() == pytest.approx([3 - math.sqrt(7), 1 - math.sqrt(3)], rel=1e-6)


def test_the_spread_of_critics_is_over_one_less_than_their_number_and_0_of_one() -> None:
    values = torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 3.0]])
    assert ensembles.spread(values).tolist() == pytest.approx([math.sqrt(7), math.sqrt(3)], rel=1e-6)
    assert ensembles.spread(values[:1]).tolist() == [0, 0]


def test_awacs_weight_is_exp_of_the_advantage_over_the_policys_own_action_and_stops_at_100() -> None:
    agent = prepared(AWAC, temperature=1.0)
    rows = batches(1)[0]
    noise = {"action": torch.zeros(5, 2, dtype=torch.float64)}
    own = agent.actor(rows["observations"])[0].clamp(-1, 1)
    q = agent.critic(rows["observation_actions"]).amin(0)
    v = agent.critic(torch.cat([rows["observations"], own], -1)).amin(0)
    torch.testing.assert_close(agent.actor_loss(rows, noise)[1]["weight"], (q - v).exp().clamp(max=100).detach())
    hot = prepared(AWAC, temperature=1e6)
    weights = hot.actor_loss(rows, noise)[1]["weight"]
    assert all(w == 0 or w == pytest.approx(100) for w in weights.tolist())


# -- a problem with a known answer ------------------------------------------------------------------------------------


def plays(seed: int = 3, best: float = 0.5, where: tuple[float, float] = (-1.0, 1.0)) -> Store:
    """4,000 terminal plays: states in [-1, 1]^2, actions uniform in `where`, reward -(a - best)^2."""
    source = torch.Generator().manual_seed(seed)
    states = torch.rand(4000, 2, generator=source) * 2 - 1
    actions = torch.rand(4000, 1, generator=source) * (where[1] - where[0]) + where[0]
    return Store.pack(
        {
            "observations": states,
            "actions": actions,
            "rewards": -(actions[:, 0] - best).square(),
            "terminations": torch.ones(4000),
            "next_observations": states,
        }
    )


def learned(kind: type[Agent], store: Store, steps: int, **options: Any) -> float:
    """The mean action that it learns."""
    agent = kind(Spec(2, 1, (-1.0,), (1.0,)), **{"hidden": (32, 32), "learning_rate": 3e-3, **options}).fresh(0)
    Learner([agent], [0], Uniform(store), batch_size=64, planned_steps=steps, kernels=True).run(steps)
    with torch.no_grad():
        return float(agent.act(torch.rand(500, 2, generator=torch.Generator().manual_seed(4)) * 2 - 1).mean())


PESSIMISTS: list[tuple[type[Agent], dict[str, Any]]] = [
    (SACN, {"critics": 4}),
    (EDAC, {"critics": 4, "diversity": 0.05}),
    (MSG, {"critics": 4, "deviations": 2.0}),
    (MCQ, {"vae_hidden": (32, 32)}),
]


@pytest.mark.parametrize(("kind", "options"), [*PESSIMISTS, (AWAC, {"temperature": 10.0, "normalization": "none"})])
def test_it_moves_to_the_rewarded_actions(kind: type[Agent], options: dict[str, Any]) -> None:
    cold = {"temperature": 0.01} if kind is not AWAC else {}
    assert learned(kind, plays(), 700, **cold, **options) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(("weight", "leaves"), [(0.7, False), (1.0, True)])
def test_mcq_stays_where_the_data_are_and_promises_no_more_than_their_best(weight: float, leaves: bool) -> None:
    """Actions below -0.2, whose reward rises to -1 there: a critic of the data alone promises more beyond."""
    options: dict[str, Any] = {"hidden": (32, 32), "vae_hidden": (32, 32), "learning_rate": 3e-3, "temperature": 0.01}
    agent = MCQ(Spec(2, 1, (-1.0,), (1.0,)), data_weight=weight, **options).fresh(0)
    store = plays(best=0.8, where=(-1.0, -0.2))
    Learner([agent], [0], Uniform(store), batch_size=64, planned_steps=600, kernels=True).run(600)
    with torch.no_grad():
        states = torch.rand(300, 2, generator=torch.Generator().manual_seed(4)) * 2 - 1
        action = agent.act(states)
        promised = float(agent.critic(torch.cat([states, action], -1)).amin(0).mean())
    assert (float(action.mean()) > 0.5) is leaves
    assert (float(action.mean()) < 0.0) is not leaves
    assert (promised > -0.5) is leaves
    assert promised < -0.9 or leaves


class Lines(torch.nn.Module):
    """Critics whose values are straight lines of the action."""

    def __init__(self, slopes: list[float], offsets: list[float]) -> None:
        super().__init__()
        self.slopes, self.offsets = torch.tensor(slopes).unsqueeze(1), torch.tensor(offsets).unsqueeze(1)

    def forward(self, observation_actions: Tensor) -> Tensor:
        return self.slopes * observation_actions[:, -1] + self.offsets


@pytest.mark.parametrize(
    ("kind", "options", "slopes", "offsets", "best"),
    [
        (SACN, {"critics": 2}, [1.0, -1.0], [0.0, 0.4], 0.2),  # their minimum is highest where they cross
        (MSG, {"critics": 2, "deviations": 1.0}, [2.0, -1.0], [0.0, 0.0], 0.0),  # a / 2 - 3 |a| / sqrt 2
        (MSG, {"critics": 2, "deviations": 0.0}, [2.0, -1.0], [0.0, 0.0], 1.0),  # a / 2
    ],
)
def test_the_policy_stays_where_critics_agree(
    kind: type[Agent], options: dict[str, Any], slopes: list[float], offsets: list[float], best: float
) -> None:
    torch.manual_seed(0)
    agent = kind(Spec(2, 1, (-1.0,), (1.0,)), hidden=(16,), temperature=1e-3, **options)
    agent.critic = Lines(slopes, offsets)  # type: ignore[assignment]
    adam = torch.optim.Adam(agent.actor.parameters(), lr=1e-2)
    for _ in range(400):
        adam.zero_grad()
        loss, _ = agent.actor_loss({"observations": torch.randn(64, 2)}, {"action": torch.randn(64, 1)})
        loss.backward()
        adam.step()
    with torch.no_grad():
        assert float(agent.act(torch.randn(200, 2)).mean()) == pytest.approx(best, abs=0.06)


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (EDAC, {"critics": 1}, ("critics", "conflict")),
        (EDAC, {"diversity": -1.0}, ("diversity", "range")),
        (SACN, {"critics": 0}, ("critics", "range")),
        (MSG, {"critics": 1}, ("critics", "conflict")),
        (MSG, {"targets": "min"}, ("targets", "choice")),
        (MCQ, {"data_weight": 0.0}, ("data_weight", "range")),
        (MCQ, {"sampled_actions": 0}, ("sampled_actions", "range")),
        (AWAC, {"temperature": -1.0}, ("temperature", "range")),
    ],
)
def test_settings_out_of_range_are_refused(kind: type[Agent], options: dict[str, Any], match: tuple[str, Code]) -> None:
    with refused(*match):
        kind.configure(**options)
