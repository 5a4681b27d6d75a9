"""FamO2O over CQL: full updates against a second implementation, CQL as its limit, and what policy it has where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from problems import relative
from refusals import refused
from test_cql import Plain, Rows, batches, pairs, prepared, trained
from torch import Tensor, nn

from surefoot.core.actors.family import TanhFamilyActor, embedded
from surefoot.core.base.errors import Code
from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import native
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.offline import CQL, FamO2OCQL
from surefoot.offline.famo2o import widened

# -- against numbers found another way -----------------------------------------------------------------------


class Second(Plain):
    """CQL's second implementation with a policy that reads a coefficient of its own at each row of s and of s'."""

    def __init__(self, agent: FamO2OCQL) -> None:
        super().__init__(agent)
        self.picker = layers(agent.balance.mlp)
        self.adams.append(torch.optim.Adam(self.picker.parameters(), lr=3e-4))
        self.read: list[tuple[Tensor, Tensor]] = []

    def coefficients(self, rows: Rows, noise: Rows) -> None:
        """Remember which coefficient each row is read with."""
        low, high = self.c.coefficients
        for rows_of, name in (("observations", "coefficient"), ("next_observations", "next_coefficient")):
            self.read.append((rows[rows_of], low + (high - low) * noise[name][:, 0]))

    def draw(self, observations: Tensor, noise: Tensor, beta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if beta is None:
            (beta,) = [b for rows, b in self.read if rows is observations]
        angles = [beta / 10_000 ** (i / 3) for i in range(3)]
        return super().draw(
            torch.cat([observations, *(f(a)[:, None] for a in angles for f in (torch.sin, torch.cos))], 1), noise
        )

    def step(self, rows: Rows, noise: Rows) -> None:
        s, alpha = rows["observations"], nn.functional.softplus(self.rho)
        low, high = self.c.coefficients

        def value(action: Tensor) -> Tensor:
            return torch.stack([self.q(critic, s, action) for critic in self.critics]).amin(0)

        action, density = self.draw(s, noise["action"])
        _, next_density = self.draw(rows["next_observations"], noise["action"])
        picked = low + (high - low) * (torch.tanh(self.picker(s)[:, 0]) + 1) / 2
        losses = [
            self.critic_loss(rows, noise),
            (alpha.detach() * density - self.read[0][1] * value(action)).mean(),
            alpha * (-next_density.detach().mean() + 2),
            -value(self.draw(s, noise["action"], picked)[0]).mean(),
        ]
        self.descend(losses)


def all_pairs(agent: FamO2OCQL, plain: Second) -> list[tuple[str, Tensor, Tensor]]:
    own = [p for pair in zip(agent.balance.mlp.weights, agent.balance.mlp.biases, strict=True) for p in pair]
    picker = zip(own, plain.picker.parameters(), strict=True)
    return [*pairs(agent, plain), *((f"balance.{i}", a.detach(), b.detach()) for i, (a, b) in enumerate(picker))]


@pytest.mark.parametrize("options", [
    {"coefficients": (0.5, 1.5)}, {"critics": 3, "learn_cql_weight": True, "cql_weight": 1.0, "coefficients": (0.2, 9)},
])  # fmt: skip
def test_full_updates_equal_the_second_implementation(options: dict[str, Any]) -> None:
    agent, rows = prepared(FamO2OCQL, **options), batches(3)
    plain, trains = Second(agent), trained(agent, rows)
    start = {name: value.clone() for name, value, _ in all_pairs(agent, plain)}
    for step in range(3):
        noise = {name: value[0] for name, value in trains.stream.at(step).items()}
        plain.read.clear()
        plain.coefficients(rows[step], noise)
        expected = float(plain.critic_loss(rows[step], noise).detach())
        assert trains.run(1)["critic_loss"][0] == pytest.approx(expected, rel=1e-10)
        plain.step(rows[step], noise)
        for name, value, wanted in all_pairs(agent, plain):
            assert relative(value, wanted) < 1e-9, f"{name} after step {step + 1}"
    for name, value, _ in all_pairs(agent, plain):
        assert relative(value, start[name]) > (1e-7 if "target" in name else 1e-5), f"{name} was not trained"


def test_with_a_range_of_one_it_is_cql() -> None:
    """The embedding is constant then, and so part of the first bias; and the value is not weighed."""
    family, cql = prepared(FamO2OCQL, coefficients=(1.0, 1.0)), prepared(CQL, cql_weight=1.0)
    for name in ("critic", "target_critic", "temperature"):
        getattr(cql, name).load_state_dict(getattr(family, name).state_dict())
    with torch.no_grad():
        first, bias = family.actor.mlp.weights[0], family.actor.mlp.biases[0]
        constant = first[:, 3:] @ embedded(torch.ones(1).double())[0]
        state = {**family.actor.state_dict(), "mlp.weights.0": first[:, :3], "mlp.biases.0": bias + constant}
        cql.actor.load_state_dict(state)
    trains, rows = trained(prepared(FamO2OCQL), batches(1)), batches(1)[0]
    noise = {name: value[0] for name, value in trains.stream.at(0).items()}
    for loss in ("critic_loss", "actor_loss", "temperature_loss"):
        found, expected = (getattr(agent, loss)(rows, noise)[0] for agent in (family, cql))
        assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12), loss
    found, expected = (
        torch.autograd.grad(agent.actor_loss(rows, noise)[0], [agent.actor.mlp.weights[0], agent.actor.mlp.biases[0]])
        for agent in (family, cql)
    )
    torch.testing.assert_close(found[0][:, :3], expected[0])
    torch.testing.assert_close(found[1], expected[1])


# -- what it gives -------------------------------------------------------------------------------------------


def test_its_policy_acts_as_the_agent_does_and_comes_back_from_its_file(tmp_path: Any) -> None:
    agent = FamO2OCQL(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(8, 6), layer_norm_actor=True).fresh(1)
    observations, noise = torch.randn(40, 3), torch.randn(40, 2)
    policy = agent.policy()
    assert isinstance(policy.actor, TanhFamilyActor)
    torch.testing.assert_close(policy(observations), agent.act(observations).detach())
    torch.testing.assert_close(policy(observations, noise), agent.act(observations, noise).detach())
    policy.save(tmp_path / "family")
    again = Policy.load(tmp_path / "family")
    assert torch.equal(again(observations), policy(observations))
    assert again.actor.coefficients == (0.5, 1.5)  # type: ignore[union-attr]


@pytest.mark.skipif(native.library() is None, reason="tapes are run by the native module, which was not built")
def test_training_steps_run_from_a_tape() -> None:
    agent = FamO2OCQL(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(8, 6)).fresh(0)
    data = {name: value.float() for name, value in batches(1)[0].items() if name != "observation_actions"}
    store = Store.pack(data)
    trains = Learner([agent], [0], Uniform(store), batch_size=4, kernels=True)
    trains.run(5)
    assert trains.eager_because() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficients": (3.0, 1.0)}, ("coefficients", "conflict")),
        ({"coefficients": (-1.0, 1.0)}, ("coefficients", "conflict")),
        ({"sampled_actions": 0}, ("sampled_actions", "range")),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        FamO2OCQL.configure(**options)


# -- a problem with a known answer ---------------------------------------------------------------------------


class PicksTheWorst(FamO2OCQL):
    """FamO2O whose balance model goes up its loss."""

    def balance_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = super().balance_loss(batch, noise)
        return -loss, metrics


class SeeksTheWorst(FamO2OCQL):
    """FamO2O whose policy is drawn to low values."""

    def weighed(self, values: Tensor, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        return -super().weighed(values, batch, noise)


def best_mean(coefficient: float) -> float:
    """Mean action of the tanh-Gaussian of the highest entropy - coefficient * 4 (a - 1/2)^2, by quadrature."""
    points, weights = np.polynomial.hermite_e.hermegauss(81)
    weights = weights / weights.sum()
    mean, log_std = np.meshgrid(np.linspace(-1, 2, 151), np.linspace(-2.5, 0.7, 161), indexing="ij")
    unsquashed = mean[..., None] + np.exp(log_std)[..., None] * points
    a = np.tanh(unsquashed)
    entropy = log_std + 0.5 * np.log(2 * np.pi * np.e) + (weights * np.log1p(-(a**2) + 1e-15)).sum(-1)
    score = entropy - coefficient * 4 * (weights * (a - 0.5) ** 2).sum(-1)
    return float((weights * a).sum(-1).flat[score.argmax()])


@pytest.mark.parametrize("kind", [FamO2OCQL, PicksTheWorst, SeeksTheWorst])
def test_a_larger_coefficient_is_nearer_to_the_best_action_and_the_balance_model_picks_it(kind: Any) -> None:
    """One step, actions uniform in [-1, 1], reward -4 (a - 1/2)^2; a temperature that stays at 1."""
    source = torch.Generator().manual_seed(3)
    states, actions = (torch.rand(4000, size, generator=source) * 2 - 1 for size in (2, 1))
    store = Store.pack({
        "observations": states, "actions": actions, "rewards": -4 * (actions[:, 0] - 0.5).square(),
        "terminations": torch.ones(4000), "next_observations": states,
    })  # fmt: skip
    agent = kind(
        Spec(2, 1, (-1.0,), (1.0,)), hidden=(32, 32), actor_learning_rate=3e-3, critic_learning_rate=3e-3,
        balance_learning_rate=3e-3, temperature_learning_rate=0.0, coefficients=(0.0, 4.0), cql_weight=0.0,
        sampled_actions=1, initialization="torch",
    ).fresh(0)  # fmt: skip
    learner = Learner([agent], [0], Uniform(store), batch_size=128, kernels=True)
    learner.run(2000)
    seen, noise = torch.rand(4000, 2, generator=source) * 2 - 1, torch.randn(4000, 1, generator=source)
    wanted = (0.3, 1.0, 3.7)
    with torch.no_grad():
        means = [float(agent.actor.act(widened(seen, torch.full((4000,), c)), noise).mean()) for c in wanted]
        picked = float(agent.balance(seen).mean())
    expected = [best_mean(c) for c in wanted]
    assert expected == sorted(expected)
    right = means == pytest.approx(expected, abs=0.08) and picked > 3.3
    assert right == (kind is FamO2OCQL), (means, expected, picked)
