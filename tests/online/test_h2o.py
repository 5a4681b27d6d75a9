"""H2O and DARC: losses by hand, whole updates against a second implementation, batches, tape, resume, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import hybrid_loop, parameters, regulated
from plain_layers import layers
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import Code, ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform, joined
from surefoot.core.nn import ensembles
from surefoot.core.nn.native import native
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import DARC, H2O
from surefoot.online.base.hybrid import BOTH, SIMULATED, TO_TELL_APART
from surefoot.online.h2o import gap_penalty
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.embedded import generate

# -- the penalty ----------------------------------------------------------------------------------------------

VALUES = torch.tensor([[1.0, 2.0, 3.0]]).double()
GAPS = 5 * torch.tensor([0.1, 0.2, 0.7]).double()


def test_the_penalty_is_the_soft_maximum_by_shares_less_the_datas_mean() -> None:
    data = torch.tensor([[0.5, 1.5]]).double()
    penalty = float(gap_penalty(data, VALUES, GAPS))
    assert penalty == pytest.approx(2.76061199 - 1.0, abs=1e-8)  # worked out by hand
    variant = float(gap_penalty(data, VALUES, GAPS, mean=True))
    assert variant == pytest.approx(0.1 * 1 + 0.2 * 2 + 0.7 * 3 - 1.0)


def test_rows_without_a_gap_are_not_pushed_down_unless_none_has_one() -> None:
    values = VALUES.clone().requires_grad_(True)
    pushed = torch.autograd.grad(gap_penalty(VALUES, values, torch.tensor([-1.0, 0.3, -2.0]).double()).sum(), values)
    torch.testing.assert_close(pushed[0], torch.tensor([[0.0, 1.0, 0.0]]).double())
    equal = gap_penalty(torch.zeros(1, 1).double(), VALUES, torch.full((3,), -1.0).double())
    assert float(equal) == pytest.approx(float(torch.logsumexp(VALUES, -1)) - math.log(3))


def test_the_penalty_is_clipped_at_a_thousand_and_then_pushes_nothing() -> None:
    values = torch.tensor([[5000.0, 0.0], [1.0, 1.0]]).double().requires_grad_(True)
    data = torch.tensor([[0.0], [4000.0]]).double()
    penalty = gap_penalty(data, values, torch.ones(2).double())
    assert penalty.tolist() == [1000.0, -1000.0]
    assert float(torch.autograd.grad(penalty.sum(), values)[0].abs().sum()) == 0.0


# -- one training step ----------------------------------------------------------------------------------------

OBSERVATIONS, ACTIONS, ROWS, DISCRIMINATED = 3, 2, 6, 2


def agent_and_learner(kind: Any, **options: Any) -> tuple[Any, Learner, dict[str, dict[str, Tensor]]]:
    """An agent in float64 that sees the same made batches at every step: source -> batch."""
    small = {"hidden": (7, 5), "discriminator_hidden": (6,), "discriminator_rows": DISCRIMINATED}
    bounds = ((-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    agent = kind(Spec(OBSERVATIONS, ACTIONS, *bounds), **{**small, **options}).fresh(5)
    agent.batch_size = ROWS
    if isinstance(agent, H2O):
        agent.spread.copy_(torch.tensor([0.5, 1.0, 2.0]))
    source = torch.Generator().manual_seed(8)
    parts = {}
    for name, count in zip((*BOTH, *TO_TELL_APART), (ROWS, ROWS, DISCRIMINATED, DISCRIMINATED), strict=True):
        s, following = (torch.randn(count, OBSERVATIONS, generator=source, dtype=torch.float64) for _ in range(2))
        a = torch.rand(count, ACTIONS, generator=source, dtype=torch.float64) * 2 - 1
        parts[name] = {
            "observations": s,
            "actions": a,
            "rewards": torch.randn(count, generator=source, dtype=torch.float64),
            "terminations": (torch.arange(count) % 3 == 1).double(),
            "next_observations": following,
            "observation_actions": torch.cat([s, a], 1),
        }
    sources = {name: Uniform(lambda indices, batch=batch: batch, 9) for name, batch in parts.items()}
    learner = Learner([agent], [0], sources, batch_size=ROWS, dtype=torch.float64)
    seen = next(update.rows for update in learner.updates if update.name == "critic_loss")
    for name in BOTH:  # of both as many as a loss sees
        parts[name] = {key: value[:seen] for key, value in parts[name].items()}
    return agent, learner, parts


def by_turns(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], 1).flatten(0, 1)


def in_turns(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Real and simulated rows by turns, then those of the discriminators: how the reference reads them."""
    pairs = (BOTH, TO_TELL_APART)
    return {
        key: torch.cat([by_turns(*(parts[name][key] for name in pair)) for pair in pairs]) for key in parts[BOTH[0]]
    }


class Reference:
    """H2O and DARC written plainly from their papers: softmaxes, roots of weights, one loss at a time."""

    def __init__(self, agent: Any) -> None:
        self.c, self.spread = agent.config, getattr(agent, "spread", torch.ones(1)).double().clone()
        self.pair, self.transition = layers(agent.dynamics.pair), layers(agent.dynamics.transition)
        self.actor, self.rho = layers(agent.actor.mlp), torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.critics, self.targets = ([layers(n.mlp, i) for i in range(2)] for n in (agent.critic, agent.target_critic))
        groups = [[self.pair], [self.transition], [self.actor], [self.critics[0]], [self.critics[1]]]
        self.adams = [torch.optim.Adam([p for m in group for p in m.parameters()], 3e-4) for group in groups]
        self.rho_adam = torch.optim.Adam([self.rho], 3e-4)

    def probabilities(self, s: Tensor, a: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        pair = 2 * torch.tanh(self.pair(torch.cat([s, a], 1)))
        transition = 2 * torch.tanh(self.transition(torch.cat([s, a, following], 1)))
        return torch.softmax(pair, 1), torch.softmax(transition + pair, 1)

    def log_ratio(self, s: Tensor, a: Tensor, following: Tensor) -> Tensor:
        pair, both = self.probabilities(s, a, following)
        return torch.log(both[:, 0] / both[:, 1]) - torch.log(pair[:, 0] / pair[:, 1])

    def sample(self, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(s).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        return torch.tanh(raw), (normal.log_prob(raw) - torch.log1p(-(torch.tanh(raw) ** 2))).sum(1)

    def discriminate(self, batch: dict[str, Tensor], blur: Tensor) -> None:
        rows = slice(-2 * self.c.discriminator_rows, None)
        s, a, following = (batch[k][rows] for k in ("observations", "actions", "next_observations"))
        b = self.c.discriminator_noise * blur
        split = [s + b[:, :OBSERVATIONS], a + b[:, OBSERVATIONS:-OBSERVATIONS], following + b[:, -OBSERVATIONS:]]
        loss = torch.zeros((), dtype=torch.float64)
        for first, label in ((0, 0), (1, 1)):
            for probabilities in self.probabilities(*(part[first::2] for part in split)):
                loss = loss - torch.log(probabilities[:, label]).mean()
        for adam in self.adams[:2]:
            adam.zero_grad()
        loss.backward()
        for adam in self.adams[:2]:
            adam.step()

    def step(self, batch: dict[str, Tensor], noise: dict[str, Tensor], kind: str) -> None:
        self.discriminate(batch, noise["blur"])
        mine = {k: v[:ROWS] for k, v in batch.items()}
        drawn = {k: v[:ROWS] for k, v in noise.items()}
        corrected = mine["rewards"].clone()
        simulated = [mine[k][1::2] for k in ("observations", "actions", "next_observations")]
        ratio = self.log_ratio(*simulated).detach()
        if kind == "darc":
            corrected[1::2] += self.c.correction * ratio
        alpha, s, following = self.rho.exp(), mine["observations"], mine["next_observations"]
        next_action, next_density = self.sample(following, drawn["next_action"])
        pairs = torch.cat([following, next_action], 1)
        next_q = torch.stack([target(pairs)[:, 0] for target in self.targets]).amin(0)
        if kind == "darc":
            next_q = next_q - alpha * next_density
        y = (corrected + 0.99 * (1 - mine["terminations"]) * next_q).detach()
        q = [critic(torch.cat([s, mine["actions"]], 1))[:, 0] for critic in self.critics]
        critic_losses = [
            self.h2o_loss(one, y, ratio, simulated, drawn) if kind == "h2o" else (one - y).square().mean() for one in q
        ]
        action, density = self.sample(s, drawn["action"])
        value = torch.stack([critic(torch.cat([s, action], 1))[:, 0] for critic in self.critics]).amin(0)
        actor_loss = (alpha.detach() * density - value).mean()
        alpha_loss = -(self.rho * (density.detach() - ACTIONS)).mean()
        groups = [list(self.actor.parameters()), *(list(critic.parameters()) for critic in self.critics), [self.rho]]
        losses = [actor_loss, *critic_losses, alpha_loss]
        found = [torch.autograd.grad(loss, group) for loss, group in zip(losses, groups, strict=True)]
        for group, gradients, adam in zip(groups, found, [*self.adams[2:], self.rho_adam], strict=True):
            for parameter, gradient in zip(group, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for p, t in zip(critic.parameters(), target.parameters(), strict=True):
                    t.copy_(0.995 * t + 0.005 * p)

    def h2o_loss(
        self, q: Tensor, y: Tensor, ratio: Tensor, simulated: list[Tensor], noise: dict[str, Tensor]
    ) -> Tensor:
        draws = noise["next_observation"][1::2].view(len(ratio), -1, OBSERVATIONS)
        s, a, following = simulated
        logs = [self.log_ratio(s, a, following + draws[:, k] * self.spread) for k in range(draws.shape[1])]
        u = (-torch.stack(logs).mean(0)).clamp(1e-45, 10).detach()
        omega = u / u.sum()
        root = ratio.exp().clamp(1e-5, 1).sqrt()
        errors = (q[::2] - y[::2]).square().mean() + (root * q[1::2] - root * y[1::2]).square().mean()
        if self.c.use_variant:
            high = (omega * q[1::2]).sum()
        else:
            high = torch.logsumexp(q[1::2] + torch.log(omega), 0)
        return errors + self.c.penalty_weight * (high - q[::2].mean()).clamp(-1000, 1000)

    def networks(self) -> list[Tensor]:
        parts = [self.actor, *self.critics, *self.targets, self.pair, self.transition]
        return [torch.cat([p.reshape(-1) for p in m.parameters()]).detach() for m in parts] + [self.rho.detach()]


def networks(agent: Any) -> list[Tensor]:
    parts = [layers(agent.actor.mlp)]
    parts += [layers(n.mlp, i) for n in (agent.critic, agent.target_critic) for i in range(2)]
    parts += [layers(agent.dynamics.pair), layers(agent.dynamics.transition)]
    vectors = [torch.cat([p.reshape(-1) for p in m.parameters()]).detach() for m in parts]
    return [*vectors, agent.temperature.rho.detach().clone()]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (H2O, {"penalty_weight": 0.5, "gap_draws": 3}),
        (H2O, {"penalty_weight": 0.5, "use_variant": True, "gap_draws": 2}),
        (DARC, {"preset": "plus", "correction": 0.7}),
    ],
    ids=["h2o", "h2o variant", "darc plus"],
)
def test_full_updates_equal_the_second_implementation(kind: Any, options: dict[str, Any]) -> None:
    agent, learner, batch = agent_and_learner(kind, **options)
    reference = Reference(agent)
    before = networks(agent)
    for step in range(3):
        noise = {name: by_turns(*value[0].chunk(2)) for name, value in learner.stream.at(step).items()}
        learner.run(1)
        reference.step(in_turns(batch), noise, kind.name)
        for mine, other in zip(networks(agent), reference.networks(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)
    for first, last in zip(before, networks(agent), strict=True):
        assert not torch.equal(first, last)


def test_with_equal_gaps_and_weights_of_one_it_is_sac_without_entropy_in_the_target_and_a_penalty() -> None:
    agent, learner, batch = agent_and_learner(H2O, weigh=False, penalty_weight=0.3)
    for parameter in agent.dynamics.transition.parameters():  # cannot tell anything apart: u is 0, shares are equal
        parameter.data.zero_()
    parts = {name: batch[name] for name in BOTH}
    noise = {name: value[0] for name, value in learner.stream.at(0).items()}
    loss, metrics = agent.critic_loss(parts, noise)
    mine = joined(parts)
    q, target = agent.critic(mine["observation_actions"]), agent.targets(mine, noise)
    real, simulated = q.chunk(2, 1)
    pushed = torch.logsumexp(simulated, 1) - math.log(ROWS // 2) - real.mean(1)
    expected = 2 * ensembles.critic_loss(q, target, "sum") + 0.3 * pushed.sum()
    torch.testing.assert_close(loss, expected)
    assert metrics["weight"].tolist() == [1.0] * (ROWS // 2)
    assert not agent.config.entropy_backup


def test_darc_learns_from_the_simulated_rows_at_corrected_rewards() -> None:
    agent, learner, batch = agent_and_learner(DARC)
    noise = {name: value[0] for name, value in learner.stream.at(0).items()}
    loss, _ = agent.critic_loss({SIMULATED: batch[SIMULATED]}, noise)
    simulated = dict(batch[SIMULATED])
    assert len(simulated["rewards"]) == ROWS
    ratio = agent.dynamics.log_ratio(simulated["observation_actions"], simulated["next_observations"])
    simulated["rewards"] = simulated["rewards"] + ratio
    target = agent.targets(simulated, noise)
    q = agent.critic(simulated["observation_actions"])
    torch.testing.assert_close(loss, ensembles.critic_loss(q, target, "sum"))


# -- in the loop ----------------------------------------------------------------------------------------------


def test_real_and_simulated_rows_come_apart_and_the_discriminators_have_rows_of_their_own() -> None:
    trained = hybrid_loop("h2o", data=regulated(count=50))
    trained.run(40)
    agent, learner = trained.agent, trained.learner
    assert [update.name for update in learner.updates] == [
        "discriminator_loss", "temperature_loss", "actor_loss", "critic_loss"
    ]  # fmt: skip
    assert [update.rows for update in learner.updates] == [8, 8, 8, 8]
    assert [update.sources for update in learner.updates] == [TO_TELL_APART, BOTH, BOTH, BOTH]
    assert [update.simultaneous for update in learner.updates] == [False, False, True, True]
    data = set(agent.prepare(regulated(count=50)).observations[:, 0].tolist())
    met = set(trained.experience.buffer["observations"][: len(trained.experience.buffer), 0].tolist())
    rows = {name: source.rows(7)[0] for name, source in learner.sources.items()}
    found = {name: set(learner.sources[name].gather(rows[name])["observations"][:, 0].tolist()) for name in rows}
    for real, simulated in (BOTH, TO_TELL_APART):
        assert found[real] <= data
        assert found[simulated] <= met
        assert not found[real] & found[simulated]
    assert not torch.equal(rows[BOTH[0]], rows[TO_TELL_APART[0]])
    assert not torch.equal(rows[BOTH[1]], rows[TO_TELL_APART[1]])


def test_the_data_are_packed_as_prepare_gave_them() -> None:
    data = generate("native/pendulum", 0, 400)
    trained = hybrid_loop("h2o", env=NativeVectorEnv("native/pendulum", 1), data=data)
    packed = trained.learner.sources[BOTH[0]].gather(torch.arange(400))["actions"]
    np.testing.assert_allclose(packed, np.clip(data.actions / 2, -1 + 1e-5, 1 - 1e-5), rtol=1e-6)  # bounds are +- 2


def test_the_spread_is_measured_on_the_data_of_every_seed() -> None:
    trained = hybrid_loop("h2o", seeds=(1, 2))
    for position in range(2):
        spread = trained.learner.agents_parameters(position)["spread"]
        assert float(spread) == pytest.approx(float(regulated().observations.std()), rel=1e-5)
    official = H2O(Spec.of(regulated()), preset="official")
    official.prepare(regulated())
    observations = regulated().observations.astype(np.float64)
    expected = math.sqrt(observations.var() / 11 + 10 * observations.mean() ** 2 / 121) + 1e-3
    assert float(official.spread) == pytest.approx(expected, rel=1e-5)


def test_the_discriminators_tell_a_wrong_simulator_from_the_data_and_the_reports_say_so() -> None:
    options = {"discriminator_learning_rate": 5e-3, "discriminator_rows": 32, "discriminator_noise": 0.02}
    same = hybrid_loop("h2o", data=regulated(2000), initial_actions="uniform", initial_steps=200, **options)
    wrong = hybrid_loop("h2o", data=regulated(2000, drag=0.3), initial_actions="uniform", initial_steps=200, **options)
    right, found = same.run(350), wrong.run(350)
    for result in (right, found):
        assert {"gap", "weight", "discriminator_loss", "pair_loss", "transition_loss", "penalty"} <= set(result)
    assert found["transition_loss"][0] < right["transition_loss"][0]
    assert found["weight"][0] < right["weight"][0]
    assert found["gap"][0] > right["gap"][0]


@pytest.mark.parametrize("algorithm", ["h2o", "darc"])
def test_a_training_step_runs_from_the_tape(algorithm: str) -> None:
    if native.library() is None:
        pytest.skip(f"no native module: {native.why_not()}")
    trained = hybrid_loop(algorithm, kernels=True, hidden=(32, 32), discriminator_hidden=(32, 32), batch_size=32)
    plain = hybrid_loop(algorithm, hidden=(32, 32), discriminator_hidden=(32, 32), batch_size=32)
    for one in (trained, plain):
        one.run(40)
    assert trained.learner.eager_because() == {}
    torch.testing.assert_close(parameters(trained), parameters(plain), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("algorithm", ["h2o", "darc"])
def test_stacked_seeds_equal_each_alone(algorithm: str) -> None:
    together = hybrid_loop(algorithm, seeds=(1, 2))
    result = together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = hybrid_loop(algorithm, seeds=(seed,))
        mine = alone.run(30)
        # Adam makes a difference in the last bit of a tiny gradient up to twice the learning rate a step.
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-3, atol=2e-3)
        for name in ("critic_loss", "discriminator_loss"):
            assert mine[name][0] == pytest.approx(result[name][position], rel=1e-3)


def states(of: OffPolicyLoop) -> list[dict[str, Tensor]]:
    return [{n: v.clone() for n, v in of.state(i).items()} for i in range(len(of.seeds))]


@pytest.mark.parametrize("algorithm", ["h2o", "darc"])
def test_a_killed_run_goes_on_bit_for_bit(algorithm: str) -> None:
    def fresh() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1, gap="gravity2")
        return hybrid_loop(algorithm, env=env, data=generate("native/pendulum", 0, 400), kernels=True)

    whole, resumed = fresh(), fresh()
    whole.run(40)
    saved = states(whole)
    assert resumed.restore(saved, 40) is None
    np.testing.assert_equal(resumed.run(15), whole.run(15))
    for name, value in states(whole)[0].items():
        assert torch.equal(value, states(resumed)[0][name]), name


# -- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (H2O, {"offline_fraction": 0.25}, ("offline_fraction", "conflict")),
        (H2O, {"gap_spread": "zeros"}, ("gap_spread", "choice")),
        (H2O, {"penalty_weight": -1.0}, ("penalty_weight", "range")),
        (H2O, {"gap_draws": 0}, ("gap_draws", "range")),
        (H2O, {"critic_loss_over": "mean"}, ("critic_loss_over", "conflict")),
        (DARC, {"learn_from": "data"}, ("learn_from", "choice")),
        (DARC, {"discriminator_bound": 0.0}, ("discriminator_bound", "range")),
        (DARC, {"discriminator_rows": 0}, ("discriminator_rows", "range")),
        (DARC, {"discriminator_noise": -0.1}, ("discriminator_noise", "range")),
    ],
)
def test_options_out_of_range_are_refused(kind: Any, options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        kind(Spec.of(regulated()), **options)


def test_odd_batches_are_refused() -> None:
    with pytest.raises(ConfigError, match="half real and half simulated, and batch_size=15 is odd"):
        hybrid_loop("h2o", batch_size=15)
