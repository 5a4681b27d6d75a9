"""What CQL and Cal-QL learn: returns-to-go, the bandit, and options that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from problems import agents, learner, random_store, spec
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import Code, ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import native
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import returns_to_go
from surefoot.data.store import Store
from surefoot.offline import CQL, CalQL

# -- returns-to-go -----------------------------------------------------------------------------------------


def episodes(rewards: list[list[float]], terminated: list[bool]) -> Dataset:
    lengths = [len(r) for r in rewards]
    ends = np.cumsum(lengths) - 1
    count = sum(lengths)
    flags = np.zeros((2, count), dtype=bool)
    flags[0, ends], flags[1, ends] = terminated, np.logical_not(terminated)
    return Dataset(
        name="made",
        observations=np.zeros((count, 3), np.float32),
        actions=np.zeros((count, 2), np.float32),
        rewards=np.concatenate(rewards).astype(np.float32),
        terminations=flags[0],
        truncations=flags[1],
        next_observations=np.zeros((count, 3), np.float32),
        episode_ids=np.repeat(np.arange(len(rewards)), lengths),
        valid=np.ones(count, bool),
    )


def test_returns_to_go_are_those_worked_out_by_hand_and_stop_at_episodes() -> None:
    data = episodes([[1, 2, 4], [8], [-5, -5]], [True, False, False])
    assert returns_to_go(data, 0.5).tolist() == [3, 4, 4, 8, -7.5, -5]
    assert returns_to_go(data, 0.5, failure_reward=-5.0).tolist() == [3, 4, 4, 8, -10, -10]
    with pytest.raises(ConfigError, match="infinite return"):
        returns_to_go(data, 1.0, failure_reward=-5.0)


def test_preparing_scales_rewards_first_and_an_episode_of_failures_is_worth_failing_forever() -> None:
    data = episodes([[0, 0, 1], [0, 0]], [True, False])
    agent = CalQL(spec(), preset="wsrl-antmaze", discount=0.99, hidden=(4,))
    ready = agent.prepare(data)
    assert ready.rewards.tolist() == [-5, -5, 5, -5, -5]
    assert ready.extras["returns_to_go"] == pytest.approx([-5 + 0.99 * (-5 + 0.99 * 5), -0.05, 5, -500, -500])
    assert float(agent.reward_scale) == 10
    assert float(agent.reward_shift) == -5


# -- what they learn ---------------------------------------------------------------------------------------

BANDIT = Spec(2, 1, (-1.0,), (1.0,))


def bandit(lowest: float, highest: float, slope: float) -> Store:
    """2,000 plays with actions in a range; reward slope * a, or -(a - 1/2)^2 without a slope."""
    source = torch.Generator().manual_seed(3)
    states = torch.rand(2000, 2, generator=source) * 2 - 1
    actions = lowest + (highest - lowest) * torch.rand(2000, 1, generator=source)
    rewards = slope * actions[:, 0] if slope else -(actions[:, 0] - 0.5).square()
    return Store.pack(
        {
            "observations": states,
            "actions": actions,
            "rewards": rewards,
            "terminations": torch.ones(2000),
            "next_observations": states,
            "returns_to_go": rewards,
        }
    )


def played(kind: type[CQL], store: Store, **options: Any) -> tuple[CQL, Tensor]:
    """The agent after 500 steps, and its actions at 200 states."""
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3, "temperature_learning_rate": 3e-2}
    options = {"hidden": (32, 32), "sampled_actions": 4, "target_entropy": -3.0, **rates, **options}
    agent = kind(BANDIT, **options).fresh(0)
    trains = Learner([agent], [0], Uniform(store), batch_size=64, kernels=True)
    trains.run(500)
    with torch.no_grad():
        return agent, agent.act(torch.rand(200, 2, generator=torch.Generator().manual_seed(4)) * 2 - 1).squeeze(1)


@pytest.mark.parametrize("kind", [CQL, CalQL])
def test_the_policy_finds_the_best_action_of_data_that_covers_all(kind: type[CQL]) -> None:
    _, actions = played(kind, bandit(-1, 1, 0.0), cql_weight=0.1)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.15)


def test_conservatism_keeps_the_policy_at_the_datas_actions_and_their_values_highest() -> None:
    """Rewards rise towards 1 but the data ends at 0: without the conservative term the critic's line leads beyond."""
    store = bandit(-1, 0, 1.0)
    _, greedy = played(CQL, store, cql_weight=0.0)
    agent, careful = played(CQL, store, cql_weight=5.0)
    assert greedy.mean().item() > 0.7
    assert careful.mean().item() < 0.3
    states = torch.zeros(2, 2)
    with torch.no_grad():
        inside, outside = agent.critic(torch.cat([states, torch.tensor([[-0.3], [0.9]])], 1)).mean(0).tolist()
    assert inside > outside + 0.5


def test_calql_pushes_values_down_less_far_than_cql() -> None:
    store = bandit(-1, 0, 1.0)
    states = torch.rand(100, 2, generator=torch.Generator().manual_seed(5)) * 2 - 1
    values = {}
    for kind in (CQL, CalQL):
        agent, _ = played(kind, store, cql_weight=5.0)
        with torch.no_grad():
            draws, _ = agent.actor.draw(states, torch.randn(20, 100, 1, generator=torch.Generator().manual_seed(6)))
            pairs = torch.cat([states.expand(20, -1, -1), draws], -1).flatten(0, 1)
            values[kind.name] = agent.critic(pairs).mean().item()
    assert values["calql"] > values["cql"] + 0.1


# -- engine and bad input ----------------------------------------------------------------------------------


@pytest.mark.skipif(native.library() is None, reason="tapes are run by the native module, which was not built")
@pytest.mark.parametrize("variant", ["cql", "calql", "cql-learned", "calql-kitchen", "cql-norm"])
def test_training_steps_run_from_a_tape(variant: str) -> None:
    trains = learner(agents(variant, [3]), [3], random_store(), kernels=True)
    trains.run(3)
    assert trains.eager_because() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": 3}, ("subset", "conflict")),
        ({"sampled_actions": 0}, ("sampled_actions", "range")),
        ({"cql_weight": -1.0}, ("cql_weight", "range")),
        ({"cql_weight": 0.0, "learn_cql_weight": True}, ("cql_weight", "conflict")),
        ({"cql_temperature": 0.0}, ("cql_temperature", "range")),
        ({"reward_scale": 0.0}, ("reward_scale", "range")),
        ({"preset": "walker"}, ("preset", "choice")),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        CQL.configure(**options)
    with refused("discount", "conflict"):
        CalQL.configure(failure_reward=-5.0, discount=1.0)
