"""Gumbel-MuZero's search against DeepMind's mctx on small trees, and as a planner."""

from __future__ import annotations

import json

import pytest
import torch
from tests.world_models.test_gorp import Trap
from torch import Tensor

from surefoot.cli import main
from surefoot.core.base.errors import ConfigError
from surefoot.world_models.dynamics import Outcome, StepNoise
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners.gumbel import Expanded, Gumbel, Searched, schedule, search

PRIORS = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [1 / 3, 1 / 3, 1 / 3]])
VALUES = torch.tensor([0.3, 0.4, 0.1, 0.2, 0.0])
REWARDS = torch.tensor([[0.0, 0, 0], [1, 0, 0.5], [0.2, 0.2, 2], [0, 0, 0], [0, 0, 0]])
FOLLOWING = torch.tensor([[1, 2, 3], [4, 4, 4], [4, 4, 4], [4, 4, 4], [4, 4, 4]])


def expand(states: Tensor, choices: Tensor, depths: Tensor, simulation: int) -> Expanded:
    """State 0 leads to 1, 2 and 3, these to the end."""
    now = states[:, 0].long()
    after = FOLLOWING[now, choices]
    discounts = torch.where(after == 4, 0.0, 0.9)
    return Expanded(after[:, None].float(), REWARDS[now, choices], discounts, PRIORS[after].log(), VALUES[after])


def found(simulations: int, rows: int = 1, **options: object) -> Searched:
    roots, gumbels = torch.zeros(rows, 1), torch.zeros(rows, 3)
    logits, values = PRIORS[:1].log().expand(rows, 3), VALUES[:1].expand(rows)
    return search(roots, logits, values, expand, gumbels, simulations=simulations, considered=3, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("considered", "simulations", "visits"),
    [(4, 16, "0000111122334455"), (3, 8, "00011223"), (3, 4, "0001"), (1, 3, "012"), (16, 4, "0000")],
)
def test_sequential_halving_shares_simulations_as_mctx_does(considered: int, simulations: int, visits: str) -> None:
    assert "".join(map(str, schedule(considered, simulations))) == visits


@pytest.mark.parametrize(
    ("simulations", "visits", "q", "weights"),
    [
        (4, (2, 1, 1), (0.18, 0.09, 0.18), (0.712601, 0.002359, 0.285040)),
        (8, (4, 1, 3), (0.315, 0.09, 0.06), (0.993126, 0.005080, 0.001794)),
        (50, (21, 21, 8), (0.424286, 0.175714, 0.0225), (0.992308, 0.007365, 0.000328)),
    ],
)
def test_a_small_tree_is_searched_as_by_mctx(
    simulations: int, visits: tuple[int, ...], q: tuple[float, ...], weights: tuple[float, ...]
) -> None:
    searched = found(simulations, rows=2)
    for row in range(2):
        assert tuple(searched.visits[row].tolist()) == visits
        assert searched.values[row].tolist() == pytest.approx(q, abs=5e-7)
        assert searched.weights[row].tolist() == pytest.approx(weights, abs=5e-6)
        assert searched.choices[row] == 0


def test_choices_that_are_not_allowed_are_never_simulated() -> None:
    searched = found(8, valid=torch.tensor([[False, True, True]]))
    assert searched.visits[0, 0] == 0
    assert searched.visits[0].sum() == 8
    assert searched.choices[0] in (1, 2)
    assert searched.weights[0, 0] == 0
    both = found(8, rows=2, valid=torch.tensor([[True, True, True], [False, False, True]]))
    assert both.visits.tolist() == [[4, 1, 3], [0, 0, 8]]
    with pytest.raises(ConfigError, match="a row allows no choice"):
        found(8, valid=torch.zeros(1, 3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="simulations is 0"):
        found(0)


def test_gumbel_draws_decide_which_choices_are_considered() -> None:
    draws = torch.tensor([[-9.0, 0, 9]])
    searched = search(
        torch.zeros(1, 1), PRIORS[:1].log(), VALUES[:1], expand, draws, simulations=6, considered=1
    )  # fmt: skip
    assert searched.visits.tolist() == [[0, 0, 6]]
    assert searched.choices.tolist() == [2]


def test_the_planner_sees_a_trap_that_random_continuations_fall_into() -> None:
    planner = Gumbel(horizon=2, simulations=16, samples=8, bins=2)
    plan, after = planner.plan(Trap(), torch.zeros(40, 1), planner.begin(40, 1))
    assert (plan[:, 0, 0] == 1).float().mean() > 0.95
    best = plan[plan[:, 0, 0] == 1]
    assert (best[:, 1, 0] == 1).all()
    assert (after["draws"][:, 1] == 1).all()


def test_a_step_that_breaks_the_world_is_not_taken() -> None:
    class Breaks(Trap):
        def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
            shown = super().step(states, actions, noise)
            rewards = torch.where(actions[..., 0] > 0, torch.nan, -1.0).expand(shown.ended.shape)
            return shown._replace(rewards=rewards, ended=torch.zeros_like(shown.ended))

    planner = Gumbel(horizon=3, simulations=12, bins=2, gumbel_scale=0.0)
    plan, _ = planner.plan(Breaks(), torch.zeros(3, 1), planner.begin(3, 1))
    assert plan.isfinite().all()
    assert (plan[:, 0] == -1).all()


def test_it_plans_on_the_command_line_and_refuses_what_it_can_t(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan native/cartpole-swingup --planner gumbel --horizon 2 --simulations 3 --episodes 1 --envs 1 --json"
    assert main(line.split()) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["plans"] == facts["length_mean"]
    assert facts["planner"].startswith("Gumbel: horizon 2, simulations 3, considered 16")
    planner = Gumbel()
    with pytest.raises(ConfigError, match="gumbel plans for the mean outcome without a cost limit"):
        planner.plan(Trap(), torch.zeros(1, 1), planner.begin(1, 1), Objective(cost_limit=1.0))
