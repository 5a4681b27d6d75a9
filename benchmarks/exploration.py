"""Exploration bonuses where the top of a hill alone pays: PPO with each of them and without.

    python benchmarks/exploration.py              # compute what is missing, then write the table
    python benchmarks/exploration.py --table      # only the table
    python benchmarks/exploration.py --quick      # one small cell, for CI

The task is benchmarks/peers/sparse_hill.py, compiled by numba. All options but the bonus are the same in all cells, the
bonus's are the defaults but for the cells of counts, which are of the width of a tenth of the valley.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import time
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, difference, entry, study_main

from surefoot.envs.native import NativeVectorEnv
from surefoot.evaluation.rollout import evaluate
from surefoot.online import PPO, spec_of
from surefoot.online.loops.loop import make_loop

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "peers"))
from sparse_hill import hill

SIDES = ("none", "rnd", "icm", "disagreement", "counts")
SEEDS, STEPS, EPISODES, CHUNK = (0, 1, 2), 200_000, 20, 20_480
OPTIONS: dict[str, Any] = {
    "num_envs": 16,
    "horizon": 128,
    "epochs": 4,
    "minibatches": 8,
    "schedule": "constant",
    "bonus_cell": 0.2,
}


def trained(side: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one seed and evaluate its last policy: returns, and steps until half of the training episodes arrived."""
    torch.set_num_threads(1)
    env, began = NativeVectorEnv(hill, OPTIONS["num_envs"]), time.process_time()
    agent = PPO(spec_of(env), **OPTIONS, bonus=None if side == "none" else side)
    loop = make_loop([agent.fresh(seed)], [seed], env, planned_steps=steps, kernels=True)
    curve, half = [], None
    while loop.step < steps:
        found = loop.run(CHUNK)
        curve.append([loop.step, found["episode_return"][0]])
        if half is None and found["episode_return"][0] >= 0.5:
            half = loop.step
    seconds = time.process_time() - began
    (scores,) = evaluate([loop.learner.extract(0).policy()], "python/sparse_hill-v0", EPISODES, seed=seed)
    returns = [float(value) for value in scores.returns]
    return {"returns": returns, "half": half, "curve": curve, "seconds": seconds, "options": OPTIONS}


def cell_name(side: str, seed: int) -> str:
    """Of a bonus and a seed."""
    return f"{side}-s{seed}"


def cells() -> list[Cell]:
    """All cells, a seed of each side after another."""
    return [Cell(cell_name(s, seed), functools.partial(trained, s, seed)) for seed in SEEDS for s in SIDES]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Exploration bonuses where the top of a hill alone pays",
        "",
        f"PPO after {STEPS:,} steps of `benchmarks/peers/sparse_hill.py`, a car that must swing to climb: per cent "
        f"of {EPISODES} episodes a seed that arrive with the mean action, {len(SEEDS)} seeds, with its 95 % interval; "
        f"and the steps after which half of the training episodes of the last {CHUNK:,} steps arrived, of each seed. "
        "All other options are the same. Seconds of a core are those of training. Written by "
        "`python benchmarks/exploration.py`.",
        "",
        "| bonus | arrives | less that without | steps until half arrive | s |",
        "|---|---|---|---|---|",
    ]
    sides = {s: [found[cell_name(s, n)] for n in SEEDS if cell_name(s, n) in found] for s in SIDES}
    returns = {s: [100 * np.asarray(one["returns"]) for one in there] for s, there in sides.items()}
    for side in SIDES:
        halves = ", ".join("never" if one["half"] is None else f"{one['half']:,}" for one in sides[side])
        beside = "" if side == "none" else difference(returns[side], returns["none"], False)
        seconds = [one["seconds"] for one in sides[side]]
        shown = f"{np.median(seconds):.0f}" if seconds else "missing"
        lines.append(f"| {side} | {entry(returns[side], len(SEEDS))} | {beside} | {halves} | {shown} |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def main() -> None:
    """The command line."""
    study_main(__doc__, "exploration", cells(), table, Cell("quick", functools.partial(trained, "rnd", 0, 2048)))


if __name__ == "__main__":
    main()
