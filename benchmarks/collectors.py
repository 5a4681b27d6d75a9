"""What collectors cost: CPU, messages and bytes of each step, beside the loop that acts by itself.

    python benchmarks/collectors.py             # computes what is missing in results/collectors.jsonl
    python benchmarks/collectors.py --quick     # one small cell, for CI
    python benchmarks/collectors.py --table

Blocks of PPO (two layers of 64) are collected and not learned from, so that what is measured is acting and its
transport: of each collector eight environments and 4,096 steps a block, as of the loop that acts by itself. CPU is that
of all processes, the learner's own beside it; wall time would say how busy the machine was. Cells of Ray need its
extra; `--only processes` leaves them out.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import psutil
import torch
from study import Cell, git_commit, study_main

from surefoot.envs.acting import spec_of
from surefoot.envs.training import make_training
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.online.remote.team import Elsewhere
from surefoot.runs.inputs import training_environment
from surefoot.runs.plan import Plan
from surefoot.runs.processes.collectors import team_environment

ROWS, BLOCKS, TOGETHER = 4096, 10, 8
"""Steps of a collector in a block; blocks that are measured; environments of a collector."""
ENVIRONMENTS = {"native/quadrotor-2d": "quadrotor-2d", "HalfCheetah-v5": "HalfCheetah"}


def cpu_of_children() -> float:
    """CPU seconds of all processes below this one."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def collected(environment: str, collectors: str | None, workers: int, blocks: int = BLOCKS) -> dict[str, Any]:
    """Costs of `blocks` blocks after the first."""
    torch.set_num_threads(1)
    config = PPOConfig(num_envs=TOGETHER * workers, horizon=ROWS // TOGETHER)
    plan = Plan(algorithm="ppo", config=dataclasses.asdict(config), environment=environment, steps=10**6, seeds=(0,),
                collectors=collectors, workers=workers)  # fmt: skip
    like = make_training(environment, 1)
    agent = PPO(spec_of(like), config).fresh(0)
    like.close()
    if collectors is None:
        env: Any = training_environment(plan, agent)
    else:
        env = team_environment(plan, agent, 0, print)
    loop = make_loop([agent], [0], env, planned_steps=10**6, kernels=True)
    assert isinstance(loop, OnPolicyLoop)
    loop.blocks.warm_up()
    loop.blocks.fill(0)
    team = env.team if isinstance(env, Elsewhere) else None
    counts = (0, 0, 0) if team is None else (team.messages, team.sent, team.received)
    own, others, wall = time.process_time(), cpu_of_children(), time.perf_counter()
    for number in range(1, blocks + 1):
        loop.blocks.warm_up()
        loop.blocks.fill(number)
    own, others, wall = time.process_time() - own, cpu_of_children() - others, time.perf_counter() - wall
    steps = blocks * ROWS * workers
    found = {
        "environment": environment,
        "collectors": collectors,
        "workers": workers,
        "steps": steps,
        "cpu_us_per_step": round(1e6 * (own + others) / steps, 2),
        "learner_us_per_step": round(1e6 * own / steps, 3),
        "wall_us_per_step": round(1e6 * wall / steps, 2),
        "git": git_commit(),
    }
    if team is not None:
        messages, sent, received = (
            after - before for after, before in zip((team.messages, team.sent, team.received), counts, strict=True)
        )
        found |= {"messages": messages, "bytes_per_step": round((sent + received) / steps, 1),
                  "weights_bytes": sent // (blocks * workers)}  # fmt: skip
        team.close()
    if collectors == "ray":
        import ray

        ray.shutdown()
    return found


WAYS: list[tuple[str | None, int]] = [(None, 1), *((kind, w) for kind in ("processes", "ray") for w in (1, 2, 4))]
CELLS = [
    Cell(f"{short} {way or 'local'} {workers}", lambda e=env, c=way, w=workers: collected(e, c, w))  # type: ignore[misc]
    for env, short in ENVIRONMENTS.items()
    for way, workers in WAYS
]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The page."""
    lines = [
        "# Collectors",
        "",
        "What it costs to let collectors act: PPO's policy of two layers of 64, for each collector 8 environments and",
        "4,096 steps a block, which are not learned from. CPU of all processes (and of the learner's alone) in",
        "microseconds a step; bytes both ways. One measurement of ten blocks a row, on two cores that other work",
        "shared: CPU times vary by a third and more.",
        "",
        "| environment | who acts | CPU, µs/step | of it the learner's | messages a block | bytes a step |",
        "|---|---|---|---|---|---|",
    ]
    for one in found.values():
        who = "the loop itself" if one["collectors"] is None else f"{one['workers']} x {one['collectors']}"
        messages = "-" if one["collectors"] is None else f"{one['messages'] / BLOCKS:.0f}"
        lines.append(
            f"| {one['environment']} | {who} | {one['cpu_us_per_step']:.1f} | {one['learner_us_per_step']:.2f} | "
            f"{messages} | {one.get('bytes_per_step', '-')} |"
        )
    lines += ["", *predicted(found)]
    return lines


def predicted(found: dict[str, dict[str, Any]]) -> list[str]:
    """What the figures say of many cores: how many a learner's one core can hear."""
    lines = ["## What that predicts", "", "| environment | way | a core acts, steps/s | a learner takes, steps/s | "
             "cores that it can hear | 100 cores | 10,000 cores |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for environment in ENVIRONMENTS:
        mine = [one for one in found.values() if one["environment"] == environment]
        for way in ("processes", "ray"):
            four = next((one for one in mine if (one["collectors"], one["workers"]) == (way, 4)), None)
            if four is None:
                continue
            acting = four["cpu_us_per_step"] - four["learner_us_per_step"]
            core, takes = 1e6 / acting, 1e6 / four["learner_us_per_step"]
            shown = [f"{min(cores * core, takes):,.0f} steps/s" for cores in (100, 10_000)]
            row = [environment, way, f"{core:,.0f}", f"{takes:,.0f}", f"{takes / core:,.0f}", *shown]
            lines.append(f"| {' | '.join(row)} |")
    return lines


if __name__ == "__main__":
    study_main(__doc__, "collectors", CELLS, table,
               Cell("quick", lambda: collected("native/quadrotor-2d", "processes", 2, 1)))  # fmt: skip
