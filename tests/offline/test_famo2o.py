"""FamO2O: full updates against a second implementation, weights row by row, IQL as its limit, and what it picks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from plain_layers import layers
from problems import spec
from refusals import refused
from torch import Tensor, nn

from surefoot.core.actors.family import FamilyActor, StochasticBalanceModel, embedded
from surefoot.core.base.errors import Code
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.offline import IQL, FamO2O
from surefoot.offline.famo2o import widened
from surefoot.online import FamO2OOnline

ROWS = 5
Rows = dict[str, Tensor]


def rows(seed: int = 11) -> Rows:
    source = torch.Generator().manual_seed(seed)
    observations, following = (torch.randn(ROWS, 3, generator=source, dtype=torch.float64) for _ in range(2))
    actions = torch.rand(ROWS, 2, generator=source, dtype=torch.float64) * 2 - 1
    return {
        "observations": observations, "actions": actions, "next_observations": following,
        "rewards": torch.randn(ROWS, generator=source, dtype=torch.float64) * 3,
        "terminations": torch.tensor([0, 1, 0, 0, 1.0], dtype=torch.float64),
        "observation_actions": torch.cat([observations, actions], -1),
    }  # fmt: skip


def embedding(coefficients: Tensor) -> Tensor:
    """sin k, cos k, sin(k / 10000^(1/3)), ... one number at a time."""
    made = [[f(float(k) / 10_000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)] for k in coefficients]
    return torch.tensor(made, dtype=torch.float64)


# -- against numbers found another way -----------------------------------------------------------------------


def test_the_embedding_has_sines_and_cosines_of_three_scales_by_turns() -> None:
    found = embedded(torch.tensor([0.0, 8.0], dtype=torch.float64))
    assert found[0].tolist() == [0, 1, 0, 1, 0, 1]
    scaled = (8.0, 8 / 21.544346900318843, 8 / 464.15888336127773)  # 10000^(1/3) and 10000^(2/3)
    assert found[1].tolist() == pytest.approx([f(k) for k in scaled for f in (math.sin, math.cos)], abs=1e-12)


def test_the_balance_model_maps_the_tanh_to_zero_and_one_before_the_range() -> None:
    """Mean 0.2, deviation 0.7, u = 0.5 give a = 0.46211716, log-density -0.41387131."""
    balance = StochasticBalanceModel(1, (1,), coefficients=(8.0, 14.0)).double()
    with torch.no_grad():
        for parameter in balance.parameters():
            parameter.zero_()
        balance.mlp.biases[-1].fill_(0.2)
        balance.log_std.fill_(math.log(0.7))
        found, density = balance.sample(torch.zeros(1, 1).double(), torch.full((1, 1), 0.3 / 0.7).double())
        mode = balance(torch.zeros(1, 1).double())
    assert float(found) == pytest.approx(8 + 6 * (1 + 0.46211716) / 2, abs=1e-7)
    assert float(density) == pytest.approx(-0.41387131, abs=1e-7)
    assert float(mode) == pytest.approx(8 + 6 * (1 + math.tanh(0.2)) / 2, abs=1e-12)
    assert float(balance.in_range(torch.tensor(-1.0))) == 8  # the official CQL variant reaches low - (high - low)


def test_each_rows_weight_has_its_own_coefficient() -> None:
    agent = FamO2O(spec())
    advantages, coefficients = torch.tensor([0.1, -0.2, 1.0]), torch.tensor([8.0, 10.0, 14.0])
    found = agent.weights(advantages, coefficients)
    expected = torch.tensor([math.exp(0.8), math.exp(-2.0), 100.0])
    torch.testing.assert_close(found, expected)
    # What the official code's shapes, (B,) and (B, 1), are broadcast to: row j's mean over all coefficients.
    official = torch.exp(coefficients[:, None] * advantages).clamp(max=100).mean(0)
    assert not torch.allclose(found, official, rtol=0.05)


class Second:
    """FamO2O in torch's layers and optimisers, one loss at a time."""

    def __init__(self, agent: FamO2O) -> None:
        self.c = agent.config
        self.value, self.actor, self.picker = (layers(n.mlp) for n in (agent.value, agent.actor, agent.balance))
        self.critics = [layers(agent.critic.mlp, i) for i in range(2)]
        self.targets = [layers(agent.target_critic.mlp, i) for i in range(2)]
        self.log_std, self.picker_log_std, self.rho = (
            nn.Parameter(p.detach().clone())
            for p in (agent.actor.log_std, agent.balance.log_std, agent.temperature.rho)
        )
        groups = {
            "value": [*self.value.parameters()],
            "picker": [*self.picker.parameters(), self.picker_log_std],
            "rho": [self.rho],
            "actor": [*self.actor.parameters(), self.log_std],
            "critic": [p for q in self.critics for p in q.parameters()],
        }
        self.adams = {name: torch.optim.Adam(group, lr=self.c.learning_rate) for name, group in groups.items()}

    def descend(self, name: str, loss: Tensor) -> None:
        for adam in self.adams.values():
            adam.zero_grad()
        loss.backward()
        self.adams[name].step()

    def lowest(self, observations: Tensor, actions: Tensor) -> Tensor:
        pairs = torch.cat([observations, actions], 1)
        return torch.stack([q(pairs).squeeze(1) for q in self.targets]).min(0).values

    def pick(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        normal = torch.distributions.Normal(self.picker(observations), self.picker_log_std.exp())
        u = normal.loc + normal.scale * noise
        x = torch.tanh(u)
        low, high = self.c.coefficients
        return (low + (high - low) * (x + 1) / 2).squeeze(1), (normal.log_prob(u) - torch.log(1 - x**2)).squeeze(1)

    def mean(self, observations: Tensor, beta: Tensor) -> Tensor:
        angles = [beta / 10_000 ** (i / 3) for i in range(3)]
        wide = [f(a) for a in angles for f in (torch.sin, torch.cos)]
        return torch.tanh(self.actor(torch.cat([observations, torch.stack(wide, 1)], 1)))

    def step(self, batch: Rows, noise: Rows) -> None:
        c, s, a = self.c, batch["observations"], batch["actions"]
        target_q = self.lowest(s, a).detach()
        u = target_q - self.value(s).squeeze(1)
        self.descend("value", torch.where(u > 0, c.expectile * u**2, (1 - c.expectile) * u**2).mean())
        trained_at = self.coefficients(s, noise).detach()
        beta, density = self.pick(s, noise["choice"])
        measured = density.detach()
        chosen = (self.mean(s, beta) + self.log_std.exp() * noise["action"]).clip(-1, 1)
        scale = self.rho.exp().detach()
        loss = (scale * density - self.lowest(s, chosen)).mean()
        self.descend("picker", loss)
        self.descend("rho", -(self.rho.exp() * (measured + c.target_entropy)).mean())
        advantage = target_q - self.value(s).squeeze(1).detach()
        weight = torch.exp(trained_at * advantage).clamp(max=100)
        normal = torch.distributions.Normal(self.mean(s, trained_at), self.log_std.exp())
        self.descend("actor", -(weight * normal.log_prob(a).sum(1)).mean())
        y = batch["rewards"] + c.discount * (1 - batch["terminations"]) * self.value(batch["next_observations"])[:, 0]
        pairs = torch.cat([s, a], 1)
        self.descend("critic", sum(((q(pairs)[:, 0] - y.detach()) ** 2).mean() for q in self.critics))  # type: ignore[arg-type]
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.mul_(1 - c.target_rate).add_(c.target_rate * new)

    def coefficients(self, observations: Tensor, noise: Rows) -> Tensor:
        low, high = self.c.coefficients
        return low + (high - low) * noise["coefficient"].squeeze(1)


def assert_updates_equal(agent: Any, second: Second, steps: int = 3) -> None:
    for name, value in agent.named_parameters():
        if name.startswith("target_critic"):
            value.data.add_(0.1)
    second.targets = [layers(agent.target_critic.mlp, i) for i in range(2)]
    given = [rows(seed) for seed in range(steps)]
    learner = Learner(
        [agent], [0], Uniform(lambda indices: given[learner.step], 100), batch_size=ROWS, dtype=torch.float64
    )
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], ROWS, noises, torch.device("cpu"), torch.float64)
    for step in range(steps):
        drawn = {name: value[0] for name, value in stream.at(step).items()}
        second.step(given[step], drawn)
        learner.run(1)
        pairs = [(agent.value.mlp, None, second.value), (agent.actor.mlp, None, second.actor)]
        pairs += [(agent.balance.mlp, None, second.picker)]
        pairs += [(agent.critic.mlp, i, q) for i, q in enumerate(second.critics)]
        pairs += [(agent.target_critic.mlp, i, q) for i, q in enumerate(second.targets)]
        for mlp, member, other in pairs:
            mine = [p for pair in zip(mlp.weights, mlp.biases, strict=True) for p in pair]
            for value, expected in zip(mine, other.parameters(), strict=True):
                own = value if member is None else value[member]
                torch.testing.assert_close(own.detach(), expected.detach(), rtol=1e-8, atol=1e-11)
        for own, expected in ((agent.actor.log_std, second.log_std), (agent.balance.log_std, second.picker_log_std),
                              (agent.temperature.rho, second.rho)):  # fmt: skip
            torch.testing.assert_close(own.detach(), expected.detach(), rtol=1e-8, atol=1e-11)


def test_full_updates_equal_the_second_implementation() -> None:
    agent = FamO2O(spec(), hidden=(7, 6), coefficients=(0.5, 2.0), learning_rate=1e-2).fresh(2).double()
    assert_updates_equal(agent, Second(agent))


class SecondOnline(Second):
    """As the authors' program: the balance model's draw of its own, before the step that it takes next."""

    def coefficients(self, observations: Tensor, noise: Rows) -> Tensor:
        return self.pick(observations, noise["coefficient"])[0]


def test_full_updates_online_equal_the_second_implementation() -> None:
    options: dict[str, Any] = {"coefficients": (0.5, 2.0), "learning_rate": 1e-2, "rewards": "none"}
    agent = FamO2OOnline(spec(), hidden=(7, 6), **options).fresh(2).double()
    assert_updates_equal(agent, SecondOnline(agent))


def test_the_balance_models_deviation_goes_down_to_e_to_minus_ten() -> None:
    """The policy's, to e^-5: the floors of policy.py and family_learner.py in LeapLabTHU/FamO2O, jax_iql."""
    agent = FamO2O(spec(), hidden=(7, 6))
    assert agent.balance.log_std_range == (-10.0, 2.0)
    assert agent.actor.log_std_range == (-5.0, 2.0)


# -- IQL as its limit ----------------------------------------------------------------------------------------


def test_with_a_range_of_one_point_it_is_iql_with_that_temperature() -> None:
    """The embedding is constant then, and so part of the first bias."""
    family = FamO2O(spec(), hidden=(7, 6), coefficients=(3.0, 3.0)).fresh(2).double()
    iql = IQL(spec(), hidden=(7, 6), temperature=3.0, expectile=0.9).fresh(2).double()
    for name in ("value", "critic", "target_critic"):
        getattr(iql, name).load_state_dict(getattr(family, name).state_dict())
    with torch.no_grad():
        first, bias = family.actor.mlp.weights[0], family.actor.mlp.biases[0]
        constant = first[:, 3:] @ embedding(torch.tensor([3.0]))[0]
        state = family.actor.state_dict()
        iql.actor.load_state_dict({**state, "mlp.weights.0": first[:, :3], "mlp.biases.0": bias + constant})
    batch, noise = rows(), {"coefficient": torch.rand(ROWS, 1).double()}
    batch = iql.annotate(batch)
    found, expected = family.actor_loss(batch, noise)[0], iql.gaussian_actor_loss(batch, {})[0]
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    mine = torch.autograd.grad(found, [family.actor.mlp.weights[0], family.actor.mlp.biases[0]])
    other = torch.autograd.grad(expected, [iql.actor.mlp.weights[0], iql.actor.mlp.biases[0]])
    torch.testing.assert_close(mine[0][:, :3], other[0])
    torch.testing.assert_close(mine[1], other[1])
    for loss in ("value_loss", "critic_loss"):
        assert torch.equal(getattr(family, loss)(batch, {})[0], getattr(iql, loss)(batch, {})[0])


# -- what it gives -------------------------------------------------------------------------------------------


def test_its_policy_acts_as_the_agent_does_and_comes_back_from_its_file(tmp_path: Any) -> None:
    agent = FamO2O(spec(), hidden=(8, 6), coefficients=(1.0, 9.0)).fresh(1)
    observations, noise = torch.randn(40, 3), torch.randn(40, 2)
    policy = agent.policy()
    assert isinstance(policy.actor, FamilyActor)
    torch.testing.assert_close(policy(observations), agent.act(observations).detach())
    torch.testing.assert_close(policy(observations, noise), agent.act(observations, noise).detach())
    policy.save(tmp_path / "family")
    again = Policy.load(tmp_path / "family")
    assert torch.equal(again(observations), policy(observations))
    assert again.actor.coefficients == (1.0, 9.0)  # type: ignore[union-attr]


def test_training_steps_run_from_a_tape() -> None:
    agent = FamO2O(spec(), hidden=(8, 6)).fresh(0)
    data = {name: value.float() for name, value in rows().items() if name != "observation_actions"}
    store = Store.pack(data)
    trained = Learner([agent], [0], Uniform(store), batch_size=4, kernels=True)
    trained.run(5)
    assert trained.eager_because() == {}


@pytest.mark.parametrize(("options", "message"), [
    ({"coefficients": (3.0, 1.0)}, ("coefficients", "conflict")),
    ({"expectile": 1.0}, ("expectile", "range")), ({"temperature": 0.0}, ("temperature", "range")),
])  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        FamO2O.configure(**options)


# -- a problem with a known answer ---------------------------------------------------------------------------


class PicksTheWorst(FamO2O):
    """FamO2O whose balance model goes up its loss."""

    def balance_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = super().balance_loss(batch, noise)
        return -loss, metrics


class ClonesTheWorst(FamO2O):
    """FamO2O that weighs actions by how bad they are."""

    def weights(self, advantages: Tensor, coefficients: Tensor) -> Tensor:
        return super().weights(-advantages, coefficients)


def weighted_mean(coefficient: float) -> float:
    """Mean of actions uniform in [-1, 1], each weighted by exp(coefficient times its reward), by a sum over a grid."""
    a = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    weight = torch.exp(-4 * coefficient * (a - 0.5).square())
    return float((a * weight).sum() / weight.sum())


@pytest.mark.parametrize("kind", [FamO2O, PicksTheWorst, ClonesTheWorst])
def test_a_larger_coefficient_is_nearer_to_the_best_action_and_the_balance_model_picks_it(kind: Any) -> None:
    """One step, actions uniform in [-1, 1], reward -4 (a - 1/2)^2."""
    source = torch.Generator().manual_seed(3)
    states, actions = (torch.rand(4000, size, generator=source) * 2 - 1 for size in (2, 1))
    store = Store.pack({
        "observations": states, "actions": actions, "rewards": -4 * (actions[:, 0] - 0.5).square(),
        "terminations": torch.ones(4000), "next_observations": states,
    })  # fmt: skip
    agent = kind(
        Spec(2, 1, (-1.0,), (1.0,)), hidden=(32, 32), learning_rate=3e-3, coefficients=(0.0, 6.0), expectile=0.7,
        target_rate=0.05, temperature=0.01, target_entropy=-1.0,
    ).fresh(0)  # fmt: skip
    learner = Learner([agent], [0], Uniform(store), batch_size=64, kernels=True)
    learner.run(1500)
    seen = torch.rand(500, 2, generator=source) * 2 - 1
    with torch.no_grad():
        means = [float(agent.actor.act(widened(seen, torch.full((500,), c))).mean()) for c in (0.3, 3.0, 5.7)]
        picked, done = float(agent.balance(seen).mean()), float(agent.act(seen).mean())
    expected = [weighted_mean(c) for c in (0.3, 3.0, 5.7)]
    assert expected == sorted(expected)
    right = means == pytest.approx(expected, abs=0.08) and picked > 4.5 and abs(done - expected[2]) < 0.1
    assert right == (kind is FamO2O), (means, expected, picked, done)
