"""MBRCSL: stitching where all can be counted, the filter, the clone, schedules, resuming, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from mbrcsl_data import SMALL, dataset_of, learner_of, random_data
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Dataset
from surefoot.model_based.mbrcsl import KEPT, MBRCSL
from surefoot.offline.rcsl import RCSL
from surefoot.world_models.dynamics import Outcome, StepNoise

# -- stitching on a grid --------------------------------------------------------------------------------------

WALLS = torch.tensor(
    [[1, 1, 1, 1, 1, 1],
     [1, 0, 0, 1, 1, 1],
     [1, 0, 0, 0, 0, 1],
     [1, 1, 1, 1, 1, 1]], dtype=torch.bool
)  # fmt: skip
START, A, B, M, GOAL = (1, 2), (1, 1), (2, 1), (2, 2), (2, 4)
MOVES = torch.tensor([[0.0, 0.0], [0.0, 0.9], [0.0, -0.9], [-0.9, 0.0], [0.9, 0.0]])
LENGTH = 10


class Grid:
    """Exact: an action moves by its nearest whole numbers, walls stop it, and the reward falls with the distance."""

    state_dim, action_dim, noise_dim, members = 2, 2, 1, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        there = (states + actions.round()).round()
        blocked = WALLS[there[..., 0].long().clamp(0, 3), there[..., 1].long().clamp(0, 5)]
        following = torch.where(blocked.unsqueeze(-1), states, there)
        rewards = (-(following - torch.tensor(GOAL)).abs().sum(-1)).exp()
        return Outcome(following, rewards, torch.zeros_like(rewards), torch.zeros_like(rewards, dtype=torch.bool))


def grid_data() -> Dataset:
    """Half of the episodes S-M and stay, half S-A-B-M-.-G and stay."""
    routes = {"dead end": [4], "detour": [2, 4, 1, 1, 1]}
    rows: list[tuple[Any, ...]] = []
    for number in range(40):
        state, route = torch.tensor([START], dtype=torch.float32), list(routes["detour" if number % 2 else "dead end"])
        for _ in range(LENGTH):
            action = MOVES[[route.pop(0) if route else 0]]
            outcome = Grid().step(state, action, StepNoise())
            rows.append((state[0].numpy(), action[0].numpy(), float(outcome.rewards), outcome.states[0].numpy()))
            state = outcome.states
    return dataset_of(*(np.array(column) for column in zip(*rows, strict=True)), length=LENGTH)


class GridMBRCSL(MBRCSL):
    """With exact dynamics, and the data's action frequencies for a clone."""

    name = "grid_mbrcsl"

    def build(self) -> None:
        super().build()
        self.register_buffer("frequencies", torch.zeros(4, 6, len(MOVES)))

    def prepare(self, dataset: Dataset) -> Dataset:
        ready = super().prepare(dataset)
        cells = torch.from_numpy(dataset.observations).long()
        taken = torch.cdist(torch.from_numpy(dataset.actions), MOVES).argmin(-1)
        self.frequencies.index_put_((cells[:, 0], cells[:, 1], taken), torch.ones(len(taken)), accumulate=True)  # type: ignore[operator]
        return ready

    @property
    def world(self) -> Grid:  # type: ignore[override]
        return Grid()

    def draw_member(self, uniform: Tensor) -> None:
        return None

    def behave(self, observations: Tensor, noise: Tensor) -> Tensor:
        cells = observations.round().long()
        odds = self.frequencies[cells[:, 0], cells[:, 1]]  # type: ignore[index]
        uniform = 0.5 * (1 + torch.erf(noise[:, 0, :1] / 2**0.5))
        return MOVES[(uniform > (odds / odds.sum(-1, keepdim=True)).cumsum(-1)).sum(-1).clamp(max=len(MOVES) - 1)]


def played(agent: RCSL, target: float | None = None) -> tuple[float, list[tuple[int, int]]]:
    """Return and cells of an episode of the exact grid."""
    if target is not None:
        agent.actor.target_return.fill_(target)
    policy, state, total, cells = agent.policy(), torch.tensor([START], dtype=torch.float32), 0.0, [START]
    memory = policy.begin(1)
    for _ in range(LENGTH):
        action, memory = policy.act(state, memory)
        outcome = Grid().step(state, action, StepNoise())
        memory = policy.observe_outcome(memory, outcome.rewards, outcome.costs, outcome.ended)
        state, total = outcome.states, total + float(outcome.rewards)
        cells.append((int(state[0, 0]), int(state[0, 1])))
    return total, cells


def test_on_a_grid_the_paths_that_are_kept_are_stitched_and_only_their_clone_goes_straight() -> None:
    dataset, policy = grid_data(), {"hidden": (64, 64), "l2": 0.0, "learning_rate": 3e-3}
    data_best = float(dataset.episode_returns.max())
    torch.manual_seed(0)
    agent = GridMBRCSL(
        dataset, **{**SMALL, **policy, "model_updates": 1, "behavior_updates": 1, "rollout_batches": 2,
                    "rollouts": 200, "horizon": LENGTH, "kept": 300}
    )  # fmt: skip
    learner = learner_of([agent], dataset, [0], 1004, kernels=True, batch_size=64)
    learner.run(4)
    kept = learner.sources[KEPT].rows_added(0)  # type: ignore[attr-defined]
    count = int(kept["added"])
    assert count == LENGTH * int(agent.accepted) > 0
    first = kept["observations"][:count][(kept["returns_to_go"][:count] == agent.actor.target_return).nonzero()[0, 0]]
    assert tuple(first.int().tolist()) == START
    stitched = 10 * 1.0 - sum(1 - float(np.exp(-d)) for d in (2, 1))  # M, ., and then at the goal for eight steps
    assert float(agent.actor.target_return) == pytest.approx(stitched, rel=1e-5)
    assert float(kept["returns_to_go"][:count].max()) > data_best + 0.5
    learner.run(1000)
    total, cells = played(agent)
    assert total == pytest.approx(stitched, rel=1e-4)
    assert cells[1] == M

    torch.manual_seed(0)
    plain = RCSL(dataset, **policy)
    learner_of([plain], dataset, [0], 1000, kernels=True, batch_size=64).run(1000)
    for target in (data_best, stitched):
        assert played(plain, target)[0] < data_best + 0.1


# -- the filter -----------------------------------------------------------------------------------------------


class Counting:
    """Earns what its first state says at every step, and counts the steps in its second."""

    state_dim, action_dim, noise_dim, members = 3, 2, 1, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        following = states + torch.tensor([0.0, 1.0, 0.0])
        zero = torch.zeros_like(states[:, 0])
        return Outcome(following, states[:, 0].clone(), zero, zero.bool())


class Counted(MBRCSL):
    name = "counted_mbrcsl"

    @property
    def world(self) -> Counting:  # type: ignore[override]
        return Counting()

    def draw_member(self, uniform: Tensor) -> None:
        return None


def test_paths_are_kept_whole_where_they_return_more_than_the_best_without_a_discount() -> None:
    torch.manual_seed(0)
    agent = Counted(random_data(1.0), **{**SMALL, "horizon": 4, "bounded": False})
    agent.prepare(random_data(1.0))
    assert float(agent.threshold) == 3.0  # three steps of 1
    starts = torch.tensor([[0.75, 0, 0], [0.7500001, 0, 0], [0.76, 0, 0], [np.nan, 0, 0], [9.0, 0, 0]])
    noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
    with torch.no_grad():
        found, metrics = agent.imagine({"observations": starts}, noise)
    rows: Mapping[str, Tensor] = found[KEPT]
    by_path = {name: value.unflatten(0, (4, 5)) for name, value in rows.items()}
    assert by_path["valid"].all(0).tolist() == by_path["valid"].any(0).tolist() == [False, True, True, False, True]
    assert by_path["observations"][:, 4, 1].tolist() == [0, 1, 2, 3]
    assert by_path["returns_to_go"][:, 4].tolist() == [36, 27, 18, 9]
    assert by_path["actions"][:, by_path["valid"][0]].abs().max() <= 1
    assert float(found["actor.target_return"]) == 36
    assert (int(found["accepted"]), int(found["tried"])) == (3, 1)
    assert float(metrics["acceptance"]) == pytest.approx(0.6)
    assert float(metrics["model_return_over_best"]) == pytest.approx(12.0)


def test_with_enough_paths_no_more_are_made_and_a_target_of_ones_own_stays() -> None:
    agent = Counted(random_data(1.0), **SMALL, target_return=5.0)
    agent.prepare(random_data(1.0))
    noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
    with torch.no_grad():
        found, _ = agent.imagine({"observations": torch.full((5, 3), 2.0)}, noise)
        assert float(found["actor.target_return"]) == 5.0
        agent.accepted.fill_(7)
        assert agent.imagine({"observations": torch.full((5, 3), 2.0)}, noise) == ({}, {})


def test_where_no_path_beats_the_data_the_run_says_so_and_what_it_means() -> None:
    torch.manual_seed(0)
    data = random_data(100.0)
    with pytest.raises(DataError, match=r"none of 15 paths returned more .* 300\.00.*no parts of a better path"):
        learner_of([Counted(data, **SMALL)], data, [0], 20, kernels=True).run(20)


def test_paths_that_are_no_match_for_the_datas_episodes_are_noted() -> None:
    data = random_data()  # of episodes of 3 steps
    for horizon, noted in ((3, False), (4, True), (2, True)):
        notes = MBRCSL(data, **{**SMALL, "horizon": horizon}).notes(data)
        assert any(f"paths have {horizon} steps, and the data's longest episode 3" in note for note in notes) == noted
        assert not any("paths continue" in note for note in notes)
    ended = data.replace(terminations=np.arange(60) == 59, truncations=data.truncations & (np.arange(60) < 59))
    assert any("paths continue" in note for note in MBRCSL(ended, **SMALL).notes(ended))


def test_states_in_the_model_stay_in_the_range_of_the_data() -> None:
    for bounded in (True, False):
        agent = Counted(random_data(), **SMALL, bounded=bounded)
        agent.prepare(random_data())
        noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
        with torch.no_grad():
            seen = agent.follow(agent.high.expand(5, -1) - 0.5, noise).observations
        assert bool((seen[-1, :, 1] <= agent.high[1]).all()) == bounded
