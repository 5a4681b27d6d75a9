"""HNPG: its critic's two errors, the rows that its policy steps on, and the combination lock that data opens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from combination_lock import CombinationLock, recorded
from hybrid_problems import regulated
from online_problems import Regulator
from refusals import refused
from torch import Tensor, nn

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import Code, ConfigError
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP
from surefoot.envs import make_vec
from surefoot.envs.interface import VectorEnvironment
from surefoot.online import HNPG, TRPO, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.runs.embedded import generate

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "hidden": (8, 6), "critic_hidden": (7, 5), "epochs": 2,
                         "minibatches": 2, "value_actions": 3}  # fmt: skip


def made(kind: Any, env: VectorEnvironment, data: Any, seeds: tuple[int, ...] = (0,), **options: Any) -> OnPolicyLoop:
    planned, kernels = options.pop("planned", 1000), options.pop("kernels", False)
    agents = [kind(spec_of(env), **options).fresh(seed) for seed in seeds]
    given = {} if data is None else {"dataset": [agent.prepare(data) for agent in agents][-1]}
    return OnPolicyLoop(agents, seeds, env, planned_steps=planned, kernels=kernels, **given)


def small(seeds: tuple[int, ...] = (0,), kind: Any = HNPG, **options: Any) -> OnPolicyLoop:
    env = options.pop("env", None) or Regulator(4 * len(seeds))
    return made(kind, env, options.pop("data", regulated()), seeds, **{**SMALL, **options})


def layers(mlp: MLP) -> nn.Sequential:
    parts: list[nn.Module] = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2]).double()
        linear.load_state_dict({"weight": weight, "bias": bias})
        parts += [linear, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


# -- against numbers found another way -----------------------------------------------------------------------


def test_two_critic_steps_equal_the_second_implementation() -> None:
    agent = small(data_weight=0.7, target_rate=0.2, learning_rate=1e-2, discount=0.9).agent.double()
    source = torch.Generator().manual_seed(3)
    batch = {name: 1.5 * torch.randn(6, 1, generator=source, dtype=torch.float64)
             for name in ("observations", "actions", "data_observations", "data_actions",
                          "data_next_observations")}  # fmt: skip
    batch |= {name: torch.randn(6, generator=source, dtype=torch.float64) for name in ("returns", "data_rewards")}
    batch["data_terminations"] = torch.tensor([0.0, 1, 0, 0, 1, 0], dtype=torch.float64)
    actor, critic, target = (layers(n.mlp) for n in (agent.actor, agent.critic, agent.target_critic))
    log_std = agent.actor.log_std.detach().clone()
    adam = torch.optim.Adam(critic.parameters(), lr=1e-2)
    learner = Learner([agent], [0], Uniform(lambda indices: batch, 100), batch_size=6, dtype=torch.float64)
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], 6, noises, torch.device("cpu"), torch.float64)

    def q(network: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        return network(torch.cat([observations, actions.clip(-1, 1)], 1)).squeeze(1)  # type: ignore[no-any-return]

    for step in range(2):
        with torch.no_grad():
            following = batch["data_next_observations"]
            action = actor(following) + log_std.exp() * stream.at(step)["next_action"][0]
            y = batch["data_rewards"] + 0.9 * (1 - batch["data_terminations"]) * q(target, following, action)
        met = ((q(critic, batch["observations"], batch["actions"]) - batch["returns"]) ** 2).mean()
        backed = ((q(critic, batch["data_observations"], batch["data_actions"]) - y) ** 2).mean()
        adam.zero_grad()
        (met + 0.7 * backed).backward()
        adam.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.mul_(0.8).add_(0.2 * new)
        found = learner.run(1)
        assert found["critic_loss"][0] == pytest.approx(float((met + 0.7 * backed).detach()), rel=1e-10)
        for mlp, other in ((agent.critic.mlp, critic), (agent.target_critic.mlp, target)):
            linears = [m for m in other if isinstance(m, nn.Linear)]
            for weight, linear in zip(mlp.weights, linears, strict=True):
                torch.testing.assert_close(weight.detach(), linear.weight.detach(), rtol=1e-9, atol=1e-12)


def linear_in_action(agent: Any, slope: float) -> None:
    """Q(s, a) = slope * (a + 1), and a policy of mean 0.1 with a deviation of 0.2."""
    with torch.no_grad():
        for parameter in (*agent.critic.parameters(), *agent.actor.parameters()):
            parameter.zero_()
        agent.critic.mlp.weights[0][0, 1] = agent.critic.mlp.biases[0][0] = 1e-3  # tanh is straight there
        agent.critic.mlp.weights[1][0, 0] = 1.0
        agent.critic.mlp.weights[2][0, 0] = slope * 1e3
        agent.actor.mlp.biases[-1].fill_(0.1)
        agent.actor.log_std.fill_(float(np.log(0.2)))


def test_values_returns_and_advantages_are_those_worked_out_by_hand() -> None:
    """Q = 2 (a + 1): V of the draws 0 and +-1 is 2.2; rewards 1 at discount 0.5; an end at t = 1."""
    agent = small(value_actions=3, discount=0.5, gae_lambda=1.0).agent.double()
    linear_in_action(agent, 2.0)
    draws = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64).expand(3, 1, 3)
    no, column = torch.zeros(3, 1, dtype=torch.bool), torch.zeros(3, 1, 1, dtype=torch.float64)
    ends = torch.tensor([[False], [True], [False]])
    block = {
        "observations": column, "actions": column, "next_observations": column,
        "rewards": torch.ones(3, 1, dtype=torch.float64), "terminations": ends, "truncations": no,
        "value_action": draws, "next_value_action": draws + 100,  # read after the block's last step alone
        "data_value_action": draws, "data_action": torch.tensor([[[0.5]], [[-0.5]], [[50.0]]], dtype=torch.float64),
        "data_observations": column, "data_actions": column, "data_next_observations": column,
        "data_rewards": column[..., 0], "data_terminations": column[..., 0],
    }  # fmt: skip
    with torch.no_grad():
        found = agent.columns(block)
    # The last step continues Q of actions that are clipped to 1: 4. Then G = [1 + 0.5 * 1, 1, 1 + 0.5 * 4].
    expected = torch.tensor([1.5, 1.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(found["returns"][:, 0], expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(found["advantages"][:, 0], expected - 2.2, rtol=1e-4, atol=1e-4)
    # Actions at the data's states are 0.1 + 0.2 z, the third clipped in Q alone: 2 (a + 1) - 2.2.
    torch.testing.assert_close(found["resampled_actions"][:, 0, 0], torch.tensor([0.2, 0.0, 10.1]).double())
    better = torch.tensor([0.2, -0.2, 1.8], dtype=torch.float64)
    torch.testing.assert_close(found["resampled_advantages"][:, 0], better, rtol=1e-4, atol=1e-4)


def test_the_policys_step_is_trpos_on_both_sets_of_rows_or_on_the_block_alone() -> None:
    hybrid = small(env=make_vec("native/pendulum", 4), data=generate("native/pendulum", transitions=300, seed=1))
    hybrid.run(64)
    block = hybrid.blocks.fill(1)
    block |= hybrid._data_rows() | hybrid._noise()
    columns = {n: v[0].flatten(0, 1) for n, v in hybrid.learner.apply("columns", block).items()}
    alone = TRPO(hybrid.agent.spec, **{k: v for k, v in SMALL.items() if k not in ("critic_hidden", "value_actions")})
    alone.actor.load_state_dict(hybrid.agent.actor.state_dict())
    names = ("observations", "actions", "advantages", "behaviour")
    block_rows = {name: columns[name] for name in names}
    both = {
        name: torch.cat([columns[name], columns[f"{'data' if name == 'observations' else 'resampled'}_{name}"]])
        for name in names
    }
    hybrid_step = hybrid.agent.policy_step(columns, {})[0]
    without = HNPG(hybrid.agent.spec, **SMALL, data_states=False)
    without.load_state_dict(hybrid.agent.state_dict())
    for step, rows in ((hybrid_step, both), (without.policy_step(columns, {})[0], block_rows)):
        a = rows["advantages"]
        expected = alone.policy_step({**rows, "advantages": (a - a.mean()) / (a.std() + 1e-8)}, {})[0]
        for name, value in expected.items():
            torch.testing.assert_close(step[name], value, rtol=1e-4, atol=1e-6)


# -- the loop ------------------------------------------------------------------------------------------------


def test_each_block_has_as_many_rows_of_the_data_mapped_as_its_own() -> None:
    trained = small(normalize_observations=True, normalize_rewards=True)
    trained.run(64)
    data, found = regulated(), trained._data_rows()
    source = CounterGenerator([0], "data_rows", trained.blocks_done, torch.device("cpu"))
    drawn = source.integers(0, len(data), (4, 16))[0].numpy().T
    moments, scale = trained.blocks.moments, float(trained.rewards.moments.scale())
    mean, deviation = float(moments.mean[0, 0]), float(moments.scale()[0, 0])
    for key in ("observations", "next_observations"):
        expected = (getattr(data, key)[drawn][..., 0] - mean) / deviation
        np.testing.assert_allclose(found[f"data_{key}"][0, :, :, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["data_rewards"][0].numpy(), data.rewards[drawn] / scale, rtol=1e-5)
    np.testing.assert_allclose(found["data_actions"][0, :, :, 0].numpy(), data.actions[drawn][..., 0], atol=2e-5)


def test_a_training_step_runs_from_the_tape() -> None:
    trained = small(kernels=True)
    trained.run(128)
    assert trained.learner.eager_because() == {}


def test_seeds_together_equal_each_alone() -> None:
    together = small((3, 8))
    together.run(128)
    for position, seed in enumerate((3, 8)):
        alone = small((seed,))
        alone.run(128)
        for name, value in alone.learner.agents_parameters(0).items():
            found = together.learner.agents_parameters(position)[name]
            torch.testing.assert_close(found, value, rtol=2e-3, atol=5e-5, msg=name)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OnPolicyLoop:
        data = generate("native/pendulum", transitions=300, seed=1)
        return small(env=make_vec("native/pendulum", 4), data=data, kernels=True)

    whole, first, second = fresh(), fresh(), fresh()
    whole.run(256)
    first.run(128)
    assert second.restore([{n: v.clone() for n, v in first.state(0).items()}], first.step) is None
    while second.step < whole.step:
        second.run(64)
    for name, value in whole.state(0).items():
        assert torch.equal(value, second.state(0)[name]), name


def test_data_that_is_missing_or_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="hnpg learns from data beside its blocks: give dataset="):
        small(data=None)
    agent = TRPO(spec_of(Regulator(1)))
    with pytest.raises(ConfigError, match="trpo reads no dataset"):
        OnPolicyLoop([agent], [0], Regulator(1), planned_steps=10, dataset=regulated())


@pytest.mark.parametrize(("options", "message"), [
    ({"value_actions": 0}, ("value_actions", "range")),
    ({"data_weight": -1.0}, ("data_weight", "range")),
    ({"target_rate": 0.0}, ("target_rate", "range")),
])  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        HNPG.configure(**options)


# -- a problem with a known answer ---------------------------------------------------------------------------


class Backwards(HNPG):
    """HNPG that goes where its critic sees a loss."""

    def policy_step(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        turned = {name: -value if name.endswith("advantages") else value for name, value in batch.items()}
        return super().policy_step(turned, noise)


LOCK: dict[str, Any] = {"num_envs": 50, "hidden": (32, 32), "discount": 1.0, "normalize_observations": False,
                        "normalize_rewards": False, "epochs": 8, "minibatches": 4, "max_kl": 0.1}  # fmt: skip


@pytest.mark.parametrize(("kind", "steps", "horizon", "opens"), [
    (HNPG, 5, 20, True), (Backwards, 5, 20, False), (TRPO, 5, 20, False),
])  # fmt: skip
def test_data_opens_the_combination_lock_and_acting_alone_stays_at_the_decoy(
    kind: Any, steps: int, horizon: int, opens: bool
) -> None:
    """From 200 episodes, of which no more than half are worth 1; more than 0.9 in less than 50,000 steps.

    One seed, and a step ten times the default `max_kl`, with which the lock stays shut for so many steps.
    The others have half of the steps, in which HNPG has left the decoy.
    """
    data = recorded(steps, 200) if issubclass(kind, HNPG) else None
    trained = made(kind, CombinationLock(50, steps), data, planned=50_000, horizon=horizon, **LOCK)
    trained.run(36_000 if opens else 22_000)
    reached = trained.run(4_000)["episode_return"][0]
    assert trained.step <= 50_000
    assert reached > 0.9 if opens else reached < 0.1
