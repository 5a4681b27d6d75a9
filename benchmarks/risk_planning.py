"""Does planning for CVaR keep a quadrotor out of what planning for the mean flies into? One plan for five worlds.

    python benchmarks/risk_planning.py            # compute what is missing, then write the table
    python benchmarks/risk_planning.py --quick    # few episodes, for CI

The quadrotor in space with its no-fly sphere, walls and tilt limit. Mass, wind and motor lag of the vehicle are drawn
anew for each episode and unknown to the planner. It has an ensemble of five worlds, drawn from the same distribution
once, and plans anew at each step for one future in each of them (epistemic spread, TSinf). All arms have the same
planner, worlds, vehicles and initial states; "mean world" plans for one future with the ensemble's mean parameters. An
episode is a violation where the constraint is broken at any step. Cells are counted by what `surefoot certify --planner
--vary --worlds` does, block after block; bounds of the table hold whenever one stops.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from cells import Results
from study import Cell, git_commit, study_main

from surefoot.evaluation import hierarchical_interval, sequential_certificate
from surefoot.play.plan import planning_actor, world_for
from surefoot.safety.certify import certify
from surefoot.safety.variants import Ranges, drawn
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners import ICEM
from surefoot.world_models.risk import CVaR, Mean

SYSTEM = "native/quadrotor-3d"
SPREAD: Ranges = {"mass": (0.0216, 0.0338), "wind_x": (-4.0, 4.0), "wind_y": (-4.0, 4.0), "lag": (0.02, 0.05)}
"""Parameter -> range that it is drawn from: kg, m/s, m/s, s."""
MEMBERS, BLOCK, BLOCKS = 5, 100, 100
PLANNER = ICEM(horizon=30, samples=100, iterations=3, sigma=0.3)
ARMS: dict[str, Objective] = {
    "mean, no limit": Objective(futures=MEMBERS, spread="epistemic", risk=Mean()),
    "mean world, limit 0": Objective(cost_limit=0.0),
    "mean, limit 1": Objective(futures=MEMBERS, spread="epistemic", risk=Mean(), cost_limit=1.0),
    "cvar:0.2, limit 1": Objective(futures=MEMBERS, spread="epistemic", risk=CVaR(0.2), cost_limit=1.0),
    "cvar:0.2, limit 0": Objective(futures=MEMBERS, spread="epistemic", risk=CVaR(0.2), cost_limit=0.0),
}
"""Limits are steps with a violation within the horizon of 30, at the same risk as the return."""
DECISIVE, FIRST = ("mean, limit 1", "cvar:0.2, limit 0"), 3
"""Arms that all blocks are run of; of the others only so many first ones."""


def cell(arm: str, block: int, episodes: int = BLOCK) -> dict[str, Any]:
    """Episodes of one arm: one a vehicle."""
    torch.set_num_threads(1)
    began, cpu = time.perf_counter(), time.process_time()
    world = world_for(SYSTEM, None, threads=1, constants=drawn(SPREAD, MEMBERS, seed=1))
    actor = planning_actor(world, PLANNER, ARMS[arm])
    found = certify(actor, episodes, seed=100 + block, ranges=SPREAD, side_by_side=min(episodes, 50))
    return {
        "arm": arm,
        "certified": found.to_json(),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "git": git_commit(),
    }


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Planning for CVaR with an ensemble of worlds",
        "",
        f"{SYSTEM}, vehicles with mass, wind and motor lag that the planner does not know; iCEM, {PLANNER.samples} "
        f"samples, {PLANNER.iterations} iterations, {PLANNER.horizon} steps ahead, {MEMBERS} worlds. Limits are steps "
        "with a violation within the horizon, at the same risk as the return. "
        "Written by `python benchmarks/risk_planning.py`.",
        "",
        "| plans for | episodes | return [95 %] | violations | share [95 %, at every look] | CPU s an episode |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        cells = [one for one in found.values() if one["arm"] == arm]
        if not cells:
            continue
        episodes = sum(one["certified"]["episodes"] for one in cells)
        broken = sum(one["certified"]["violations"] for one in cells)
        shares = sequential_certificate(broken, episodes).to_json()
        mean = hierarchical_interval([[one["certified"]["returns"]["mean"] for one in cells]]).to_json()
        seconds = sum(one["cpu_seconds"] for one in cells) / episodes
        lines.append(
            f"| {arm} | {episodes} | {mean['mean']:.1f} [{mean['low']:.1f}, {mean['high']:.1f}] | {broken} | "
            f"{shares['rate']:.3g} [{shares['low']:.3g}, {shares['high']:.3g}] | {seconds:.2f} |"
        )
    wanted = len(DECISIVE) * BLOCKS + (len(ARMS) - len(DECISIVE)) * FIRST
    goal = "Wanted: a third of the violations of planning for the mean, at 90 % of its return or better."
    return [
        *lines,
        "",
        goal,
        "",
        f"{len(found)} of {wanted} cells of {BLOCK} episodes are there.",
    ]


def main() -> None:
    """The command line."""
    first = [
        (arm, block) for block in range(FIRST) for arm in (*DECISIVE, *(arm for arm in ARMS if arm not in DECISIVE))
    ]
    later = [(arm, block) for block in range(FIRST, BLOCKS) for arm in DECISIVE]
    cells = [Cell(f"{arm}, block {block}", functools.partial(cell, arm, block)) for arm, block in first + later]
    study_main(__doc__, "risk_planning", cells, table, Cell("quick", lambda: cell("cvar:0.2, limit 0", 0, 2)))


if __name__ == "__main__":
    main()
