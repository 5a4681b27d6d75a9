"""GORP on worlds whose best sequence is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.world_models.dynamics import Outcome, StepNoise
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners import GORP
from surefoot.world_models.planners.choices import drawn_choices, grid_of_choices


class Trap:
    """A step below 0 ends with .1; above, the next step ends with +1 above 0 and -2 below."""

    state_dim, action_dim, noise_dim, members = 1, 1, 0, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step; states are 0 and 1."""
        up, second = actions[..., 0] > 0, states[..., 0] > 0.5
        rewards = torch.where(second, torch.where(up, 1.0, -2.0), torch.where(up, 0.0, 0.1))
        ended = second | ~up
        return Outcome((states + 1).expand(*ended.shape, 1), rewards, torch.zeros_like(rewards), ended)


def first_action(planner: GORP, rows: int = 1, seed: int = 0) -> Tensor:
    memory = planner.begin(rows, 1, seed)
    return planner.plan(Trap(), torch.zeros(rows, 1), memory)[0][:, 0, 0]


def test_one_step_of_planning_falls_into_the_trap_and_two_do_not() -> None:
    assert first_action(GORP(horizon=2, depth=1, samples=64, bins=2)).item() == -1
    assert first_action(GORP(horizon=2, depth=2, samples=1, bins=2)).item() == 1
    whole = GORP(horizon=2, depth=2, samples=1, bins=2)
    assert whole.plan(Trap(), torch.zeros(1, 1), whole.begin(1, 1))[0][0, :, 0].tolist() == [1, 1]


def test_ties_are_broken_at_random_and_rows_are_independent() -> None:
    class Flat(Trap):
        def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
            found = super().step(states, actions, noise)
            return found._replace(rewards=torch.zeros_like(found.rewards))

    planner = GORP(horizon=1, depth=1, samples=1, bins=3)
    memory = planner.begin(600, 1)
    actions = planner.plan(Flat(), torch.zeros(600, 1), memory)[0][:, 0, 0]
    counts = [(actions == value).sum().item() for value in (-1, 0, 1)]
    assert sum(counts) == 600
    assert min(counts) > 150
    one = {name: part[5:6] for name, part in memory.items()}
    assert planner.plan(Flat(), torch.zeros(1, 1), one)[0][0, 0, 0] == actions[5]


def test_choices_are_a_grid_and_are_drawn_evenly() -> None:
    grid = grid_of_choices(2, 3)
    assert grid.shape == (9, 2)
    assert grid[1].tolist() == [-1, 0]
    drawn = drawn_choices(torch.randn(3000, 1, generator=torch.Generator().manual_seed(0)), 3)
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert counts.min() > 900


def test_what_it_can_t_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="gorp keeps no cost limit"):
        GORP().plan(Trap(), torch.zeros(1, 1), GORP().begin(1, 1), Objective(cost_limit=1.0))
    deep = GORP(depth=20)
    with pytest.raises(ConfigError, match="3 choices and depth 20 make"):
        deep.plan(Trap(), torch.zeros(1, 1), deep.begin(1, 1))
    with pytest.raises(ConfigError, match="bins"):
        GORP(bins=1)
