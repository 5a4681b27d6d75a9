"""Off-policy MDPO: full updates against a second implementation, when the old policy is renewed, and Riccati's gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from online_problems import RICCATI, Regulator, loop, parameters, regulators_gain, spec
from plain_layers import layers
from refusals import refused
from test_off_policy_updates import PROBLEM, ROWS, Rows, average, batches
from torch import Tensor, nn

from surefoot.core.base.errors import Code
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import MDPOOffPolicy
from surefoot.online.loops.off_policy import OffPolicyLoop


class Second:
    """MDPO in torch's layers and optimisers; all losses at the same parameters."""

    def __init__(self, agent: MDPOOffPolicy) -> None:
        self.c = agent.config
        self.actor, self.old, self.value, self.target = (
            layers(n.mlp) for n in (agent.actor, agent.proximal_actor, agent.value, agent.target_value)
        )
        self.critics = [layers(agent.critic.mlp, i) for i in range(2)]
        groups: list[Any] = [self.actor.parameters(), self.value.parameters()]
        groups.append([p for q in self.critics for p in q.parameters()])
        self.adams = [torch.optim.Adam(group, lr=self.c.learning_rate) for group in groups]

    def normal(self, actor: nn.Module, observations: Tensor) -> torch.distributions.Normal:
        mean, log_std = actor(observations).chunk(2, 1)
        return torch.distributions.Normal(mean, log_std.clip(*self.c.log_std_range).exp())

    def step(self, batch: Rows, noise: Tensor) -> None:
        c, s = self.c, batch["observations"]
        policy, before = self.normal(self.actor, s), self.normal(self.old, s)
        u = policy.loc + policy.scale * noise
        a = torch.tanh(u)
        stretch = torch.log(1 - a**2)
        density, old_density = ((p.log_prob(u) - stretch).sum(1) for p in (policy, before))
        pairs = torch.cat([s, a], 1)
        q = torch.stack([critic(pairs).squeeze(1) for critic in self.critics])
        actor = (c.divergence_weight * density + (c.entropy_weight - c.divergence_weight) * old_density - q[0]).mean()
        actor = actor + c.regularization * ((policy.loc**2).mean() + (policy.scale.log() ** 2).mean())
        wanted = (q.min(0).values - c.entropy_weight * density).detach()
        value = 0.5 * nn.functional.mse_loss(self.value(s).squeeze(1), wanted)
        with torch.no_grad():
            following = self.target(batch["next_observations"]).squeeze(1)
            y = batch["rewards"] + c.discount * (1 - batch["terminations"]) * following
        given = torch.cat([s, batch["actions"]], 1)
        critic = 0.5 * sum(nn.functional.mse_loss(one(given).squeeze(1), y) for one in self.critics)
        for adam, loss in zip(self.adams, (actor, value, critic), strict=True):
            inputs = [p for group in adam.param_groups for p in group["params"]]
            for parameter, found in zip(inputs, torch.autograd.grad(loss, inputs, retain_graph=True), strict=True):
                parameter.grad = found
        for adam in self.adams:
            adam.step()
        average([self.target], [self.value], c.target_rate)


def test_full_updates_equal_the_second_implementation() -> None:
    agent = MDPOOffPolicy(PROBLEM, hidden=(7, 6), learning_rate=1e-2, regularization=0.1).fresh(2).double()
    for name, value in agent.named_parameters():
        if name.startswith(("old", "target")):
            value.data.add_(0.1)
    second, given = Second(agent), batches(4, ROWS)
    learner = Learner(
        [agent], [0], Uniform(lambda indices: given[learner.step], 100), batch_size=ROWS, dtype=torch.float64
    )
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], ROWS, noises, torch.device("cpu"), torch.float64)
    for step in range(4):
        second.step(given[step], stream.at(step)["action"][0])
        learner.run(1)
        pairs = [
            (agent.actor, None, second.actor),
            (agent.proximal_actor, None, second.old),
            (agent.value, None, second.value),
        ]
        pairs += [(agent.target_value, None, second.target)]
        pairs += [(agent.critic, i, q) for i, q in enumerate(second.critics)]
        for network, member, other in pairs:
            mine = [p for pair in zip(network.mlp.weights, network.mlp.biases, strict=True) for p in pair]
            for value, expected in zip(mine, other.parameters(), strict=True):
                own = value if member is None else value[member]
                torch.testing.assert_close(own.detach(), expected.detach(), rtol=1e-8, atol=1e-11)


def test_the_actors_loss_by_hand() -> None:
    """Equal policies, mean 0.2, deviation 0.7, u = 0.5: log pi = -0.41387131, whatever c is; Q = 2."""
    agent = MDPOOffPolicy(loop("mdpo_off", Regulator()).agent.spec, hidden=(1,), entropy_weight=0.3, regularization=0.5)
    agent = agent.double()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.zero_()
        for actor in (agent.actor, agent.proximal_actor):
            actor.mlp.biases[-1].copy_(torch.tensor([0.2, np.log(0.7)]))
        agent.critic.mlp.biases[-1].fill_(2.0)
    batch = {"observations": torch.zeros(1, 1).double()}
    noise = {"action": torch.full((1, 1), 0.3 / 0.7).double()}
    found = float(agent.actor_loss(batch, noise)[0].detach())
    assert found == pytest.approx(0.3 * -0.41387131 - 2 + 0.5 * (0.2**2 + np.log(0.7) ** 2), abs=1e-7)
    with torch.no_grad():  # the old one has mean 0.9: its log-density at u is lower by (0.4^2 - 0.3^2) / (2 0.7^2)
        agent.proximal_actor.mlp.biases[-1][0] = 0.9
    further = float(agent.actor_loss(batch, noise)[0].detach())
    assert further - found == pytest.approx((0.3 - 1.0) * -(0.4**2 - 0.3**2) / (2 * 0.49), abs=1e-7)


def test_the_old_policy_is_the_one_of_the_last_multiple_of_refresh_every() -> None:
    trained = loop("mdpo_off", Regulator(), initial_steps=10, refresh_every=7, batch_size=8)
    seen = {}
    for step in range(30):
        seen[trained.learner.step] = trained.learner.networks["actor"].value.clone()
        trained.run(1 if step else 10)
        if trained.learner.step:
            last = trained.learner.step // 7 * 7
            now = trained.learner.networks["actor"].value
            assert torch.equal(trained.learner.networks["proximal_actor"].value, seen.get(last, now)), last
    assert trained.learner.step == 29


def test_a_training_step_runs_from_the_tape() -> None:
    trained = loop("mdpo_off", Regulator(), initial_steps=10, batch_size=16, kernels=True)
    trained.run(30)
    assert trained.learner.step == 20
    assert trained.learner.eager_because() == {}


def test_stacked_seeds_equal_each_alone() -> None:
    options: dict[str, Any] = {"initial_steps": 20, "batch_size": 16, "refresh_every": 3}
    together = loop("mdpo_off", Regulator(4), (1, 2), **options)
    together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = loop("mdpo_off", Regulator(2), (seed,), **options)
        alone.run(30)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1, max_episode_steps=37)
        return loop("mdpo_off", env, initial_steps=50, batch_size=16, refresh_every=20, kernels=True)

    for stop in (90, 95):  # just when the old policy is to be renewed, and between
        whole, resumed = fresh(), fresh()
        whole.run(stop)
        saved = {name: value.clone() for name, value in whole.state(0).items()}
        last = whole.run(60)
        assert resumed.restore([saved], stop) is None
        np.testing.assert_equal(resumed.run(60), last)
        for name, value in whole.state(0).items():
            assert torch.equal(value, resumed.state(0)[name]), name


@pytest.mark.parametrize(("options", "message"), [
    ({"refresh_every": 0}, ("refresh_every", "range")),
    ({"divergence_weight": -1.0}, ("divergence_weight", "range")),
    ({"discount": 2.0}, ("discount", "range")),
])  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        MDPOOffPolicy.configure(**options)


class Backwards(MDPOOffPolicy):
    """MDPO whose actor goes up its loss."""

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = super().actor_loss(batch, noise)
        return -loss, metrics


class Repelled(MDPOOffPolicy):
    """MDPO that learns costs for rewards."""

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return super().critic_loss({**batch, "rewards": -batch["rewards"]}, noise)


@pytest.mark.parametrize("kind", [MDPOOffPolicy, Backwards, Repelled])
def test_the_regulators_gain_is_riccatis(kind: Any) -> None:
    env = Regulator(8)
    agent = kind(
        spec(env), num_envs=8, updates_per_step=0.5, hidden=(32, 32), initial_steps=200, discount=0.95,
        target_rate=0.1, learning_rate=3e-3, entropy_weight=0.1, divergence_weight=0.5, refresh_every=50,
        regularization=0.0,
    )  # fmt: skip
    going = OffPolicyLoop([agent.fresh(0)], [0], env, planned_steps=9000, batch_size=128, kernels=True)
    going.run(6000)
    gains = []
    for _ in range(8):
        going.run(250)
        gains.append(regulators_gain(going.agent))
    gain = float(np.mean(gains))
    assert (abs(gain - RICCATI) < 0.1 * abs(RICCATI)) == (kind is MDPOOffPolicy), gains
