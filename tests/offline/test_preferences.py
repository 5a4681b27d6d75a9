"""Rewards from comparisons: the likelihood by hand, a hidden reward that is found, and what is refused."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import DataError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.data.arrays import from_arrays
from surefoot.data.comparisons import by_sums
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline.preferences import PAIRS, Preferences


def walks(episodes: int = 40, steps: int = 20, seed: int = 0) -> Dataset:
    """Observations of two numbers anywhere; the hidden reward is 1 - |s_0| - a^2 / 2."""
    source, count = np.random.default_rng(seed), episodes * steps
    seen = source.uniform(-1, 1, (count + 1, 2)).astype(np.float32)
    acted = source.uniform(-1, 1, (count, 1)).astype(np.float32)
    ends = np.arange(count) % steps == steps - 1
    rewards = 1 - np.abs(seen[:-1, 0]) - acted[:, 0] ** 2 / 2
    return from_arrays(seen[:-1], acted, rewards, ends & False, ends, next_observations=seen[1:])


def made(dataset: Dataset, **options: Any) -> Preferences:
    small: dict[str, Any] = {"hidden": (32,), "horizon": 4, "learning_rate": 3e-3, **options}
    return Preferences(Spec.of(dataset, [-1.0], [1.0]), **small).fresh(0)


def trained(dataset: Dataset, steps: int, seeds: tuple[int, ...] = (0,), **options: Any) -> list[Preferences]:
    agents = [made(dataset, **options).fresh(seed) for seed in seeds]
    ready = agents[0].prepare(dataset)
    for agent in agents[1:]:
        agent.prepare(dataset)
    store = store_from_dataset(ready, agents[0].required_columns)
    learner = Learner(agents, list(seeds), agents[0].sources(Stores(ready, store)), batch_size=8)
    learner.run(steps)
    return [learner.extract(i) for i in range(len(seeds))]  # type: ignore[misc]


def labels(path: pathlib.Path, pairs: int = 40, length: int = 4, **changed: Any) -> str:
    source = np.random.default_rng(1)
    arrays: dict[str, Any] = {name: source.uniform(-1, 1, (pairs, length, 2)) for name in ("first", "second")}
    arrays |= {f"{name}_actions": source.uniform(-1, 1, (pairs, length, 1)) for name in ("first", "second")}
    sums = [(1 - np.abs(arrays[name][..., 0])).sum(1) for name in ("first", "second")]
    arrays["preferred"] = (sums[0] > sums[1]).astype(float)[:, None]
    np.savez(path, **{**arrays, **changed})
    return str(path)


def test_the_loss_by_hand() -> None:
    agent = made(walks(), members=2, hidden=(3,))
    with torch.no_grad():
        for parameter in agent.reward.parameters():
            parameter.zero_()
        agent.reward.biases[-1].copy_(torch.atanh(torch.tensor([[0.5], [-0.25]])))
    batch = {
        "first": torch.zeros(3, 4, 3),
        "second": torch.zeros(3, 4, 3),
        "preferred": torch.tensor([[1.0], [0], [0.5]]),
    }
    assert agent.sums(batch["first"]).tolist() == [pytest.approx([2.0] * 3), pytest.approx([-1.0] * 3)]
    loss, _ = agent.reward_loss(batch, {})
    assert loss.item() == pytest.approx(2 * math.log(2), rel=1e-6)  # equal sums say nothing, for both members
    moved = agent.reward
    with torch.no_grad():  # the reward is tanh of the last number of the input, of the first member alone
        moved.weights[0][0, 0, 2], moved.weights[1][0, 0, 0], moved.biases[1][0] = 1.0, 1.0, 0.0
        moved.biases[1][1] = 0.0
    batch["first"][:, :, 2] = math.atanh(0.25)  # sums of 1 and 0
    expected = (
        math.log1p(math.exp(-1)) + math.log1p(math.exp(1)) + 0.5 * (math.log1p(math.exp(-1)) + math.log1p(math.exp(1)))
    ) / 3
    assert agent.reward_loss(batch, {})[0].item() == pytest.approx(expected + math.log(2), rel=1e-5)


def test_sums_of_rewards_compare() -> None:
    first, second = torch.tensor([[1.0, 2], [0, 0], [1, 1]]), torch.tensor([[0.0, 2], [1, 0], [2, 0]])
    assert by_sums(first, second).tolist() == [[1.0], [0.0], [0.5]]


def test_a_hidden_reward_is_found_up_to_scale_and_offset() -> None:
    (agent,) = trained(walks(), 600)
    others = walks(seed=1)
    found = agent.rewards_of(torch.from_numpy(others.observations), torch.from_numpy(others.actions)).numpy()
    assert np.abs(found).max() <= 1
    assert np.corrcoef(found, others.rewards)[0, 1] > 0.93
    judged = agent.judged_on(others, 0)["preferences"]
    assert judged["right"] > 0.88 * judged["pairs"] > 400
    assert agent.judged_words({"preferences": judged})[0].startswith("held-out comparisons: ")


def test_a_reward_of_observations_alone_does_not_see_actions() -> None:
    agent = made(walks(), reads_actions=False)
    seen = torch.zeros(2, 2)
    assert agent.rewards_of(seen, torch.tensor([[1.0], [-1.0]])).unique().numel() == 1
    assert made(walks()).rewards_of(seen, torch.tensor([[1.0], [-1.0]])).unique().numel() == 2


def test_stacked_seeds_are_single_seeds() -> None:
    both = trained(walks(8), 5, (0, 3))
    for seed, one in zip((0, 3), both, strict=True):
        (alone,) = trained(walks(8), 5, (seed,))
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(value, one.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_file_s_labels_are_learned_and_one_in_ten_is_held_out(tmp_path: pathlib.Path) -> None:
    dataset = walks(8)
    agent = made(dataset, labels=labels(tmp_path / "l.npz", 200))
    ready = agent.prepare(dataset)
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    assert sources[PAIRS].population == 180  # type: ignore[attr-defined]
    assert agent.judged_on(dataset, 0)["preferences"]["pairs"] == 20
    (learned,) = trained(dataset, 400, labels=labels(tmp_path / "l.npz", 200))
    assert learned.judged_on(dataset, 0)["preferences"]["right"] >= 16


def test_wrong_labels_and_data_are_refused(tmp_path: pathlib.Path) -> None:
    dataset = walks(4)

    def sources(data: Dataset = dataset, **options: Any) -> Any:
        agent = made(data, **options)
        ready = agent.prepare(data)
        return agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))

    with pytest.raises(DataError, match=r"no episode has 21 steps in a row: lower algo\.horizon"):
        sources(horizon=21)
    with pytest.raises(DataError, match=r"first is \(40, 4, 2\), must be \('P', 5, 2\)"):
        sources(horizon=5, labels=labels(tmp_path / "a.npz"))
    with pytest.raises(DataError, match=r"preferred\[0\] is \[2.0\]; must be in \[0, 1\]"):
        sources(labels=labels(tmp_path / "b.npz", preferred=np.full((40, 1), 2.0)))
    odd = np.zeros((40, 4, 1))
    odd[3, 0] = np.nan
    with pytest.raises(DataError, match=r"first_actions\[3\] is not finite"):
        sources(labels=labels(tmp_path / "c.npz", first_actions=odd))
    np.savez(tmp_path / "d.npz", first=np.zeros((1, 4, 2)), second=np.zeros((1, 4, 2)), preferred=np.ones((1, 1)))
    with pytest.raises(DataError, match="has no array 'first_actions'"):
        sources(labels=str(tmp_path / "d.npz"))
    assert sources(labels=str(tmp_path / "d.npz"), reads_actions=False)
