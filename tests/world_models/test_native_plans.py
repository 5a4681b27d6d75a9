"""Plans in one native call equal the planners' own, in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from surefoot import cuda_ext
from surefoot.core.actors.memory import Memory
from surefoot.cuda_ext.plan import plans_natively
from surefoot.world_models.futures import Objective
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.planners import CEM, ICEM, MPPI
from surefoot.world_models.planners.base import PLAN
from surefoot.world_models.planners.icem import ELITES
from surefoot.world_models.planners.native import tail_of, worlds_of
from surefoot.world_models.risk import parse_risk

pytestmark = pytest.mark.skipif(not plans_natively(), reason="the native module is not built, or has no plans")
LEVELS = {"v2": ["v2"], "v3": ["v2", "v3"], "v4": ["v2", "v3", "v4"], "generic": ["generic"]}
SYSTEMS = ["pendulum", "cartpole-swingup", "quadrotor-2d", "linear-quadratic", "bicycle", "point-maze"]
PLANNERS: dict[str, Any] = {
    "mppi": MPPI(horizon=9, samples=77, iterations=2, temperature=0.3),
    "coloured": MPPI(horizon=9, samples=40, temperature=0.3, color=1.5),
    "cem": CEM(horizon=9, samples=50, iterations=3),
    "best": CEM(horizon=9, samples=50, iterations=3, returns="best"),
    "icem": ICEM(horizon=9, samples=60, iterations=3),
    "truncated": CEM(horizon=9, samples=50, iterations=3, sampling="truncated"),
}


def memory_of(planner: Any, world: NativeDynamics, rows: int) -> Memory:
    """In the middle of an episode."""
    generator = torch.Generator().manual_seed(1)
    memory: Memory = planner.begin(rows, world.action_dim, seed=3)
    for name in (PLAN, ELITES):
        if name in memory:
            memory[name] = 0.3 * torch.randn(memory[name].shape, generator=generator).clamp(-1, 1)
    return memory


def starts(world: NativeDynamics, rows: int) -> torch.Tensor:
    """States that episodes begin in."""
    draws = torch.rand(rows, world.system.uniforms, generator=torch.Generator().manual_seed(0))
    return world.system.reset(draws, world.nominal().float().expand(rows, -1))


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_native_plan_equals_its_twin(name: str, system: str) -> None:
    planner = PLANNERS[name]
    native, twin = (NativeDynamics(f"native/{system}", backend=backend) for backend in ("native", "twin"))
    states, memory = starts(native, 3), memory_of(PLANNERS[name], native, 3)
    objective = Objective(discount=0.97)
    plan, after = planner.plan(native, states, memory, objective)
    expected, wanted = planner.plan(twin, states, memory, objective)
    torch.testing.assert_close(plan, expected, rtol=0, atol=2e-4)
    for key in wanted:
        torch.testing.assert_close(after[key], wanted[key], rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["mppi", "best", "icem"])
@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_cost_limits_are_the_twins(name: str, limit: float) -> None:
    planner = PLANNERS[name]
    native, twin = (NativeDynamics("native/cartpole-swingup", backend=backend) for backend in ("native", "twin"))
    states = torch.tensor([[1.9, 1.5, 3.0, 0.0], [0.0, 0.0, 3.1, 0.0], [2.2, 1.0, 3.1, 0.0]])  # one is past the limit
    memory, objective = memory_of(planner, native, 3), Objective(cost_limit=limit)
    plan, _ = planner.plan(native, states, memory, objective)
    expected, _ = planner.plan(twin, states, memory, objective)
    torch.testing.assert_close(plan, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["mppi", "best", "icem"])
def test_limits_that_all_candidates_break_are_the_twins(name: str) -> None:
    planner = PLANNERS[name]
    native, twin = (NativeDynamics("native/double-integrator", backend=backend) for backend in ("native", "twin"))
    states = torch.tensor([[1.5, 0.0, 0.0, 0.0], [1.2, 0.1, 1.0, 0.0], [0.0, -1.02, 0.0, 0.1]])  # equal costs but last
    memory, objective = memory_of(planner, native, 3), Objective(cost_limit=0.0)
    plan, _ = planner.plan(native, states, memory, objective)
    expected, _ = planner.plan(twin, states, memory, objective)
    torch.testing.assert_close(plan, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["mppi", "cem", "icem"])
@pytest.mark.parametrize("risk", ["mean", "cvar:0.5", "worst"])
@pytest.mark.parametrize("limit", [None, 2.0])
def test_members_and_risk_are_the_twins(name: str, risk: str, limit: float | None) -> None:
    planner, nominal = PLANNERS[name], NativeDynamics("native/quadrotor-2d").nominal()
    table = nominal.repeat(5, 1)
    table[:, 4] = torch.tensor([0.7, 0.9, 1.0, 1.1, 1.3])  # thrust got per thrust asked for
    native, twin = (NativeDynamics("native/quadrotor-2d", table, backend) for backend in ("native", "twin"))
    states, memory = starts(native, 3), memory_of(planner, native, 3)
    states[0, 4] = 0.45  # near the limit of its tilt
    objective = Objective(futures=5, risk=parse_risk(risk), cost_limit=limit)
    plan, _ = planner.plan(native, states, memory, objective)
    expected, _ = planner.plan(twin, states, memory, objective)
    torch.testing.assert_close(plan, expected, rtol=0, atol=3e-4)


def noisy(system: str) -> tuple[NativeDynamics, NativeDynamics]:
    """Three members whose process noise is not 0, native and in torch."""
    table = NativeDynamics(f"native/{system}").nominal().repeat(3, 1)
    names = [p.name for p in NativeDynamics(f"native/{system}").system.parameters]
    table[:, names.index("action_noise")] = torch.tensor([2.0, 4.0, 6.0])
    native, twin = (NativeDynamics(f"native/{system}", table, backend) for backend in ("native", "twin"))
    assert native.noise_dim > 0
    return native, twin


@pytest.mark.parametrize("name", ["mppi", "cem", "icem", "truncated"])
@pytest.mark.parametrize(
    ("futures", "spread"), [(4, "both"), (4, "aleatoric"), (7, "epistemic"), (2, "none"), (1, "both")]
)
def test_process_noise_and_any_number_of_futures_are_the_twins(
    name: str, futures: int, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = PLANNERS[name]
    native, twin = noisy("cartpole-swingup")
    states, memory = starts(native, 3), memory_of(planner, native, 3)
    objective = Objective(futures=futures, spread=spread, risk=parse_risk("cvar:0.5"), cost_limit=3.0)
    expected, _ = planner.plan(twin, states, memory, objective)
    monkeypatch.setattr(NativeDynamics, "step", lambda *unused: pytest.fail("it was not planned natively"))
    plan, _ = planner.plan(native, states, memory, objective)
    torch.testing.assert_close(plan, expected, rtol=0, atol=3e-4)
    if futures == 4:
        other, _ = planner.plan(native, states, memory, Objective(1, risk=objective.risk, cost_limit=3.0))
        assert (other - plan).abs().max() > 1e-3  # noise matters here


def test_what_is_not_planned_natively() -> None:
    table = NativeDynamics("native/pendulum").nominal().repeat(5, 1)
    world = NativeDynamics("native/pendulum", table)
    assert [tail_of(Objective(futures=n)) for n in (1, 5)] == [1, 5]
    assert tail_of(Objective(futures=5, risk=parse_risk("cvar:0.21"))) == 2
    assert tail_of(Objective(futures=5, risk=parse_risk("worst"))) == 1
    assert tail_of(Objective(futures=5, risk=parse_risk("std:1"))) is None
    assert worlds_of(world, Objective(futures=5, propagation="ts1")) is None
    assert len(worlds_of(world, Objective(futures=7, propagation="ts1", spread="aleatoric"))) == 7


def test_wild_rows_keep_their_plan_and_leave_others_alone() -> None:
    world = NativeDynamics("native/cartpole-swingup")
    states = starts(world, 3)
    for name in ("mppi", "best", "icem"):
        planner = PLANNERS[name]
        memory = memory_of(planner, world, 3)
        wild = states.clone()
        wild[1] = torch.nan
        plan, after = planner.plan(world, wild, memory)
        usual, _ = planner.plan(world, states, memory)
        assert (plan[[0, 2]] == usual[[0, 2]]).all()
        assert (plan[1] == memory[PLAN][1].clamp(-1, 1)).all() or (plan[1] == memory[PLAN][1]).all()
        assert after[PLAN].isfinite().all()


def test_threads_and_instruction_sets_give_the_same_plan() -> None:
    module: Any = cuda_ext.native()
    highest = module.level()
    planner = PLANNERS["mppi"]
    found = []
    try:
        for level in LEVELS[highest]:
            module.set_level(level)
            for threads in (1, 3):
                world = NativeDynamics("native/quadrotor-2d", threads=threads)
                states = starts(world, 50)
                plan, _ = MPPI(horizon=20, samples=64, temperature=0.3).plan(
                    world, states, planner.begin(50, 2) | {PLAN: torch.zeros(50, 20, 2)}
                )
                found.append(plan)
            assert (found[-1] == found[-2]).all()
    finally:
        module.set_level(highest)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-4)


def test_arrays_that_do_not_fit_are_refused() -> None:
    module: Any = cuda_ext.native()
    zeros = torch.zeros(4).numpy()
    with pytest.raises(ValueError, match="populations, elites and kept"):
        module.plan("pendulum", [2, 1, 3, 7, 2, 1], 5, [4], 9, 0, False, [1.0] * 5, *[zeros] * 5,
                    torch.zeros(1, 2, dtype=torch.int64).numpy(), *[torch.zeros(1, 2).numpy()] * 4, 1)  # fmt: skip
    with pytest.raises(ValueError, match="the array low has 4 values"):
        module.plan("pendulum", [2, 1, 3, 7, 2, 1], 5, [4], 1, 0, False, [1.0] * 5, *[zeros] * 5,
                    torch.zeros(1, 2, dtype=torch.int64).numpy(), *[torch.zeros(1, 2).numpy()] * 4, 1)  # fmt: skip
