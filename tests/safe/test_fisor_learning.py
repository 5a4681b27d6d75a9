"""FISOR learns the set that can be kept safe, and acts well inside it; with a sign flipped it does neither."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.engine.agent import Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.safe.fisor import FISOR, feasibility_weights, feasible_target

BELT, WALL = 0.2, 0.6
"""Where the floor begins to move, and where it has carried one into a violation."""


def moved(x: Any, action: Any, where: Any) -> Any:
    """x + 0.1 a, but on the belt, right of 0.2, x + 0.04 + 0.02 a: there is no way back from it."""
    return where(x <= BELT, x + 0.1 * action, x + 0.04 + 0.02 * action).clip(-1, 1)


def corridor(rows: int = 6000) -> Dataset:
    """Places and actions uniform in [-1, 1]; beyond 0.6 violates, so safe for ever is x <= 0.2. The reward is a."""
    source = np.random.default_rng(0)
    x, action = source.uniform(-1, 1, (2, rows))
    following = moved(x, action, np.where)
    return Dataset(
        observations=x[:, None].astype(np.float32),
        actions=action[:, None].astype(np.float32),
        rewards=action.astype(np.float32),
        next_observations=following[:, None].astype(np.float32),
        terminations=np.zeros(rows, bool),
        truncations=np.arange(rows) % 20 == 19,
        episode_ids=np.arange(rows) // 20,
        valid=np.ones(rows, bool),
        costs=(following > WALL).astype(np.float32),
        extras={"margins": (WALL - following).astype(np.float32)},
        name="corridor",
    )


def trained(kind: type[FISOR] = FISOR, steps: int = 2500, **options: Any) -> FISOR:
    dataset = corridor()
    torch.manual_seed(0)
    given = {
        "hidden": (48, 48),
        "noise_hidden": (48, 48),
        "discount": 0.97,
        "cost_expectile": 0.95,
        "choice": "lowest",
        **options,
    }
    rates = {"learning_rate": 1e-3, "target_rate": 0.02, "average_rate": 0.01, "cost_temperature": 20.0}
    agent = kind(dataset, **rates, **given)
    store = store_from_dataset(agent.prepare(dataset), agent.required_columns)
    learner = Learner([agent], [0], Uniform(store), batch_size=128, planned_steps=steps, kernels=True)
    learner.run(steps)
    found = learner.extract(0)
    assert isinstance(found, FISOR)
    return found


def agreement(agent: FISOR) -> float:
    """Share of places in [-1, 1] where the learned set says what is true."""
    places = torch.linspace(-0.99, 0.99, 199).unsqueeze(1)
    return float(((agent.feasible_value(places) <= 0) == (places.squeeze(1) <= BELT)).float().mean())


def walked(agent: FISOR) -> np.ndarray:
    """(40, 64) places of 64 walks from safe ones, after each of 40 steps."""
    policy = agent.policy()
    x, places = torch.linspace(-0.9, 0.15, 64).unsqueeze(1), []
    memory = policy.begin(64)
    for _ in range(40):
        actions, memory = policy.act(x, memory)
        x = moved(x, actions, torch.where)
        places.append(x.squeeze(1).numpy())
    return np.array(places)


def test_the_corridor_is_learned_and_walked_to_the_wall_but_not_beyond() -> None:
    agent = trained(choice="lowest", reward_temperature=3.0)  # as published
    assert agreement(agent) > 0.93
    places = walked(agent)
    assert (places > WALL).mean() < 0.04  # .01 to .024 over seeds; of choices at the boundary above .1
    assert places[-1].mean() > -0.1  # it goes where the reward is, as far as it may


@pytest.mark.parametrize("choice", ["feasible", "best"])
def test_choices_that_go_to_the_learned_boundary_walk_over_it_without_a_reserve(choice: str) -> None:
    agent = trained(choice=choice, reserve=0.0, reward_temperature=3.0)
    assert agreement(agent) > 0.93
    assert (walked(agent) > WALL).mean() > 0.1


def test_a_reserve_keeps_the_first_feasible_action_from_the_boundary() -> None:
    agent = trained(reserve=0.5)
    assert float(agent.reserve) == pytest.approx(0.5 * float(np.std(corridor().extras["margins"])), rel=1e-5)
    over, end = {}, {}
    for reserve in (0.0, float(agent.reserve)):
        agent.reserve.fill_(reserve)
        agent.config = dataclasses.replace(agent.config, choice="feasible")
        places = walked(agent)
        over[reserve], end[reserve] = float((places > WALL).mean()), float(places[-1].mean())
    most = max(over)
    assert over[most] < 0.02 < 0.05 < over[0.0]
    assert -0.3 < end[most] < end[0.0]  # and it still goes where the reward is


class Forward(FISOR):
    """The slip: the expectile of the worst action in the data instead of the best."""

    def feasible_value_loss(self, batch: Any, noise: Any) -> Any:
        """Weighs positive residuals more."""
        u = batch["target_q_h"] - self.feasible_value_network(batch["observations"])
        return (torch.where(u > 0, 0.95, 0.05) * u.square()).mean(), {}

    def updates(self) -> list[Update]:
        """Of the constraint alone."""
        return super().updates()[3:]


class Flipped(FISOR):
    """The slip: the backup takes the smaller of signal and next value."""

    def feasible_critic_loss(self, batch: Any, noise: Any) -> Any:
        """With min for max."""
        following = self.feasible_value_network(batch["next_observations"])
        target = -feasible_target(-batch["signals"], batch["terminations"], -following, self.config.discount)
        return (self.feasible_critic(batch["observation_actions"]) - target).square().mean(), {}

    def updates(self) -> list[Update]:
        """Of the constraint alone."""
        return super().updates()[3:]


class Constraint(FISOR):
    """The right one, for its set alone."""

    def updates(self) -> list[Update]:
        """Of the constraint alone."""
        return super().updates()[3:]


@pytest.mark.parametrize("slipped", [Forward, Flipped])
def test_a_flipped_sign_in_the_feasible_value_loses_the_set(slipped: type[FISOR]) -> None:
    assert agreement(trained(Constraint, 1500)) > 0.93
    assert agreement(trained(slipped, 1500)) < 0.9


class Reckless(FISOR):
    """The slip: weights that prefer the actions of larger constraint value."""

    def actor_loss(self, batch: Any, noise: Any) -> Any:
        """With Q_h and V_h of the other sign."""
        seen = batch["observations"]
        weight = feasibility_weights(
            -self.feasible_value_network(seen), -batch["target_q_h"], batch["target_q"] - self.value(seen)
        ).detach()
        steps = self.schedule.step_of(noise["step"].squeeze(-1))
        noisy = self.schedule.noisy(batch["actions"], noise["noise"], steps)
        error = (self.noise_network(noisy, seen, steps) - noise["noise"]).square().sum(-1)
        return (weight * error).mean(), {}


def test_flipped_weights_walk_into_the_violation() -> None:
    assert (walked(trained(Reckless, samples=1)) > WALL).mean() > 0.05
