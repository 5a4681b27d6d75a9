"""Discrete CQL: its loss by hand, full updates against torch's own layers, and values that are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data import Dataset, from_arrays
from surefoot.data.store import store_from_dataset
from surefoot.offline import DiscreteCQL

STATES, DISCOUNT = 5, 0.9


def chain(episodes: int = 80, both: bool = True) -> Dataset:
    """Steps to the left and right along five states in a row; the last one ends the episode with a reward of 1.

    Args:
        episodes: of at most 20 steps, from a random state.
        both: choices are random; False: always to the right.
    """
    draws, rows = np.random.default_rng(0), []
    for _ in range(episodes):
        state = int(draws.integers(0, STATES - 1))
        for step in range(20):
            choice = int(draws.integers(0, 2)) if both else 1
            following = max(0, state - 1) if choice == 0 else state + 1
            ended = following == STATES - 1
            rows.append((state, choice, float(ended), ended, step == 19 and not ended, following))
            state = following
            if ended:
                break
    states, choices, rewards, ends, cut, after = (np.array(column) for column in zip(*rows, strict=True))
    one_hot = np.eye(STATES, dtype=np.float32)
    flags: dict[str, Any] = {"terminations": ends, "truncations": cut, "next_observations": one_hot[after]}
    return from_arrays(one_hot[states], choices, rewards, choices=2, **flags)


def test_the_loss_is_the_formulas_by_hand() -> None:
    agent = DiscreteCQL(Spec.of_choices(1, 2), hidden=(1,), cql_weight=0.5, discount=0.5).double()
    for network, values in ((agent.critic, (1.0, 2.0)), (agent.target_critic, (3.0, 0.5))):
        for parameter in network.parameters():  # every value is the last layer's bias
            torch.nn.init.zeros_(parameter)
        list(network.parameters())[-1].data.copy_(torch.tensor(values))
    rows = {
        "observations": [[1.0], [1.0]],
        "actions": [[1.0, 0.0], [0.0, 1.0]],
        "rewards": [1.0, 4.0],
        "terminations": [0.0, 1.0],
        "next_observations": [[1.0], [1.0]],
    }
    batch = {name: torch.tensor(value, dtype=torch.float64) for name, value in rows.items()}
    # Q = (1, 2) everywhere; next the second choice is preferred, which the target values at 0.5.
    # Targets 1 + 0.5 * 0.5 = 1.25 and 4; errors -0.25 and -2: Huber's loss 0.03125 and 1.5
    soft = math.log(math.e + math.e**2)
    by_hand = (0.03125 + 1.5) / 2 + 0.5 * ((soft - 1) + (soft - 2)) / 2
    loss, metrics = agent.critic_loss(batch, {})
    assert float(loss) == pytest.approx(by_hand, rel=1e-12)
    assert metrics["cql_gap"].tolist() == pytest.approx([soft - 1, soft - 2])


def trained(agents: list[DiscreteCQL], data: Dataset, steps: int, seeds: tuple[int, ...] = (0,)) -> Learner:
    """A Learner of these agents after some steps on the data."""
    ready = [agent.prepare(data) for agent in agents][-1]
    sources = agents[0].sources(Stores(ready, store_from_dataset(ready, agents[0].required_columns)))
    learner = Learner(agents, seeds, sources, batch_size=64, planned_steps=steps)
    learner.run(steps)
    return learner


def test_full_updates_equal_the_second_implementation() -> None:
    data, weight, rate = chain(), 0.7, 0.1
    options: dict[str, Any] = {"hidden": (6,), "cql_weight": weight, "target_rate": rate, "normalization": "none"}
    agent = DiscreteCQL(data, **options).fresh(3).double()
    ready = agent.prepare(data)
    values, target = layers(agent.critic.mlp), layers(agent.target_critic.mlp)
    adam = torch.optim.Adam(values.parameters(), lr=agent.config.learning_rate)
    rows = [torch.from_numpy(np.random.default_rng(k).integers(0, len(ready), 16)) for k in range(4)]
    optimizer = torch.optim.Adam(agent.critic.parameters(), lr=agent.config.learning_rate)
    for some in rows:
        batch: dict[str, Tensor] = {
            name: torch.from_numpy(np.asarray(getattr(ready, name), np.float64))[some]
            for name in ("observations", "actions", "rewards", "terminations", "next_observations")
        }
        chosen, picked = batch["actions"].argmax(-1), torch.arange(16)
        with torch.no_grad():
            best = values(batch["next_observations"]).argmax(-1)
            after = target(batch["next_observations"])[picked, best]
            goal = batch["rewards"] + 0.99 * (1 - batch["terminations"]) * after
        found = values(batch["observations"])
        loss = nn.functional.smooth_l1_loss(found[picked, chosen], goal)
        loss = loss + weight * nn.functional.cross_entropy(found, chosen)  # log sum exp Q - Q(a) is its other name
        adam.zero_grad()
        loss.backward()
        adam.step()
        optimizer.zero_grad()
        agent.critic_loss(batch, {})[0].backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(target.parameters(), values.parameters(), strict=True):
                mine.lerp_(theirs, rate)
            for mine, theirs in zip(agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
                mine.lerp_(theirs, rate)
    for mine, theirs in zip(layers(agent.critic.mlp).parameters(), values.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_dqn_from_data_alone_finds_the_values_of_the_chain() -> None:
    data, options = chain(), {"hidden": (32,), "discount": DISCOUNT, "learning_rate": 3e-3, "target_rate": 0.05}
    agent = DiscreteCQL(data, normalization="none", cql_weight=0.0, **options).fresh(0)
    learned = trained([agent], data, 1500).extract(0)
    values = learned.critic(torch.eye(STATES)[:-1])
    right = torch.tensor([DISCOUNT ** (STATES - 2 - state) for state in range(STATES - 1)])
    left = DISCOUNT * torch.tensor([right[max(0, state - 1)] for state in range(STATES - 1)])
    torch.testing.assert_close(values.detach(), torch.stack([left, right], -1), rtol=0, atol=0.03)
    assert learned.policy()(torch.eye(STATES)[:-1]).tolist() == [1, 1, 1, 1]


def test_choices_that_the_data_never_take_are_valued_below_those_that_they_do() -> None:
    data = chain(both=False)
    for weight, below in ((1.0, True), (0.0, False)):
        options = {"hidden": (16,), "discount": DISCOUNT, "normalization": "none", "learning_rate": 3e-3}
        agent = DiscreteCQL(data, cql_weight=weight, **options).fresh(1)
        with torch.no_grad():  # the choice that is never taken looks best before anything is learned
            list(agent.critic.parameters())[-1].copy_(torch.tensor([2.0, 0.0]))
        values = trained([agent], data, 500).extract(0).critic(torch.eye(STATES)[:-1])
        assert bool((values[:, 1] > values[:, 0]).all()) == below


def test_continuous_actions_are_refused_with_who_learns_them() -> None:
    with pytest.raises(ConfigError, match=r"discrete_cql learns discrete actions, .*continuous"):
        DiscreteCQL(Spec(3, 1, (-1.0,), (1.0,)))
