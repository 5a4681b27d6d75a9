"""Policies and critics over the last observations: windows, what leaves, a problem that one observation can't solve."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.actors.histories import windows
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline import ALGORITHMS, BC, IQL
from surefoot.online import ALGORITHMS as ONLINE
from surefoot.safe import ALGORITHMS as SAFE

SPEC = Spec(1, 1, (-1.0,), (1.0,))
FROM_DATA = {**{name: agent for name, agent in SAFE.items() if not agent.requires.online}, **ALGORITHMS}
REMEMBERING = sorted(name for name, agent in FROM_DATA.items() if hasattr(agent.Config, "history"))
SMALL = {
    "hidden": (32, 32),
    "vae_hidden": (8,),
    "learning_rate": 3e-3,
    "cost_limit": 2.0,
    "mode": "all",
    "rewards": "none",
}
"""Options of those that have them."""


def test_windows_end_at_each_row_and_at_what_followed_and_never_cross_an_episode() -> None:
    rows = np.array([[1.0], [2], [3], [10], [20]], np.float32)
    following = np.array([[2.0], [3], [4], [20], [30]], np.float32)
    now, then = windows(rows, following, np.array([0, 0, 0, 1, 1]), 3)
    assert now.tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 10], [0, 10, 20]]
    assert then.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 10, 20], [10, 20, 30]]


def velocities(count: int = 300, length: int = 4) -> Dataset:
    """Points that move by +-0.2 a step for ever; the action is the velocity's sign, which one position does not tell.

    The reward is 1 where the action has the sign, and 0 else; a tenth of the actions have the other one.
    """
    numbers, rows = np.random.default_rng(0), count * length
    sign = np.repeat(numbers.choice([-1.0, 1.0], count), length)
    step = np.arange(rows) % length
    place = np.repeat(numbers.uniform(-1, 1, count), length) + 0.2 * sign * step
    right = numbers.random(rows) > 0.1
    return Dataset(
        observations=place.astype(np.float32)[:, None],
        actions=(0.5 * sign * np.where(right, 1, -1)).astype(np.float32)[:, None],
        rewards=right.astype(np.float32),
        next_observations=(place + 0.2 * sign).astype(np.float32)[:, None],
        terminations=np.zeros(rows, bool),
        truncations=step == length - 1,
        episode_ids=np.arange(rows) // length,
        valid=np.ones(rows, bool),
        costs=(place > 0.5).astype(np.float32),
        name="velocities",
        extras={"expert": np.repeat(np.arange(count) % 2, length).astype(np.float32)},
    )


def trained(name: str, history: int, steps: int = 400, **options: Any) -> Policy:
    torch.manual_seed(0)
    kind: Any = FROM_DATA[name]
    given = {option: value for option, value in SMALL.items() if hasattr(kind.Config, option)}
    agent = kind(SPEC, history=history, **{**given, **options})
    ready = agent.prepare(velocities())
    assert ready.observations.shape[1] == history
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    rows = agent.sources(Stores(ready, store))
    Learner([agent], [0], rows, batch_size=64, planned_steps=steps, kernels=True).run(steps)
    return agent.policy()


def follows(policy: Policy) -> float:
    """Share of the second to fourth steps at which the policy's action has the sign of the velocity."""
    sign = torch.where(torch.arange(200) % 2 == 0, 1.0, -1.0)
    place, memory, hits = torch.linspace(-1, 1, 200), policy.begin(200), []
    for _ in range(4):
        action, memory = policy.act(place.unsqueeze(1), memory)
        hits.append(((action.squeeze(1) * sign) > 0).float().mean())
        memory = policy.observe_outcome(memory, torch.zeros(200), torch.zeros(200), torch.zeros(200, dtype=torch.bool))
        place = place + 0.2 * sign
    return float(torch.stack(hits[1:]).mean())


@pytest.mark.parametrize("name", ["bc", "iql", "td3bc", "bisim_iql"])
def test_two_observations_tell_the_velocity_and_one_does_not(name: str, tmp_path: pathlib.Path) -> None:
    policy = trained(name, 2)
    assert follows(policy) > 0.95
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    assert loaded.has_memory
    assert follows(loaded) == follows(policy)
    if name == "bc":
        assert follows(trained(name, 1)) < 0.75


@pytest.mark.parametrize("name", REMEMBERING)
def test_every_algorithm_that_has_the_option_trains_with_it_and_gives_a_policy_that_remembers(name: str) -> None:
    few = {"critics": 3} if hasattr(FROM_DATA[name].Config, "critics") else {}
    policy = trained(name, 3, steps=2, **few)
    assert policy.observation_dim == 1
    seen, noise = torch.linspace(-1, 1, 64).unsqueeze(1), torch.randn(64, policy.noise_dim)
    given = noise if policy.always_samples else None
    first, memory = policy.act(seen, policy.begin(64), given)
    again, _ = policy.act(seen, memory, given)
    assert not torch.equal(first, again)  # the window has moved


def test_a_policy_reads_while_acting_what_its_losses_read_in_training() -> None:
    torch.manual_seed(1)
    agent, dataset = BC(SPEC, hidden=(8,), history=3), velocities(4)
    ready = agent.prepare(dataset)
    policy, memory = agent.policy(), None
    for row in range(8):
        if row % 4 == 0:
            memory = policy.begin(1)
        action, memory = policy.act(torch.from_numpy(dataset.observations[row : row + 1]), memory)
        expected = agent.act(torch.from_numpy(ready.observations[row : row + 1]))
        torch.testing.assert_close(action, expected.detach())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BC(SPEC, history=0), r"bc\.history is 0, must be >= 1"),
        (lambda: IQL(Spec({"camera": Array((8, 8, 3), "uint8")}, 1, (-1.0,), (1.0,)), history=2), "of one vector"),
        (lambda: ONLINE["iql_online"](SPEC, history=2), r"iql_online\.history is 2, must be 1: .*; it acts"),
    ],
)
def test_where_histories_make_no_sense_they_are_refused(make: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()
