"""FISOR's equations by numbers, each slip easily made in them, and a whole update by a second implementation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from torch import Tensor

from surefoot.core.agent import Agent, Spec
from surefoot.core.diffusion import DiffusionActor
from surefoot.core.errors import ConfigError, DataError
from surefoot.core.learner import Learner
from surefoot.core.sources import MAIN, Uniform
from surefoot.core.value_learning import expectile_loss
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.safe.feasibility import feasibility_weights, feasible_target
from surefoot.safe.fisor import FISOR

SPEC = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"hidden": (8, 8), "noise_hidden": (8, 8), "width": 8, "blocks": 2}
Rows = dict[str, Tensor]


def agent(seed: int = 0, **options: Any) -> FISOR:
    torch.manual_seed(seed)
    made = FISOR(SPEC, **{**SMALL, **options})
    with torch.no_grad():  # targets and averages that can be told from what they follow
        for name, parameter in made.named_parameters():
            if name.startswith(("target", "average")):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def rows_of(count: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Rows:
    source = torch.Generator().manual_seed(seed)
    observations, following = (torch.randn(count, 3, generator=source, dtype=dtype) for _ in range(2))
    actions = torch.rand(count, 2, generator=source, dtype=dtype) * 2 - 1
    return {
        "observations": observations,
        "actions": actions,
        "rewards": torch.randn(count, generator=source, dtype=dtype),
        "signals": torch.randn(count, generator=source, dtype=dtype),
        "terminations": (torch.rand(count, generator=source) < 0.3).to(dtype),
        "next_observations": following,
        "observation_actions": torch.cat([observations, actions], -1),
    }


def drawn(made: FISOR, count: int, seed: int = 2, dtype: torch.dtype = torch.float32) -> Rows:
    """Noise for an update of the actor."""
    source = np.random.default_rng(seed)
    noises = made.updates()[0].noise
    return {name: torch.from_numpy(kind.draw(source, (count,))).to(dtype) for name, kind in noises.items()}


# -- the equations by numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tau", "least"), [(0.5, 0.5), (0.7, 0.395644), (0.9, 0.25), (0.95, 0.186605), (0.99, 0.091325)]
)
def test_the_reverse_expectile_of_uniform_numbers_goes_to_their_minimum(tau: float, least: float) -> None:
    samples = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    assert least == pytest.approx(math.sqrt(1 - tau) / (math.sqrt(1 - tau) + math.sqrt(tau)), abs=1e-6)

    def slope(value: float, expectile: float) -> float:
        v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(expectile_loss(samples - v, expectile).mean(), v)[0])

    assert slope(least, 1 - tau) == pytest.approx(0, abs=1e-5)  # what FISOR's feasible value minimises
    assert slope(1 - least, tau) == pytest.approx(0, abs=1e-5)  # and its reward value
    if tau > 0.5:
        assert abs(slope(least, tau)) > 0.1  # the other direction is elsewhere


@pytest.mark.parametrize(
    ("signals", "values"), [((-1, -1, 25), (24.4826, 24.74, 25)), ((-1, -1, 1), (0.9602, 0.98, 1))]
)
def test_the_backup_of_a_violation_ahead(signals: tuple[float, ...], values: tuple[float, ...]) -> None:
    following, found = torch.zeros(1), []
    for turn, h in enumerate(reversed(signals)):  # the last step is terminal
        terminal = torch.tensor([1.0 if turn == 0 else 0.0])
        following = feasible_target(torch.tensor([float(h)]), terminal, following, 0.99)
        found.append(float(following))
    assert found[::-1] == pytest.approx(values, abs=5e-5)


@pytest.mark.parametrize(("violation", "last"), [(25.0, 324), (1.0, 68)])
def test_how_far_ahead_a_violation_shows(violation: float, last: int) -> None:
    value, going, step = torch.tensor([violation], dtype=torch.float64), torch.zeros(1), 0
    while float(value) > 0:
        value, step = feasible_target(torch.full((1,), -1.0).double(), going, value, 0.99), step + 1
    assert step == last + 1


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 1.0])
def test_a_signal_that_stays_is_its_own_value(discount: float) -> None:
    h = torch.tensor([-1.0, 0.3])
    torch.testing.assert_close(feasible_target(h, torch.zeros(2), h, discount), h)


def test_the_backup_is_a_contraction_monotone_and_never_below_the_signal() -> None:
    going = torch.zeros(1000).double()
    for seed in range(20):
        source = torch.Generator().manual_seed(seed)
        h, one, other = (torch.randn(1000, generator=source).double() for _ in range(3))
        first, second = (feasible_target(h, going, v, 0.9) for v in (one, other))
        assert (first - second).abs().max() <= 0.9 * (one - other).abs().max() + 1e-12
        assert (first >= h - 1e-12).all()
        assert (feasible_target(h, going, torch.maximum(one, other), 0.9) >= torch.maximum(first, second) - 1e-12).all()
        assert (feasible_target(h + 1, going, one, 0.9) >= first).all()
        above = h.max() + 1 + one.abs()
        raised = feasible_target(h, going, above + 2, 0.9) - feasible_target(h, going, above, 0.9)
        torch.testing.assert_close(raised, torch.full((1000,), 1.8).double())  # equality is attained


def test_a_terminal_step_is_worth_its_signal_whatever_follows() -> None:
    h, following = torch.tensor([-1.0, 2.0]), torch.tensor([7.0, 7.0])
    ends = torch.ones(2)
    assert feasible_target(h, ends, following, 0.9).tolist() == [-1.0, 2.0]
    slipped = (1 - 0.9) * h + 0.9 * torch.maximum(h, (1 - ends) * following)  # the mask on the next value alone
    assert slipped.tolist() != [-1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "q", "advantage", "weight"),
    [
        (-1.0, 0.1, 0.0, 0.0),
        (-1.0, -1.0, 0.0, 1.0),
        (-1.0, -1.0, 10.0, 100.0),
        (1.0, 1.0, 0.0, 1.0),
        (1.0, 0.0, 0.0, math.exp(5)),
        (1.0, -1.0, 0.0, 150.0),
        (0.0, -1.0, 0.5, math.exp(1.5)),  # V_h = 0 is feasible
        (-1.0, 0.0, 0.5, math.exp(1.5)),  # and Q_h = 0 allowed
        (1.0, 2.0, 9.0, math.exp(-5)),  # no reward counts in an infeasible state
    ],
)
def test_weights_by_the_signs_of_the_feasible_values(value: float, q: float, advantage: float, weight: float) -> None:
    found = feasibility_weights(*(torch.tensor([x]) for x in (value, q, advantage)))
    assert float(found) == pytest.approx(weight, rel=1e-6)


def test_the_floor_of_the_metadrive_branch_keeps_every_infeasible_row() -> None:
    value, q = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 1.0])
    found = feasibility_weights(value, q, torch.zeros(2), cost_limits=(1.0, 150.0))
    assert found.tolist() == [1.0, 0.0]  # the floor is of infeasible states only
    assert float(feasibility_weights(value, q, torch.zeros(2))[0]) == pytest.approx(math.exp(-5))


# -- slips that are easily made ----------------------------------------------------------------------------------------


def test_slip_1_the_feasible_value_weighs_negative_residuals_more() -> None:
    made, rows = agent(), rows_of(200)
    rows = made.annotate(rows)
    value = made.feasible_value_network(rows["observations"])
    u = rows["target_q_h"] - value
    loss, _ = made.feasible_value_loss(rows, {})
    assert float(loss) == pytest.approx(float((torch.where(u < 0, 0.9, 0.1) * u**2).mean()), rel=1e-5)
    slipped = float((torch.where(u > 0, 0.9, 0.1) * u**2).mean())
    assert abs(slipped / float(loss) - 1) > 0.1
    reward, _ = made.value_loss(rows, {})
    v = rows["target_q"] - made.value(rows["observations"])
    assert float(reward) == pytest.approx(float((torch.where(v > 0, 0.9, 0.1) * v**2).mean()), rel=1e-5)


def test_slip_2_the_larger_constraint_critic_counts_and_the_smaller_reward_critic() -> None:
    made, rows = agent(), rows_of(200)
    pairs, found = rows["observation_actions"], made.annotate(rows)
    reward, constraint = made.target_critic(pairs), made.target_feasible_critic(pairs)
    assert torch.equal(found["target_q"], torch.minimum(*reward))
    assert torch.equal(found["target_q_h"], torch.maximum(*constraint))
    assert (reward[0] - reward[1]).abs().min() > 0
    assert not torch.equal(found["target_q_h"], torch.minimum(*constraint))


@pytest.mark.parametrize("choice", ["feasible", "best"])
def test_the_choice_is_a_feasible_action_or_else_the_safest(choice: str) -> None:
    made, seen = agent(choice=choice, samples=6), torch.randn(200, 3)
    noise = torch.randn(200, made.actor.noise_dim)
    with torch.no_grad():  # so that about half of the actions are feasible
        made.target_feasible_critic.mlp.weights[-1].mul_(20)
        made.reserve.fill_(0.1)
        taken = made.actor.act(seen, noise)
        each = noise.unflatten(-1, (6, -1))
        alone = DiffusionActor(made.average_noise_network, made.schedule, 2)
        drawn = torch.stack([alone.act(seen, each[:, sample]) for sample in range(6)], 1)
        pairs = torch.cat([seen.unsqueeze(1).expand(-1, 6, -1), drawn], -1)
        values = made.target_feasible_critic(pairs.flatten(0, 1)).amax(0).view(200, 6)
        returns = made.target_critic(pairs.flatten(0, 1)).amin(0).view(200, 6)
    kinds = set()
    for row in range(200):
        feasible = [sample for sample in range(6) if values[row, sample] <= -0.1]
        liked = feasible[:1] if choice == "feasible" else sorted(feasible, key=lambda sample: -returns[row, sample])
        sample = liked[0] if liked else int(values[row].argmin())
        kinds.add((bool(feasible), sample == int(values[row].argmin())))
        torch.testing.assert_close(taken[row], drawn[row, sample])
    assert {(True, False), (False, True)} <= kinds  # both cases came up, and the chosen one is not always the safest
    assert ((values > -0.1) & (values <= 0)).any()  # and the reserve made a difference


def test_slip_3_target_critics_stand_in_weights_value_losses_and_choice() -> None:
    made, rows, noise = agent(), rows_of(50), drawn(agent(), 50)
    seen, numbers = rows["observations"], torch.randn(50, made.actor.noise_dim)

    def told() -> list[Tensor]:
        annotated = made.annotate(rows)
        losses = [loss(annotated, noise)[0] for loss in (made.actor_loss, made.value_loss, made.feasible_value_loss)]
        return [torch.stack(losses).detach(), made.actor.act(seen, numbers).detach()]

    before = told()
    with torch.no_grad():
        for parameter in (*made.critic.parameters(), *made.feasible_critic.parameters()):
            parameter.normal_()
    assert all(torch.equal(now, then) for now, then in zip(told(), before, strict=True))
    with torch.no_grad():
        for parameter in (*made.target_critic.parameters(), *made.target_feasible_critic.parameters()):
            parameter.normal_()
    assert not any(torch.equal(now, then) for now, then in zip(told(), before, strict=True))


def test_slip_4_errors_are_summed_over_dimensions_then_weighted_then_averaged() -> None:
    made, rows, noise = agent(), rows_of(40), drawn(agent(), 40)
    rows = made.annotate(rows)
    loss, metrics = made.actor_loss(rows, noise)
    steps = made.schedule.step_of(noise["step"].squeeze(-1))
    predicted = made.noise_network(
        made.schedule.noisy(rows["actions"], noise["noise"], steps), rows["observations"], steps
    )
    by_hand = 0.0
    for row in range(40):  # also slip 11: a row at a time, nothing is broadcast by accident
        error = sum(float(predicted[row, d] - noise["noise"][row, d]) ** 2 for d in range(2))
        by_hand += float(metrics["weight"][row]) * error / 40
    assert metrics["weight"].shape == (40,)
    assert float(loss) == pytest.approx(by_hand, rel=1e-5)
    errors = (predicted - noise["noise"]).square()
    assert float((metrics["weight"] * errors.mean(-1)).mean()) == pytest.approx(by_hand / 2, rel=1e-5)  # the slip
    assert abs(float(metrics["weight"].mean() * errors.sum(-1).mean()) / by_hand - 1) > 0.01  # another


def test_slips_5_and_6_the_averaged_network_acts_without_dropout() -> None:
    made = agent(network="residual", dropout=0.5)
    seen, numbers = torch.randn(20, 3), torch.randn(20, made.actor.noise_dim)
    policy = made.policy()
    first = policy(seen, numbers)
    assert torch.equal(policy(seen, numbers), first)
    actor = policy.actor
    assert isinstance(actor, DiffusionActor)
    for (name, own), (_, average) in zip(
        actor.network.named_parameters(), made.average_noise_network.named_parameters(), strict=True
    ):
        assert torch.equal(own, average), name
    with torch.no_grad():
        for parameter in made.noise_network.parameters():
            parameter.normal_()
    assert torch.equal(made.policy()(seen, numbers), first)
    masked = made.average_noise_network(torch.ones(1, 2), seen[:1], torch.zeros(1), torch.zeros(1, 16))
    assert not torch.equal(masked, made.average_noise_network(torch.ones(1, 2), seen[:1], torch.zeros(1)))


def test_slip_11_losses_of_the_critics_are_those_of_a_loop_over_rows() -> None:
    made, rows = agent(), rows_of(30)
    c = made.config
    reward, constraint = (loss(rows, {})[0] for loss in (made.critic_loss, made.feasible_critic_loss))
    sums = [0.0, 0.0]
    for row in range(30):
        one = {name: value[row : row + 1] for name, value in rows.items()}
        r, h, d = (float(one[name]) for name in ("rewards", "signals", "terminations"))
        v = float(made.value(one["next_observations"]))
        v_h = float(made.feasible_value_network(one["next_observations"]))
        y = r + c.discount * (1 - d) * v
        y_h = h if d else (1 - c.discount) * h + c.discount * max(h, v_h)
        sums[0] += sum((float(q) - y) ** 2 for q in made.critic(one["observation_actions"]).flatten())
        sums[1] += sum((float(q) - y_h) ** 2 for q in made.feasible_critic(one["observation_actions"]).flatten())
    assert float(reward) == pytest.approx(sums[0] / 60, rel=1e-5)
    assert float(constraint) == pytest.approx(sums[1] / 60, rel=1e-5)


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
    store_from_dataset(ready, made.reads)
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
