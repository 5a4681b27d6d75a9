"""Planners against closed forms, against each other, and on worlds with traps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.world_models.trajectories import sample_futures
from tests.world_models.worlds import Bandit, Cliff, Doubtful, Linear, scalar
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.plan import plans_natively
from surefoot.evaluation import evaluate
from surefoot.world_models.dynamics import StepNoise
from surefoot.world_models.futures import Objective, Score, score, sums_of
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.planners import (
    CEM,
    GORP,
    ICEM,
    ILQR,
    MPPI,
    GradientShooting,
    Gumbel,
    PlannerPolicy,
    make_planner,
)
from surefoot.world_models.planners.base import DRAWS, PLAN, shifted
from surefoot.world_models.planners.cem import Best, truncated
from surefoot.world_models.planners.derivatives import expand
from surefoot.world_models.planners.ilqr import box_newton
from surefoot.world_models.risk import CVaR, Mean
from surefoot.world_models.tokens.dynamics import TokenDynamics

SMALL: dict[str, Any] = {
    "cem": CEM(horizon=6, samples=40, iterations=3),
    "cem truncated": CEM(horizon=6, samples=40, iterations=3, sampling="truncated", returns="best"),
    "icem": ICEM(horizon=6, samples=40, iterations=3),
    "mppi": MPPI(horizon=6, samples=64, temperature=0.5, color=1.0),
    "ilqr": ILQR(horizon=6, iterations=3),
    "shooting": GradientShooting(horizon=6, starts=4, iterations=5),
    "gorp": GORP(horizon=6, depth=2, samples=8),
    "gumbel": Gumbel(horizon=6, simulations=10, samples=2),
}


def two_carts() -> tuple[Linear, Tensor]:
    """Two carts between springs, and the optimal gain in half ranges of the action."""
    dynamics = NativeDynamics("native/linear-quadratic", backend="twin")
    system: Any = dynamics.system
    q, r = torch.from_numpy(system.Q), torch.from_numpy(system.R)
    world = Linear(torch.from_numpy(system.A), torch.from_numpy(system.B), q, r, 5.0)
    return world, torch.from_numpy(system.riccati()[1]) / 5.0


def test_ilqr_reaches_the_gain_of_the_regulator_in_one_iteration() -> None:
    world, planner = scalar(), ILQR(horizon=60, iterations=1, regularization=0.0)
    states = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    plan, _ = planner.plan(world, states, planner.begin(3, 1))
    torch.testing.assert_close(4.0 * plan[:, 0], -0.6180339887498949 * states, rtol=0, atol=1e-7)
    gains = planner.backward(expand(world, torch.zeros(1, 60, 1).double(), plan[:1] * 0), plan[:1] * 0, torch.zeros(1))
    assert 4.0 * gains.closed[0, 0].item() == pytest.approx(-0.6180339887498949, abs=1e-9)
    total, _ = sums_of(world, states, plan.unsqueeze(1), torch.zeros(3, 2, dtype=torch.int64), Objective())
    torch.testing.assert_close(-total[0, :, 0], 1.618033988749895 * states[:, 0] ** 2, rtol=1e-9, atol=0)


def test_ilqr_reaches_the_gain_of_several_states_and_actions() -> None:
    world, gain = two_carts()
    planner = ILQR(horizon=200, iterations=1, regularization=0.0)
    states = 0.3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan, _ = planner.plan(world, states, planner.begin(4, 2))
    torch.testing.assert_close(plan[:, 0], -states @ gain.T, rtol=0, atol=1e-6)


def test_ilqr_keeps_to_bounds_and_finds_the_best_action_there() -> None:
    world = scalar(scale=0.5)  # the regulator would push with 1.2 half ranges and more
    planner = ILQR(horizon=12, iterations=30)
    states = torch.tensor([[1.0], [-3.0]], dtype=torch.float64)
    plan, _ = planner.plan(world, states, planner.begin(2, 1))
    assert plan.abs().max() <= 1
    found = sums_of(world, states, plan.unsqueeze(1), torch.zeros(2, 2, dtype=torch.int64), Objective())[0][0, :, 0]
    for row, start in enumerate(states[:, 0].tolist()):

        def cost(u: Any, start: float = start) -> float:
            x, total = start, 0.0
            for each in u:
                total += x * x + 0.25 * each * each
                x += 0.5 * each
            return total

        best = scipy.optimize.minimize(cost, [0.0] * 12, bounds=[(-1, 1)] * 12, method="L-BFGS-B", tol=1e-12)
        assert -found[row].item() == pytest.approx(best.fun, rel=1e-5)


def test_box_newton_solves_quadratic_problems_in_boxes() -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(50, 3, 3, generator=generator, dtype=torch.float64)
    hessian = root @ root.mT + 0.3 * torch.eye(3, dtype=torch.float64)
    gradient = 2 * torch.randn(50, 3, generator=generator, dtype=torch.float64)
    low, high = -torch.rand(50, 3, generator=generator).double(), torch.rand(50, 3, generator=generator).double()
    x, free = box_newton(hessian, gradient, low, high)
    slope = gradient + torch.einsum("bij,bj->bi", hessian, x)
    inside = (x > low) & (x < high)
    assert ((x >= low) & (x <= high)).all()
    assert slope[inside].abs().max() < 1e-9  # Karush, Kuhn and Tucker
    assert (slope[x == low] >= -1e-9).all()
    assert (slope[x == high] <= 1e-9).all()
    assert (free.bool() == inside).all()


@pytest.mark.parametrize(
    "planner",
    [
        CEM(horizon=12, samples=300, iterations=12, momentum=0.0),
        ICEM(horizon=12, samples=300, iterations=15, color=0.0, decay=1.0),
        MPPI(horizon=12, samples=1000, iterations=12, sigma=0.1, temperature=1.0, color=0.0),
        GradientShooting(horizon=12, starts=2, iterations=60, learning_rate=0.05),
    ],
    ids=lambda planner: type(planner).__name__,
)
def test_sampling_planners_come_within_two_percent_of_the_regulators_cost(planner: Any) -> None:
    world, states = scalar(), torch.tensor([[1.5], [-1.0]], dtype=torch.float64)
    plan, _ = planner.plan(world, states, planner.begin(2, 1, seed=3))
    riccati = ILQR(horizon=12, iterations=1, regularization=0.0)
    best, _ = riccati.plan(world, states, riccati.begin(2, 1))
    nothing = torch.zeros(2, 2, dtype=torch.int64)
    costs = [-sums_of(world, states, each.unsqueeze(1), nothing, Objective())[0][0, :, 0] for each in (plan, best)]
    assert (costs[0] <= 1.02 * costs[1]).all()
    assert (costs[0] >= costs[1] - 1e-9).all()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("alias", ["native/pendulum", "native/double-integrator"])
def test_a_batch_of_plans_equals_single_plans(name: str, alias: str) -> None:
    planner, world = SMALL[name], NativeDynamics(alias)
    generator = torch.Generator().manual_seed(2)
    states = 0.3 * torch.randn(3, world.state_dim, generator=generator)
    memory = planner.begin(3, world.action_dim, seed=5)
    for _ in range(2):  # the second begins where the first ended
        plan, after = planner.plan(world, states, memory)
        for row in range(3):
            alone, rest = planner.plan(world, states[row : row + 1], {k: v[row : row + 1] for k, v in memory.items()})
            torch.testing.assert_close(alone[0], plan[row], rtol=0, atol=1e-6)
            assert (rest[DRAWS] == after[DRAWS][row : row + 1]).all()
        memory = after


def test_given_noise_is_what_the_planner_uses() -> None:
    planner, world = SMALL["mppi"], NativeDynamics("native/pendulum")
    states, memory = torch.tensor([[0.5, 0.0]]), SMALL["mppi"].begin(1, 1)
    noise = torch.randn(1, 64, 6, 1, generator=torch.Generator().manual_seed(0))
    one, _ = planner.plan(world, states, memory, noise=noise)
    two, _ = planner.plan(world, states, planner.begin(1, 1, seed=9), noise=noise)
    other, _ = planner.plan(world, states, memory, noise=-noise)
    assert (one == two).all()
    assert (one - other).abs().max() > 0.01
    with pytest.raises(ConfigError, match="noise has shape"):
        planner.plan(world, states, memory, noise=noise[:, :5])


def test_the_plan_a_step_on_is_the_memory() -> None:
    planner, world = SMALL["mppi"], NativeDynamics("native/pendulum")
    plan, memory = planner.plan(world, torch.tensor([[0.5, 0.0]]), planner.begin(1, 1))
    assert (memory[PLAN] == shifted(plan)).all()
    assert (memory[PLAN][0, :-1] == plan[0, 1:]).all()
    assert memory[DRAWS][0, 1] == 1


def test_sigma_matters() -> None:
    world, states = scalar(), torch.tensor([[1.5]], dtype=torch.float64)
    plans = []
    for sigma in (1e-6, 0.3):
        planner = MPPI(horizon=8, samples=256, sigma=sigma, temperature=0.1, color=0.0)
        plans.append(planner.plan(world, states, planner.begin(1, 1))[0])
    assert plans[0].abs().max() < 1e-5
    assert plans[1][0, 0, 0] < -0.1
    wide = ICEM(horizon=8, samples=64, sigma=1e-6)
    assert wide.plan(world, states, wide.begin(1, 1))[0].abs().max() < 1e-4


@pytest.mark.parametrize("planner", [CEM(horizon=3), ICEM(horizon=3), MPPI(horizon=3), CEM(horizon=3, returns="best")])
def test_returns_that_are_no_number_are_never_the_best(planner: Any) -> None:
    world, states = Cliff(), torch.zeros(2, 1)  # all returns are below 0, so that 0 or -1e-10 for NaN would win
    plan, _ = planner.plan(world, states, planner.begin(2, 1))
    assert (plan <= 0.5).all()
    assert plan.mean() > 0.1
    lost = torch.full((2, 1), math.nan)

    class Nowhere(Cliff):
        def step(self, states: Tensor, actions: Tensor, noise: Any) -> Any:
            return super().step(states, actions, noise)._replace(rewards=torch.full(actions.shape[:-1], math.nan))

    memory = {**planner.begin(2, 1), PLAN: torch.full((2, 3, 1), 0.25)}
    kept, _ = planner.plan(Nowhere(), lost, memory)
    assert (kept == 0.25).all()  # nothing is known to be better


@pytest.mark.parametrize("planner", [CEM(horizon=3), ICEM(horizon=3), MPPI(horizon=3, temperature=0.05)])
def test_a_cost_limit_comes_before_return(planner: Any) -> None:
    world, states = Cliff(), torch.zeros(1, 1)
    plan, _ = planner.plan(world, states, planner.begin(1, 1), Objective(cost_limit=0.0))
    assert (plan <= 0.2).all()
    assert plan.mean() > 0


def test_without_a_feasible_candidate_the_least_cost_is_best() -> None:
    actions = torch.tensor([[[[0.3], [0.3]], [[0.1], [0.3]], [[0.3], [0.25]]]])
    scored = score(Cliff(), torch.zeros(1, 1), actions, torch.zeros(1, 2, dtype=torch.int64), Objective(cost_limit=0.0))
    assert scored.ranked()[0, 0] == 1
    assert scored.fitness().argmax() == 1
    lax = score(Cliff(), torch.zeros(1, 1), actions, torch.zeros(1, 2, dtype=torch.int64), Objective(cost_limit=1.0))
    assert lax.ranked()[0].tolist() == [1, 0, 2]  # 1 is feasible; the others' costs are equal
    assert lax.feasible.tolist() == [[False, True, False]]


def test_candidates_of_equal_cost_are_weighed_by_return() -> None:
    values, costs = torch.tensor([[-9.0, -5.0, -1.0, -2.0, -math.inf]]), torch.tensor([[2.0, 1.0, 2.0, 1.0, 0.0]])
    scored = Score(values, costs, torch.zeros(1, 5, dtype=torch.bool))
    assert scored.ranked()[0].tolist() == [3, 1, 2, 0, 4]
    assert scored.fitness()[0].tolist() == [-math.inf, -5.0, -math.inf, -2.0, -math.inf]
    best = Best(torch.zeros(1, 1, 1))
    best.see(torch.arange(5.0).view(1, 5, 1, 1), scored)
    assert best.plan.item() == 3
    best.see(torch.full((1, 1, 1, 1), 7.0), Score(torch.tensor([[-1.5]]), torch.ones(1, 1), torch.zeros(1, 1).bool()))
    assert best.plan.item() == 7  # as expensive, and worth more
    best.see(
        torch.full((1, 1, 1, 1), 8.0), Score(torch.tensor([[9.0]]), torch.full((1, 1), 2.0), torch.zeros(1, 1) > 0)
    )
    assert best.plan.item() == 7
    best.see(torch.full((1, 1, 1, 1), 9.0), Score(torch.tensor([[-50.0]]), torch.zeros(1, 1), torch.ones(1, 1) > 0))
    assert best.plan.item() == 9


@pytest.mark.parametrize("name", ["cem", "icem", "mppi"])
@pytest.mark.parametrize("backend", ["native", "twin"])
def test_a_limit_that_can_not_be_kept_any_more_does_not_let_go_of_the_return(name: str, backend: str) -> None:
    if backend == "native" and not plans_natively():
        pytest.skip("the native module is not built")
    world, planner = (
        NativeDynamics("native/double-integrator", backend=backend),
        dataclasses.replace(SMALL[name], horizon=15),
    )
    states, memory = torch.tensor([[1.5, 0.0, 0.0, 0.0], [1.2, 0.0, 1.0, 0.0]]), planner.begin(2, 2)
    for _ in range(60):
        plan, memory = planner.plan(world, states, memory, Objective(cost_limit=0.0))
        states = world.step(states, plan[:, 0], StepNoise()).states
    assert (states[:, :2].abs() < 1).all()  # outside is where all candidates cost the same


def test_the_two_armed_bandit_of_risk() -> None:
    planner = CEM(horizon=1, samples=50, iterations=3)
    states = torch.zeros(1, 1)
    mean, _ = planner.plan(Bandit(), states, planner.begin(1, 1), Objective(futures=200))
    wary, _ = planner.plan(Bandit(), states, planner.begin(1, 1), Objective(futures=200, risk=CVaR(0.2)))
    assert mean[0, 0, 0] > 0
    assert wary[0, 0, 0] < 0


def test_fixed_members_show_a_doubt_that_members_drawn_anew_average_out() -> None:
    actions = torch.stack([torch.full((20, 1), 0.5), torch.full((20, 1), -0.5)]).unsqueeze(0)
    states, draws = torch.zeros(1, 1), torch.tensor([[7, 0]])
    values = {
        propagation: score(
            Doubtful(), states, actions, draws, Objective(futures=100, propagation=propagation, risk=CVaR(0.2))
        ).values[0]
        for propagation in ("tsinf", "ts1")
    }
    assert values["tsinf"].tolist() == [-100.0, 20.0]  # a fifth of the futures follow the fifth member throughout
    assert values["ts1"][0] > -20  # 28 less about 1.4 deviations of 14.3
    mean = score(Doubtful(), states, actions, draws, Objective(futures=100, risk=Mean())).values[0]
    assert mean.tolist() == pytest.approx([28.0, 20.0])


def test_futures_keep_kinds_of_spread_apart() -> None:
    table = torch.stack([NativeDynamics("native/pendulum").nominal()] * 3)
    names = [parameter.name for parameter in NativeDynamics("native/pendulum").system.parameters]
    noise = next(k for k, name in enumerate(names) if name.endswith("_noise"))
    table[:, noise] = 0.3
    table[:, 0] = torch.tensor([5.0, 10.0, 15.0])
    world = NativeDynamics("native/pendulum", table)
    states, actions, draws = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 5, 1), torch.tensor([[1, 0]])

    def last(**options: Any) -> Tensor:
        return sample_futures(world, states, actions, draws, Objective(futures=6, **options)).states[:, 0, -1, 0]

    assert last(spread="none").unique().numel() == 1
    assert last(spread="epistemic").unique().numel() == 3
    assert last(spread="aleatoric").unique().numel() == 6
    assert last().unique().numel() == 6
    assert (last() == last()).all()
    found = sample_futures(world, states, actions, draws, Objective(futures=6))
    assert found.states.shape == (6, 1, 6, 2)
    assert found.rewards.shape == (6, 1, 5)


def test_fewer_futures_than_members_are_refused_where_they_keep_theirs() -> None:
    bounds = torch.full((1,), -1.0), torch.ones(1)
    with pytest.raises(ConfigError, match=r"of 5 members the plan would ask the first 3 alone: give 5 futures"):
        PlannerPolicy(CEM(horizon=2), Doubtful(), *bounds, Objective(futures=3))
    for objective in (Objective(), Objective(5), Objective(3, propagation="ts1")):
        PlannerPolicy(CEM(horizon=2), Doubtful(), *bounds, objective)


def test_all_candidates_meet_the_same_futures() -> None:
    table = torch.stack([NativeDynamics("native/pendulum").nominal()] * 2)
    table[1, 0] = 20.0
    world = NativeDynamics("native/pendulum", table)
    states, actions = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 4, 5, 1)
    returns, _ = sums_of(world, states, actions, torch.tensor([[3, 1]]), Objective(futures=8))
    assert (returns == returns[:, :, :1]).all()
    assert returns[0, 0, 0] != returns[1, 0, 0]


def test_after_an_end_nothing_is_earned() -> None:
    world = NativeDynamics("native/cartpole-swingup")
    states = torch.tensor([[2.39, 5.0, 0.0, 0.0]])
    returns, costs = sums_of(world, states, torch.zeros(1, 1, 30, 1), torch.zeros(1, 2, dtype=torch.int64), Objective())
    assert 0 < returns.item() < 1
    assert costs.item() == 30  # it ends off the track, and stays there
    found = sample_futures(world, states, torch.zeros(1, 30, 1), torch.zeros(1, 2, dtype=torch.int64), Objective())
    assert found.ended.all()
    assert (found.states[0, 0, 1:] == found.states[0, 0, 1]).all()


def test_truncated_numbers_are_cut_and_keep_their_order() -> None:
    white = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cut = truncated(white)
    assert cut.abs().max() <= 2
    assert (white.argsort() == cut.argsort()).all()
    assert cut.std() == pytest.approx(0.8796, abs=0.01)  # of the normal distribution cut at 2 deviations


def test_settings_out_of_range_are_named() -> None:
    for name, settings, said in (
        ("cem", {"samples": 1}, "samples is 1"),
        ("mppi", {"temperature": 0.0}, "temperature is 0.0"),
        ("icem", {"kept": 0.0}, "kept is 0.0"),
        ("mppi", {"elites": 0.1}, "has no setting 'elites'; its settings are horizon, samples, iterations"),
        ("cem", {"sampling": "cut"}, "sampling is 'cut'"),
        ("ilqr", {"horizon": 0}, "horizon is 0"),
        ("cme", {}, "did you mean"),
        ("cem", {"horizon": 5.5}, "horizon is 5.5, must be a whole number"),
        ("mppi", {"sigma": math.nan}, "sigma is nan, must be a finite number"),
        ("icem", {"samples": "128"}, "samples is '128', must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_planner(name, **settings)
    for aim, said in (
        ({"futures": 2.5}, "futures is 2.5, must be a whole number"),
        ({"futures": 3, "risk": "cvar:0.1"}, "risk is 'cvar:0.1'; it is a measure"),
        ({"cost_limit": "0"}, "cost_limit is '0', must be a finite number"),
        ({"cost_limit": math.nan}, "cost_limit is nan"),
    ):
        with pytest.raises(ConfigError, match=said):
            Objective(**aim)
    with pytest.raises(ConfigError, match=r"of shapes \(2,\) and \(1,\); a world of 1 actions needs \(1,\) each"):
        PlannerPolicy(CEM(), Doubtful(), np.zeros(2), np.ones(1))
    planner = ILQR(horizon=2)
    with pytest.raises(ConfigError, match="plans with the mean outcome"):
        planner.plan(scalar(), torch.zeros(1, 1), planner.begin(1, 1), Objective(futures=5))
    assert dataclasses.asdict(make_planner("mppi", samples=None, horizon=7))["horizon"] == 7


@pytest.mark.parametrize("name", ["ilqr", "shooting"])
def test_worlds_without_derivatives_are_refused_by_planners_that_follow_them(name: str) -> None:
    planner = make_planner(name, horizon=2, iterations=1)
    tokens = TokenDynamics(2, 1, bins=4, width=8, layers=1, heads=1)
    for world in (NativeDynamics("native/cartpole-balance"), tokens):  # a reward of 1; bins
        states = torch.zeros(1, world.state_dim)
        with pytest.raises(ConfigError, match=f"{type(world).__name__} has no derivatives .* plan with cem"):
            planner.plan(world, states, planner.begin(1, 1))


@pytest.mark.parametrize("name", ["cem", "icem", "mppi", "shooting"])
def test_noise_that_is_given_is_not_changed(name: str) -> None:
    planner = make_planner(name, horizon=3, iterations=2, **({} if name == "cem" else {"color": 0.0}))
    noise = torch.randn(1, 2048, 3, 1, dtype=torch.float64)
    kept = noise.clone()
    planner.plan(scalar(), torch.ones(1, 1, dtype=torch.float64), planner.begin(1, 1), noise=noise)
    assert torch.equal(noise, kept)


def test_cem_balances_the_continuous_cart_pole_with_exact_dynamics() -> None:
    world = NativeDynamics("native/cartpole-balance")
    policy = PlannerPolicy(CEM(samples=350, iterations=5, horizon=15), world, world.low.numpy(), world.high.numpy())
    found = evaluate([policy], "native/cartpole-balance", episodes=3, num_envs=3)[0]
    assert found.returns.min() > 190
    policy.reset()
    assert policy.select_action(np.zeros(4, np.float32)).shape == (1,)


def test_a_crash_is_not_a_way_to_keep_a_cost_limit() -> None:
    world = NativeDynamics("native/quadrotor-2d")
    states = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.55, 0.0]])  # tilted past its limit: no plan is free of cost
    planner = ICEM(horizon=30, samples=100, iterations=3, sigma=0.3)
    for backend in ("native", "twin"):
        plan, _ = planner.plan(NativeDynamics("native/quadrotor-2d", backend=backend), states, planner.begin(1, 2),
                               Objective(cost_limit=0.0))  # fmt: skip
        found = sample_futures(world, states, plan, torch.zeros(1, 2, dtype=torch.int64), Objective())
        assert not found.ended.any()
        assert found.costs.sum() < 10
