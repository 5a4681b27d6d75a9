"""DQN, each part of Rainbow by itself, and their sum, on the cart-pole at few steps.

    python benchmarks/rainbow.py              # compute what is missing, then write the table
    python benchmarks/rainbow.py --table      # only the table
    python benchmarks/rainbow.py --quick      # one small cell, for CI

All settings but the parts are equal. The sum has quantiles, which need no range of returns to be chosen.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, difference, entry, study_main

from surefoot.envs.vector import make_vec
from surefoot.evaluation.rollout import evaluate
from surefoot.online import DQN, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop

TASK, STEPS, EPISODES, SEEDS, PARTS = "CartPole-v1", 20_000, 20, (0, 1), 10
OPTIONS: dict[str, Any] = {
    "num_envs": 8,
    "updates_per_step": 0.25,
    "initial_steps": 1_000,
    "epsilon_steps": 8_000,
    "target_every": 50,
    "learning_rate": 1e-3,
    "hidden": (64, 64),
}
QUANTILES: dict[str, Any] = {"returns": "quantile"}
SIDES: dict[str, dict[str, Any]] = {
    "dqn": {},
    "dueling": {"dueling": True},
    "n_step": {"n_step": 3},
    "priority": {"priority": 0.6, "priority_steps": 5_000},
    "noisy": {"noisy": 0.5},
    "quantile": QUANTILES,
    "categorical": {"returns": "categorical", "value_range": (0.0, 100.0)},
    "all": {"dueling": True, "n_step": 3, "priority": 0.5, "priority_steps": 5_000, "noisy": 0.5, **QUANTILES},
}


def trained(side: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one seed; returns of its last policy, and the mean of training returns of each tenth of the run."""
    torch.set_num_threads(1)
    env, began = make_vec(TASK, OPTIONS["num_envs"]), time.process_time()
    agent = DQN(spec_of(env), **OPTIONS, **SIDES[side]).fresh(seed)
    loop = OffPolicyLoop([agent], [seed], env, planned_steps=steps, batch_size=64, kernels=True)
    curve = []
    for _ in range(PARTS):
        found = loop.run(steps // PARTS)
        mean = found["episode_return"][0]
        curve.append([loop.step, mean if np.isfinite(mean) else None])
    seconds = time.process_time() - began
    (scores,) = evaluate([loop.learner.extract(0).policy()], TASK, EPISODES, seed=seed)
    returns = [float(value) for value in scores.returns]
    return {"returns": returns, "curve": curve, "seconds": seconds, "options": {**OPTIONS, **SIDES[side]}}


def cell_name(side: str, seed: int) -> str:
    """Of a side and a seed."""
    return f"{side}-s{seed}"


def cells() -> list[Cell]:
    """All cells, a seed of each side after another."""
    return [Cell(cell_name(s, seed), functools.partial(trained, s, seed)) for seed in SEEDS for s in SIDES]


def late(one: dict[str, Any]) -> np.ndarray:
    """Mean returns of the parts of the second half of a cell's training."""
    return np.asarray([value for _, value in one["curve"][PARTS // 2 :] if value is not None])


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# DQN, the parts of Rainbow and their sum",
        "",
        f"{TASK} after {STEPS:,} steps, {STEPS // 4:,} training steps of 64 rows: mean return of {EPISODES} episodes a "
        f"seed with the last greedy policy, {len(SEEDS)} seeds, with its 95 % interval; and of the training episodes "
        "of the second half, which include exploration. All other settings are equal, and none was tuned. Seconds of a "
        "core are those of training on a shared, noisy machine. Written by `python benchmarks/rainbow.py`.",
        "",
        "| part | last policy | less DQN's | training, second half | less DQN's | s |",
        "|---|---|---|---|---|---|",
    ]
    sides = {s: [found[cell_name(s, n)] for n in SEEDS if cell_name(s, n) in found] for s in SIDES}
    last = {s: [np.asarray(one["returns"]) for one in there] for s, there in sides.items()}
    halves = {s: [late(one) for one in there] for s, there in sides.items()}
    for side in SIDES:
        row = [side]
        for values in (last, halves):
            beside = "" if side == "dqn" else difference(values[side], values["dqn"], False)
            row += [entry(values[side], len(SEEDS)), beside]
        seconds = [one["seconds"] for one in sides[side]]
        row.append(f"{np.median(seconds):.0f}" if seconds else "missing")
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def main() -> None:
    """The command line."""
    study_main(__doc__, "rainbow", cells(), table, Cell("quick", functools.partial(trained, "all", 0, 2_000)))


if __name__ == "__main__":
    main()
