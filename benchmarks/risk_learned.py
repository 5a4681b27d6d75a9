"""Planning for CVaR in a learned ensemble: a quadrotor past a no-fly sphere, from noisy flights.

    python benchmarks/risk_learned.py            # compute what is missing, then write the table
    python benchmarks/risk_learned.py --quick    # a few steps of training and one short episode, for CI

The quadrotor in space with its no-fly sphere, walls and tilt limit. Five networks learn its dynamics from flights of a
planner in the exact system, without a limit, whose actions carry noise of many sizes; the task's reward and where the
constraint lies are known, as functions of predicted states. iCEM plans anew at each step in the five networks. "Mean"
arms plan for the mean return of the five, "cvar" arms for the worst member's; limits are steps with a violation within
the horizon, at the same risk as the return. All arms have the same model, initial states and random numbers. An episode
is a violation where the constraint is broken at any step; the shares' intervals are Clopper-Pearson's, the certificate
of `surefoot certify`. Cells are blocks of episodes, and continue where they ended.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.api.fit import fit
from surefoot.core.nn.native import kernels
from surefoot.data.dataset import Dataset
from surefoot.envs import make_vec
from surefoot.envs.systems import quadrotor_3d, system
from surefoot.evaluation import certificate, evaluate, hierarchical_interval
from surefoot.model_based import LearnedDynamics
from surefoot.runs.run import Run, load_agent
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.futures import Objective
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.known.terminations import AUTO
from surefoot.world_models.planners import ICEM, PlannerPolicy
from surefoot.world_models.risk import CVaR, Mean

SYSTEM = "native/quadrotor-3d"
MEMBERS, FLIGHTS, STEPS, UPDATES, BLOCK, BLOCKS, WANTED = 5, 256, 300, 20_000, 8, 8, 10_000
PLANNER = ICEM(horizon=25, samples=64, iterations=3, sigma=0.3)
ARMS: dict[str, Objective] = {
    "mean, no limit": Objective(futures=MEMBERS, spread="epistemic", risk=Mean()),
    "mean, limit 1": Objective(futures=MEMBERS, spread="epistemic", risk=Mean(), cost_limit=1.0),
    "mean, limit 0": Objective(cost_limit=0.0),
    "cvar:0.2, limit 0": Objective(futures=MEMBERS, spread="epistemic", risk=CVaR(0.2), cost_limit=0.0),
}
"""`mean, limit 0` plans in the mean of the networks: the worst of five futures within 0 is what CVaR asks."""
EXACT = "exact system, limit 0"
"""The same search where nothing was learned: what the model costs."""
MODEL = pathlib.Path(tempfile.gettempdir()) / "surefoot-risk-known"


def violations(following: torch.Tensor) -> torch.Tensor:
    """(...) 1 where (..., 22) observations break the constraint of the nominal quadrotor, else 0."""
    p = {one.name: one.default for one in system(SYSTEM).parameters}
    x, y, z = following[..., :3].unbind(-1)
    height = z + quadrotor_3d.GOAL_HEIGHT
    sphere = ((x - p["sphere_x"]) ** 2 + (y - p["sphere_y"]) ** 2 + z**2).sqrt() - p["sphere_radius"]
    room = 2.5 - torch.maximum(torch.maximum(x.abs(), y.abs()), height)
    tilt = following[..., 14] - float(np.cos(p["tilt_limit"]))
    margin = torch.minimum(torch.minimum(sphere, tilt), torch.minimum(height - 0.1, room))
    return (~(margin >= 0)).to(following.dtype)


def flights(rows: int = FLIGHTS, steps: int = STEPS) -> Dataset:
    """Steps of `rows` vehicles: plans in the exact system, with uniform noise of up to 0, ... 0.3 on each motor."""
    env, source = make_vec(SYSTEM, rows), np.random.default_rng(0)
    pilot = PlannerPolicy(PLANNER, NativeDynamics(SYSTEM), torch.zeros(4), torch.ones(4))
    memory, scale = pilot.begin(rows), np.linspace(0, 0.3, rows)[:, None]
    now, found = env.reset(seed=1)[0], []
    for _ in range(steps):
        planned, memory = pilot.act(torch.from_numpy(now), memory)
        actions = np.clip(planned.numpy() + scale * source.uniform(-1, 1, planned.shape), 0, 1).astype(np.float32)
        after, rewards, terminated, truncated, info = env.step(actions)
        following = np.where((terminated | truncated)[:, None], info.get("final_obs", after), after)
        found.append((now, actions, rewards, following, terminated, truncated))
        ended = torch.from_numpy(terminated | truncated)
        memory = pilot.observe_outcome(memory, torch.zeros(rows), torch.zeros(rows), ended)
        now = after
    env.close()
    seen, taken, rewards, following, terminated, truncated = (np.stack(part, 1) for part in zip(*found, strict=True))
    truncated[:, -1] |= ~terminated[:, -1]
    ends = (terminated | truncated).reshape(-1)
    flat = {"observations": seen, "actions": taken, "rewards": rewards, "next_observations": following}
    columns = {name: value.reshape(-1, *value.shape[2:]).astype(np.float32) for name, value in flat.items()}
    episode = np.concatenate([[0], ends[:-1].cumsum()]).astype(np.int64)
    return Dataset(
        **columns, terminations=terminated.reshape(-1), truncations=truncated.reshape(-1), episode_ids=episode,
        valid=np.ones(len(ends), np.bool_), env_id=system(SYSTEM).gym_id, name="flights",
    )  # fmt: skip


def model(updates: int = UPDATES, folder: pathlib.Path = MODEL, **given: int) -> GaussianEnsemble:
    """The ensemble, learned once (seed 0)."""
    if not (folder / "summary.json").is_file():
        data = flights(**given)
        options = {"model_hidden": (128, 128), "model_decays": (), "model_members": MEMBERS, "model_elites": MEMBERS}
        options["reward_function"] = AUTO
        agent = LearnedDynamics(data, **options, model_normalize_targets=True, model_epoch=500, model_patience=10_000)
        fit(agent, data, env=SYSTEM, steps=updates, seeds=1, out=folder)
    found: GaussianEnsemble = load_agent(Run.open(folder)).model  # type: ignore[assignment]
    found.costs_of = violations
    return found


def cell(arm: str, block: int, episodes: int = BLOCK, planner: ICEM = PLANNER, **given: Any) -> dict[str, Any]:
    """Episodes of one arm."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    world = NativeDynamics(SYSTEM) if arm == EXACT else model(**given)
    began, cpu = time.perf_counter(), time.process_time()
    policy = PlannerPolicy(planner, world, torch.zeros(4), torch.ones(4), ARMS.get(arm, Objective(cost_limit=0.0)))
    found = evaluate([policy], SYSTEM, episodes, seed=block, num_envs=episodes)[0]
    assert found.violations is not None
    return {
        "arm": arm,
        "returns": found.returns.tolist(),
        "violations": (found.violations > 0).astype(int).tolist(),
        "lengths": found.lengths.tolist(),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "git": git_commit(),
    }


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Planning for CVaR in a learned ensemble",
        "",
        f"{SYSTEM}; {MEMBERS} networks of 2 x 128 learned from {FLIGHTS * STEPS:,} steps of noisy flights in "
        f"{UPDATES:,} updates; iCEM, {PLANNER.samples} samples, {PLANNER.iterations} iterations, {PLANNER.horizon} "
        "steps ahead. Limits are steps with a violation within the horizon, at the same risk as the return; the task's "
        "reward and where the constraint lies are known. Written by `python benchmarks/risk_learned.py`.",
        "",
        "| plans for | episodes | return [95 %] | violations | share [95 %, Clopper-Pearson] | CPU s an episode |",
        "|---|---|---|---|---|---|",
    ]
    for arm in (*ARMS, EXACT):
        cells = [one for one in found.values() if one.get("arm") == arm]
        if not cells:
            continue
        returns = np.concatenate([one["returns"] for one in cells])
        broken = int(sum(sum(one["violations"]) for one in cells))
        shares, mean = certificate(broken, len(returns)).to_json(), hierarchical_interval([returns]).to_json()
        seconds = sum(one["cpu_seconds"] for one in cells) / len(returns)
        lines.append(
            f"| {arm} | {len(returns)} | {mean['mean']:.1f} [{mean['low']:.1f}, {mean['high']:.1f}] | {broken} | "
            f"{shares['rate']:.3g} [{shares['low']:.3g}, {shares['high']:.3g}] | {seconds:.2f} |"
        )
    goal = (
        "Wanted: a third of the violations of planning for the mean, at 90 % of its return or better, over "
        f"{WANTED:,} episodes; the episodes that were run are in the table."
    )
    return [*lines, "", goal, "", f"{len(found)} of {(len(ARMS) + 1) * BLOCKS} cells of {BLOCK} episodes are there."]


def quick() -> dict[str, Any]:
    """A model of a few updates, and one episode of plans of a few candidates."""
    with tempfile.TemporaryDirectory() as folder:
        small = {"rows": 8, "steps": 60, "updates": 20, "folder": pathlib.Path(folder) / "run"}
        return cell("cvar:0.2, limit 0", 0, 1, ICEM(horizon=2, samples=8, iterations=1), **small)


def main() -> None:
    """The command line."""
    cells = [
        Cell(f"{arm}, block {block}", functools.partial(cell, arm, block))
        for block in range(BLOCKS)
        for arm in (*ARMS, EXACT)
    ]
    study_main(__doc__, "risk_learned", cells, table, Cell("quick", quick))


if __name__ == "__main__":
    main()
