"""Constrained algorithms on a grid whose best safe policy a linear programme knows.

    python benchmarks/safe_gridworld.py                 # compute what is missing, then write the table
    python benchmarks/safe_gridworld.py --only cpo
    python benchmarks/safe_gridworld.py --table         # only the table
    python benchmarks/safe_gridworld.py --quick         # one small cell, for CI

The grid is tests/safe/gridworld.py: 8 x 8 cells, slip 0.1, budget 1.5 where the best unconstrained policy spends 5.9. A
cell's figures are exact values of policies, not of sampled episodes: their mean over the policies after each block of
the last third of a run, which is the value of choosing one of these policies at random for each episode.
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
from study import Cell, git_commit, study_main

from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.safe import ALGORITHMS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "safe"))
from gridworld import OPTIONS, STEERED, Grid, GridWorld, SteeredGridWorld, move_chances

BLOCKS, SEEDS = 400, (0, 1, 2)
STEERED_STEPS = 512
"""Of SAC-Lag's blocks, in which it takes a quarter as many training steps."""


def train(algorithm: str, grid: Grid, blocks: int, seed: int) -> dict[str, Any]:
    """Train for so many blocks of 2,048 steps, and value the policy exactly after each."""
    torch.set_num_threads(1)
    kind: Any = ALGORITHMS[algorithm]
    config = kind.configure(**OPTIONS[algorithm], cost_limit=grid.budget)
    env = GridWorld(grid, config.num_envs)
    agent = kind(spec_of(env), config).fresh(seed)
    loop = OnPolicyLoop([agent], [seed], env, planned_steps=blocks * config.rows, kernels=True)
    cells, values, multipliers = torch.eye(grid.cells), [], []
    start = time.process_time()
    for _ in range(blocks):
        found = loop.run(1)
        with torch.no_grad():
            values.append(grid.value(agent.actor(cells).exp().double().numpy()))
        multipliers.append(found.get("multiplier", [0.0])[0])
    return {
        **_late(values, multipliers),
        "algorithm": algorithm,
        "options": OPTIONS[algorithm],
        "blocks": blocks,
        "seed": seed,
        "seconds": round(time.process_time() - start, 1),
        "git": git_commit(),
    }


def train_steered(grid: Grid, blocks: int, seed: int) -> dict[str, Any]:
    """Train SAC-Lag for so many blocks of `STEERED_STEPS` steps, and value the policy exactly after each."""
    torch.set_num_threads(1)
    kind: Any = ALGORITHMS["sac_lag"]
    config = kind.configure(**STEERED, cost_limit=grid.budget)
    env = SteeredGridWorld(grid, config.num_envs)
    agent = kind(spec_of(env), config).fresh(seed)
    loop = OffPolicyLoop([agent], [seed], env, planned_steps=blocks * STEERED_STEPS, batch_size=128, kernels=True)
    every, values, multipliers = torch.eye(grid.cells), [], []
    start = time.process_time()
    for _ in range(blocks):
        loop.run(STEERED_STEPS)
        with torch.no_grad():
            mean, log_std = agent.actor(every)
            values.append(grid.value(move_chances(mean.double().numpy(), log_std.exp().double().numpy())))
            multipliers.append(float(agent.multiplier()))
    return {**_late(values, multipliers), "algorithm": "sac_lag", "options": STEERED, "blocks": blocks, "seed": seed,
            "seconds": round(time.process_time() - start, 1), "git": git_commit()}  # fmt: skip


def _late(values: list[tuple[float, float]], multipliers: list[float]) -> dict[str, Any]:
    """Means over the last third of the blocks, and all values."""
    third = len(values) // 3
    late = np.asarray(values)[-third:].mean(0)
    return {
        "value": float(late[0]),
        "cost": float(late[1]),
        "multiplier": float(np.mean(multipliers[-third:])),
        "values": [[round(number, 4) for number in pair] for pair in values],
    }


def cells() -> list[Cell]:
    """All cells."""
    return [
        one
        for seed in SEEDS
        for one in (
            *(Cell(f"{name}-s{seed}", functools.partial(train, name, Grid(), BLOCKS, seed)) for name in OPTIONS),
            Cell(f"sac_lag-s{seed}", functools.partial(train_steered, Grid(), BLOCKS, seed)),
        )
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    grid = Grid()
    value, cost, dual = grid.best()
    free = grid.best(1e9)
    lines = [
        "# Constrained algorithms beside the linear programme",
        "",
        f"Grid of 8 x 8 cells, slip 0.1, budget {grid.budget:g}. The linear programme's value is {value:.3f} at cost "
        f"{cost:.3f} (multiplier {dual:.3f}); without the constraint {free[0]:.3f} at cost {free[1]:.3f}. Figures are "
        f"exact values, averaged over the policies of the last third of {BLOCKS} blocks of 2,048 steps. Written by "
        "`python benchmarks/safe_gridworld.py`.",
        "",
        "| algorithm | seed | value | of the optimum | cost | of the budget | multiplier | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in cells():
        if one.name not in found:
            lines.append(f"| {one.name.rsplit('-', 1)[0]} | {one.name[-1]} | missing | | | | | |")
            continue
        cell = found[one.name]
        multiplier = "-" if cell["algorithm"] == "cpo" else f"{cell['multiplier']:.3f}"
        lines.append(
            f"| {cell['algorithm']} | {cell['seed']} | {cell['value']:.3f} | {cell['value'] / value:.1%} | "
            f"{cell['cost']:.3f} | {cell['cost'] / grid.budget:.1%} | {multiplier} | {cell['seconds']:.0f} |"
        )
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A few blocks of CPO on a small grid."""
    return train("cpo", Grid(size=5, budget=1.0), 3, 0)


def main() -> None:
    """The command line."""
    study_main(__doc__, "safe_gridworld", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
