"""DroQ: full updates against a second implementation, REDQ where nothing is dropped, and the regulator's gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ensemble_rows import rows_of
from online_problems import (
    RICCATI,
    Constant,
    Counting,
    Regulator,
    assert_taped_equals_plain,
    loop,
    parameters,
    regulators_gain,
    spec,
)
from plain_layers import layers
from refusals import refused
from test_off_policy_updates import PROBLEM, ROWS, Numbered, Rows, SecondSAC, agent_target, average, batches, descend
from torch import Tensor, nn

from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import REDQ, DroQ
from surefoot.online.loops.off_policy import OffPolicyLoop

SMALL: dict[str, Any] = {"hidden": (16, 16), "initial_steps": 20}


class SecondDroQ(SecondSAC):
    """DroQ's paper, algorithm 2, over torch's own layers."""

    def dropped(self, networks: list[nn.Module], observations: Tensor, actions: Tensor, places: Tensor) -> Tensor:
        """Values of all critics, (M, B), each layer's sums dropped before its norm."""
        found = []
        for i, network in enumerate(networks):
            value, first = torch.cat([observations, actions], 1), i * sum(self.c.hidden)
            for layer in network:  # type: ignore[attr-defined]
                value = layer(value)
                if isinstance(layer, nn.Linear) and value.shape[1] > 1:
                    keep = torch.full_like(value, 1 / (1 - self.c.dropout))
                    for row in range(len(value)):
                        for unit in range(value.shape[1]):
                            if first + unit in places[row].tolist():
                                keep[row, unit] = 0
                    value, first = keep * value, first + value.shape[1]
            found.append(value.squeeze(1))
        return torch.stack(found)

    def step(self, batch: Rows, noise: Rows) -> None:
        c, size = self.c, len(batch["rewards"]) // self.c.critic_steps
        for turn in range(c.critic_steps):
            own = {k: v[turn * size : (turn + 1) * size] for k, v in {**batch, **noise}.items()}
            with torch.no_grad():
                following = own["next_observations"]
                action, density = self.draw(following, own["next_action"])
                q = self.dropped(self.targets, following, action, own["next_action_dropped"])
                soft = torch.minimum(q[0], q[1]) - self.alpha() * density
                y = own["rewards"] + c.discount * (1 - own["terminations"]) * soft
            q = self.dropped(self.critics, own["observations"], own["actions"], own["stored_dropped"])
            descend(self.critic_adam, nn.functional.mse_loss(q[0], y) + nn.functional.mse_loss(q[1], y))
            average(self.targets, self.critics, c.target_rate)
        last = {k: v[-size:] for k, v in {**batch, **noise}.items()}
        alpha = self.alpha().detach()
        action, density = self.draw(last["observations"], last["action"])
        q = self.dropped(self.critics, last["observations"], action, last["action_dropped"])
        descend(self.actor_adam, (alpha * density - (q[0] + q[1]) / 2).mean())
        descend(self.rho_adam, -self.rho * (density.detach().mean() + agent_target(c)))


def test_full_updates_equal_the_second_implementation() -> None:
    """Losses, gradients and Adam's steps: parameters after each of four training steps of three critic steps."""
    agent = DroQ(PROBLEM, hidden=(7, 6), dropout=0.3, critic_steps=3).fresh(2)
    agent.batch_size = ROWS
    for name, value in agent.named_parameters():
        if name.startswith("target_critic"):  # targets that differ from the critics, or their average says nothing
            value.data.add_(0.1)
    given = batches(4, 3 * ROWS)
    learner = Learner([agent], [0], Numbered(given), batch_size=ROWS, dtype=torch.float64)
    second = SecondDroQ(agent)
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], 3 * ROWS, noises, torch.device("cpu"), torch.float64)
    for step in range(4):
        learner.run(1)
        second.step(given[step], {name: value[0] for name, value in stream.at(step).items()})
        assert_equal_networks(agent, second)
    masks = {name: stream.at(0)[name] for name in noises if name.endswith("_dropped")}
    assert len(masks) == len({value.numpy().tobytes() for value in masks.values()}) == 3  # drawn anew for each loss


def assert_equal_networks(agent: DroQ, second: SecondSAC) -> None:
    """All parameters, those of the layer norms too."""
    pairs = [(layers(agent.actor.mlp), second.actor)]
    for ours, others in ((agent.critic.mlp, second.critics), (agent.target_critic.mlp, second.targets)):
        pairs += [(layers(ours, i), other) for i, other in enumerate(others)]  # type: ignore[misc]
    for mine, other in pairs:
        for value, expected in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(agent.temperature.rho.detach(), second.rho.detach(), rtol=1e-9, atol=1e-12)


def trained(agent: Any, steps: int, kernels: bool) -> Tensor:
    agent.batch_size = 8
    learner = Learner([agent], [4], Uniform(Store.pack(rows_of(50))), batch_size=8, kernels=kernels)
    learner.run(steps)
    return torch.cat([v.reshape(-1) for v in learner.agents_parameters(0).values()])


@pytest.mark.parametrize("kernels", [False, True])
def test_without_dropout_and_layer_norm_it_is_redq_of_two_critics(kernels: bool) -> None:
    same: dict[str, Any] = {"hidden": (8, 8), "critics": 2, "subset": 2, "critic_steps": 3}
    problem = Spec(3, 1, (-1.0,), (1.0,))
    redq = trained(REDQ(problem, **same).fresh(1), 20, kernels)
    droq = trained(DroQ(problem, **same, dropout=0.0, layer_norm_critic=False).fresh(1), 20, kernels)
    assert torch.equal(redq, droq)
    dropping = trained(DroQ(problem, **same, layer_norm_critic=False).fresh(1), 20, kernels)
    assert not torch.equal(redq, dropping)


def test_settings_are_the_papers_and_presets_have_redqs_target_entropies() -> None:
    c = DroQ.configure()
    found = (c.critics, c.dropout, c.critic_steps, c.layer_norm_critic, c.layer_norm_actor, c.layer_norm_epsilon,
             c.actor_value, c.actor_rows, c.entropy_backup, c.critic_loss_over, c.initial_steps, c.replay_capacity,
             c.hidden, c.discount, c.target_rate, c.initialization)  # fmt: skip
    assert found == (2, 0.01, 20, True, False, 1e-5, "mean", "last", True, "sum", 5000, 1_000_000,
                     (256, 256), 0.99, 0.005, "xavier")  # fmt: skip
    assert {c.actor_learning_rate, c.critic_learning_rate, c.temperature_learning_rate} == {3e-4}
    entropies = {name: DroQ.configure(preset=name).target_entropy for name in REDQ.PRESETS}
    assert entropies == {name: REDQ.configure(preset=name).target_entropy for name in REDQ.PRESETS}
    walk = DroQ(Spec(30, 12, (-1.0,) * 12, (1.0,) * 12), preset="walk_in_the_park")
    assert (walk.target_entropy, walk.config.initial_steps, walk.config.dropout) == (-6.0, 1000, 0.01)
    assert float(walk.temperature().detach()) == pytest.approx(0.1)
    with refused("dropout", "range"):
        DroQ.configure(dropout=1.0)


# -- in its loop ---------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1, max_episode_steps=37)
        return loop("droq", env, kernels=True, initial_steps=60, batch_size=16, critic_steps=3, dropout=0.1)

    whole = fresh()
    whole.run(110)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    last = whole.run(60)
    resumed = fresh()
    assert resumed.restore([saved], 110) is None
    np.testing.assert_equal(resumed.run(60), last)  # NaN, where no episode ended, included
    mine, other = whole.state(0), resumed.state(0)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        assert torch.equal(value, other[name]), name


def test_stacked_seeds_equal_each_alone() -> None:
    options: dict[str, Any] = {"initial_steps": 20, "batch_size": 16, "critic_steps": 3, "dropout": 0.1}
    together = loop("droq", Regulator(4), seeds=(1, 2), **options)
    result = together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = loop("droq", Regulator(2), seeds=(seed,), **options)
        mine = alone.run(30)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)
        assert mine["critic_loss"][0] == pytest.approx(result["critic_loss"][position], rel=1e-3)


def test_a_taped_step_leaves_what_plain_pytorch_leaves() -> None:
    made = [loop("droq", Counting(), kernels=kernels, batch_size=8, critic_steps=3, dropout=0.2, **SMALL)
            for kernels in (True, False)]  # fmt: skip
    assert_taped_equals_plain(made, 24)


def test_its_policy_is_saved_and_read(tmp_path: Any) -> None:
    policy = DroQ(spec(Constant()), hidden=(8, 8)).fresh(0).policy()
    policy.save(tmp_path / "policy")
    observations = torch.randn(5, 1)
    assert torch.equal(Policy.load(tmp_path / "policy")(observations), policy(observations))


# -- what it learns ------------------------------------------------------------------------------------------------


class Backwards(DroQ):
    """DroQ whose actor goes up its loss."""

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = REDQ.actor_loss(self, batch, noise)  # type: ignore[arg-type]
        return -loss, metrics


class WrongTarget(DroQ):
    """DroQ whose critics learn the cost where they should learn the reward."""

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return REDQ.critic_loss(self, {**batch, "rewards": -batch["rewards"]}, noise)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [DroQ, Backwards, WrongTarget])
def test_the_regulators_gain_is_riccatis(kind: type[DroQ]) -> None:
    env = Regulator(8)
    options: dict[str, Any] = {
        "hidden": (32, 32), "num_envs": 8, "initial_steps": 200, "discount": 0.95, "target_rate": 0.1,
        "temperature": 0.1, "learn_temperature": False, "actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3,
        "critic_steps": 2, "updates_per_step": 0.25,
    }  # fmt: skip
    steps = 5000 if kind is DroQ else 1500
    agent = kind(spec(env), **options).fresh(0)
    made = OffPolicyLoop([agent], [0], env, planned_steps=2 * steps, batch_size=128, kernels=True)
    made.run(steps)
    gains = []
    for _ in range(8):  # a gain keeps moving a little with its batches
        made.run(125)
        gains.append(regulators_gain(made.agent))
    gain = float(np.mean(gains))
    assert (abs(gain - RICCATI) < 0.1 * abs(RICCATI)) == (kind is DroQ), gains
