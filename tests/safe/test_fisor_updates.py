"""FISOR's whole updates by a second implementation, and what it does with data, options and units."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from fisor_rows import SMALL, Rows, agent, rows_of
from plain_layers import layers
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Uniform
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.safe.fisor import FISOR

# -- a whole update against a second implementation --------------------------------------------------------------------


class Reference:
    """FISOR with torch's own layers and optimisers, one network and one loss at a time, in float64."""

    def __init__(self, made: FISOR, planned: int) -> None:
        self.c, self.schedule, self.planned, self.taken = made.config, made.schedule, planned, 0
        self.value, self.value_h = layers(made.value.mlp), layers(made.feasible_value_network.mlp)
        self.critics, self.targets = ([layers(n.mlp, i) for i in (0, 1)] for n in (made.critic, made.target_critic))
        networks = (made.feasible_critic, made.target_feasible_critic)
        self.critics_h, self.targets_h = ([layers(n.mlp, i) for i in (0, 1)] for n in networks)
        self.noise = {k: v.detach().clone().requires_grad_() for k, v in made.noise_network.named_parameters()}
        self.average = {k: v.detach().clone() for k, v in made.average_noise_network.named_parameters()}
        rate = self.c.learning_rate
        groups: list[Any] = [self.noise.values(), self.value.parameters(), self.value_h.parameters()]
        groups += [[p for q in pair for p in q.parameters()] for pair in (self.critics, self.critics_h)]
        self.adams = dict(
            zip(("actor", "v", "v_h", "q", "q_h"), (torch.optim.Adam(g, lr=rate) for g in groups), strict=True)
        )

    def predict(self, noisy: Tensor, seen: Tensor, steps: Tensor, masks: Tensor | None) -> Tensor:
        t = self.noise
        angles = 2 * math.pi * steps[:, None] * t["time.frequencies"]
        time = torch.cat([angles.cos(), angles.sin()], 1)
        if self.c.network == "mlp":
            x = torch.cat([noisy, seen, time], 1)
            for layer in range(3):
                x = x @ t[f"mlp.weights.{layer}"].T + t[f"mlp.biases.{layer}"]
                x = x.relu() if layer < 2 else x
            return x

        def linear(name: str, x: Tensor) -> Tensor:
            return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

        def mish(x: Tensor) -> Tensor:
            return x * torch.tanh(torch.log1p(torch.exp(x)))

        x = linear("first", torch.cat([noisy, seen, linear("embed.1", mish(linear("embed.0", time)))], 1))
        for block in range(self.c.blocks):
            dropped = x if masks is None else x * masks[:, 8 * block : 8 * block + 8]
            scale, shift = t[f"stack.{block}.norm.weight"], t[f"stack.{block}.norm.bias"]
            normal = torch.nn.functional.layer_norm(dropped, (8,), scale, shift, eps=1e-6)
            x = x + linear(f"stack.{block}.down", mish(linear(f"stack.{block}.up", normal)))
        return linear("last", mish(x))

    def descend(self, name: str, loss: Tensor) -> None:
        self.adams[name].zero_grad()
        loss.backward()
        self.adams[name].step()

    def actor(self, rows: Rows, noise: Rows) -> None:
        c, seen, pair = self.c, rows["observations"], rows["observation_actions"]
        with torch.no_grad():
            q = torch.min(*(n(pair) for n in self.targets)).squeeze(1)
            q_h = torch.max(*(n(pair) for n in self.targets_h)).squeeze(1)
            advantage, v_h = q - self.value(seen).squeeze(1), self.value_h(seen).squeeze(1)
            feasible = (
                (v_h <= 0).double() * (q_h <= 0).double() * (self.c.reward_temperature * advantage).exp().clamp(0, 100)
            )
            weight = feasible + (v_h > 0).double() * (5 * (v_h - q_h)).exp().clamp(0, 150)
        progress = self.taken / (c.actor_decay * self.planned)
        self.adams["actor"].param_groups[0]["lr"] = c.actor_learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        step = (noise["step"].squeeze(1) * 5).floor()
        product = torch.tensor(self.schedule.products, dtype=torch.float64)[step.long()].unsqueeze(1)
        noisy = product.sqrt() * rows["actions"] + (1 - product).sqrt() * noise["noise"]
        error = (self.predict(noisy, seen, step, noise.get("dropout")) - noise["noise"]).square().sum(1)
        self.descend("actor", (weight * error).mean())
        for name, value in self.noise.items():
            self.average[name] = 0.999 * self.average[name] + 0.001 * value.detach()

    def step(self, rows: Rows, noise: Rows, critic_rows: int) -> None:
        c, size = self.c, self.c.actor_rows
        for turn in range(c.actor_updates):
            part = slice(turn * size, (turn + 1) * size)
            self.actor({k: v[part] for k, v in rows.items()}, {k: v[part] for k, v in noise.items()})
        if c.schedule == "cosine":
            rate = c.learning_rate * 0.5 * (1 + math.cos(math.pi * self.taken / self.planned))
            for name in ("v", "v_h", "q", "q_h"):
                self.adams[name].param_groups[0]["lr"] = rate
        self.taken += c.actor_updates  # the rate is that of the training step
        rows = {k: v[:critic_rows] for k, v in rows.items()}
        seen, following, pair = rows["observations"], rows["next_observations"], rows["observation_actions"]
        ends, h = rows["terminations"], rows["signals"]
        with torch.no_grad():
            q = torch.min(*(n(pair) for n in self.targets)).squeeze(1)
            q_h = torch.max(*(n(pair) for n in self.targets_h)).squeeze(1)
        u = q - self.value(seen).squeeze(1)
        self.descend("v", ((0.9 - (u < 0).double()).abs() * u**2).mean())
        y = rows["rewards"] + 0.99 * (1 - ends) * self.value(following).squeeze(1).detach()
        self.descend("q", sum(((n(pair).squeeze(1) - y) ** 2).mean() for n in self.critics) / 2)  # type: ignore[arg-type]
        u = q_h - self.value_h(seen).squeeze(1)
        self.descend("v_h", ((0.9 - (u > 0).double()).abs() * u**2).mean())
        v_h = self.value_h(following).squeeze(1).detach()
        y = (1 - ends) * (0.01 * h + 0.99 * torch.maximum(h, v_h)) + ends * h
        self.descend("q_h", sum(((n(pair).squeeze(1) - y) ** 2).mean() for n in self.critics_h) / 2)  # type: ignore[arg-type]
        with torch.no_grad():
            for targets, sources in ((self.targets, self.critics), (self.targets_h, self.critics_h)):
                for target, source in zip(targets, sources, strict=True):
                    for old, new in zip(target.parameters(), source.parameters(), strict=True):
                        old.copy_(0.995 * old + 0.005 * new)


GOLDEN = {
    "small": {"actor_rows": 6},
    "official": {
        "network": "residual",
        "actor_rows": 6,
        "actor_updates": 2,
        "actor_decay": 1.5,
        "schedule": "constant",
    },
}


@pytest.mark.parametrize("preset", GOLDEN)
def test_three_steps_are_those_of_a_second_implementation_in_float64(preset: str) -> None:
    made, planned, critic_rows = agent(**GOLDEN[preset]).double(), 8, 4
    second = Reference(made, planned * made.config.actor_updates)
    table = rows_of(64, dtype=torch.float64)

    def gather(indices: Tensor) -> Rows:
        return {name: value[indices] for name, value in table.items()}

    learner = Learner(
        [made],
        [5],
        Uniform(gather, 64),
        batch_size=critic_rows,
        planned_steps=planned,
        dtype=torch.float64,
        stacked=False,
    )
    for step in range(3):
        rows = gather(learner.sources[MAIN].rows(step)[0])
        noise = {name: value[0] for name, value in learner.stream.at(step).items()}
        learner.run(1)
        second.step(rows, noise, critic_rows)
        for name, value in learner.agent.noise_network.named_parameters():
            torch.testing.assert_close(value.detach(), second.noise[name].detach(), rtol=1e-6, atol=1e-9)
        for name, value in learner.agent.average_noise_network.named_parameters():
            torch.testing.assert_close(value.detach(), second.average[name], rtol=1e-6, atol=1e-9)
        pairs = [(learner.agent.value.mlp, None, second.value)]
        pairs += [(learner.agent.feasible_value_network.mlp, None, second.value_h)]
        for own, others in (
            (learner.agent.critic, second.critics),
            (learner.agent.target_critic, second.targets),
            (learner.agent.feasible_critic, second.critics_h),
            (learner.agent.target_feasible_critic, second.targets_h),
        ):
            pairs += [(own.mlp, member, other) for member, other in enumerate(others)]
        for mlp, member, other in pairs:
            for mine, theirs in zip(layers(mlp, member).parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("preset", GOLDEN)
def test_stacked_seeds_equal_each_seed_alone(preset: str) -> None:
    table = rows_of(64, dtype=torch.float64)

    def gather(indices: Tensor) -> Rows:
        return {name: value[indices] for name, value in table.items()}

    def learner(seeds: list[int]) -> Learner:
        agents: list[Agent] = [agent(seed, **GOLDEN[preset]).double() for seed in seeds]
        return Learner(agents, seeds, Uniform(gather, 64), batch_size=4, planned_steps=20, dtype=torch.float64)

    together = learner([3, 0])
    together.run(10)
    for position, seed in enumerate([3, 0]):
        alone = learner([seed])
        alone.run(10)
        own, other = together.state(position), alone.state(0)
        for name, value in other.items():
            torch.testing.assert_close(own[name], value, rtol=1e-8, atol=1e-10, msg=name)


# -- data --------------------------------------------------------------------------------------------------------------


def recorded(**changes: Any) -> Dataset:
    """Two episodes of three steps; the first violates and ends the task, the second runs out of time."""
    columns: dict[str, Any] = {
        "observations": np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32),
        "actions": np.zeros((6, 2), np.float32),
        "rewards": np.array([1, 1, 1, 0, 1, 0], np.float32),
        "next_observations": np.zeros((6, 3), np.float32),
        "terminations": np.array([0, 0, 1, 0, 0, 0], bool),
        "truncations": np.array([0, 0, 0, 0, 0, 1], bool),
        "episode_ids": np.array([0, 0, 0, 1, 1, 1]),
        "valid": np.ones(6, bool),
        "costs": np.array([0, 0, 1, 0, 0, 0], np.float32),
        "name": "six steps",
    }
    return Dataset(**{**columns, **changes})


def test_time_outs_end_the_task_only_where_asked() -> None:
    kept = agent().prepare(recorded())
    assert kept.terminations.tolist() == [0, 0, 1, 0, 0, 0]
    faithful = agent(timeouts_end=True).prepare(recorded())
    assert faithful.terminations.tolist() == [0, 0, 1, 0, 0, 1]
    assert faithful.truncations.tolist() == recorded().truncations.tolist()


def test_prepared_data_hold_the_signal_and_scaled_rewards() -> None:
    made = agent()
    ready = made.prepare(recorded())
    assert ready.extras["signals"].tolist() == [-1, -1, 25, -1, -1, -1]
    np.testing.assert_allclose(ready.rewards, recorded().rewards * 3 / (3 - 1))  # steps of an episode over the range
    assert made.notes(recorded()) == [
        "fisor: constraint signal h is the published signal: -1 on a safe step, 25 on a violating one"
    ]
    store_from_dataset(ready, made.required_columns)
    margins = np.array([1, 1, -2, 1, 1, 1], np.float32)
    signed = agent().prepare(recorded(extras={"margins": margins}))
    assert signed.extras["signals"].tolist() == (-margins).tolist()


def test_data_that_fisor_can_not_learn_from_are_refused_or_said_to_teach_nothing() -> None:
    with pytest.raises(DataError, match="has no costs"):
        agent().prepare(recorded(costs=None))
    with pytest.raises(DataError, match=r"costs\[1\] is -1"):
        agent().prepare(recorded(costs=np.array([0, -1, 0, 0, 0, 0], np.float32)))
    assert "all 6 costs are zero" in agent().notes(recorded(costs=np.zeros(6, np.float32)))[1]
    with pytest.raises(DataError, match="all 2 episodes return 0"):
        agent().prepare(recorded(rewards=np.zeros(6, np.float32)))


@pytest.mark.parametrize(
    "options",
    [{"signal": "margins"}, {"cost_expectile": 1.0}, {"cost_weight_min": 151.0}, {"samples": 0}, {"network": "conv"}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"fisor.{next(iter(options))} is"):
        agent(**options)


def test_the_presets_are_the_two_sizes() -> None:
    official, small = FISOR.configure(preset="official"), FISOR.configure()
    assert small == FISOR.configure(preset="small")
    assert (official.network, official.width, official.blocks, official.dropout) == ("residual", 256, 3, 0.1)
    assert (official.actor_rows, official.actor_updates, official.samples) == (1024, 2, 16)
    assert (official.signal, official.violation, official.timeouts_end) == ("published", 25.0, True)
    assert (official.choice, official.normalization) == ("lowest", "none")
    assert (small.choice, small.reward_temperature, official.reward_temperature) == ("feasible", 0.5, 3.0)
    assert (official.actor_learning_rate, official.actor_decay, official.learning_rate) == (3e-4, 1.5, 3e-4)
    assert (small.schedule, official.schedule) == ("cosine", "constant")
    assert (small.network, small.noise_hidden, small.actor_rows, small.samples) == ("mlp", (256, 256), 256, 8)


def test_feasible_values_are_asked_in_the_units_of_the_environment() -> None:
    torch.manual_seed(0)
    made = FISOR(Spec(3, 2, (0.0, -2.0), (4.0, 2.0)), **SMALL)
    made.normalizer.fit(torch.randn(100, 3) * 5 + 2)
    seen = torch.randn(10, 3) * 5 + 2
    normal = (seen - made.normalizer.mean) / made.normalizer.scale
    torch.testing.assert_close(made.feasible_value(seen), made.feasible_value_network(normal))
    scaled = torch.cat([normal, torch.tensor([[0.5, -1.0]]).expand(10, -1)], 1)  # of action (3, -2)
    expected = made.target_feasible_critic(scaled).amax(0)
    torch.testing.assert_close(made.feasible_action_value(seen, torch.tensor([[3.0, -2.0]]).expand(10, -1)), expected)
