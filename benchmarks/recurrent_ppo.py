"""Recurrent PPO where velocities are hidden, beside sb3-contrib's RecurrentPPO at the same steps and settings.

    python benchmarks/recurrent_ppo.py              # compute what is missing, then write the table
    python benchmarks/recurrent_ppo.py --table      # only the table
    python benchmarks/recurrent_ppo.py --quick      # one small cell, for CI

The peer's cells need benchmarks/peers/setup.sh sb3; without it they are left missing. Settings are sb3-contrib's
defaults with 8 environments, our preset `sb3`. PPO without a memory, of the same settings, shows what it is good for.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, difference, entry, study_main, training_cell

from surefoot.core.base.errors import ConfigError
from surefoot.online import RecurrentPPO

EPISODES, SEEDS, POINTS = 20, (0, 1), 5
OURS, USUAL, BLIND, PEER = "lstm", "default", "without", "sb3-contrib"
FOLDER = pathlib.Path(__file__).resolve().parent / "peers"
PEER_PYTHON = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "sb3" / "bin" / "python"
MEMORYLESS = {n: v for n, v in RecurrentPPO.PRESETS["sb3"].items() if n != "memory_width"}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("recurrent_ppo", {"preset": "sb3"}),
    USUAL: ("recurrent_ppo", {}),
    BLIND: ("ppo", MEMORYLESS),
}
"""Ours -> algorithm and options."""


class Task(NamedTuple):
    """An environment of benchmarks/peers/hidden_velocities.py."""

    environment: str
    steps: int


TASKS = (Task("CartPoleHidden-v0", 30_000),)


def ours(side: str, task: Task, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed of ours."""
    algorithm, options = SIDES[side]
    if str(FOLDER) not in sys.path:  # of this process, and of the workers that it starts
        sys.path.append(str(FOLDER))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    environment = f"hidden_velocities:{task.environment}"
    return training_cell(algorithm, options, None, environment, seed, task.steps, EPISODES, evaluations=POINTS)


def peers(task: Task, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed of sb3-contrib in its own environment."""
    if not PEER_PYTHON.exists():
        raise ConfigError(f"{PEER_PYTHON} is missing: run benchmarks/peers/setup.sh sb3, or --only {OURS}")
    words = [str(FOLDER / "sb3_recurrent.py"), task.environment, *(str(n) for n in (task.steps, seed, EPISODES))]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([str(PEER_PYTHON), *words], capture_output=True, text=True, env=threads, check=False)
    if found.returncode != 0:
        raise ConfigError(f"{words[0]} failed: {found.stderr[-2000:]}")
    value: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return value


def cell_name(side: str, task: Task, seed: int) -> str:
    """Of a side, task and seed."""
    return f"{side}-{task.environment}-s{seed}"


def cells() -> list[Cell]:
    """All cells, ours first."""
    mine = [
        Cell(cell_name(side, task, seed), functools.partial(ours, side, task, seed))
        for seed in SEEDS
        for task in TASKS
        for side in SIDES
    ]
    theirs = [
        Cell(cell_name(PEER, task, seed), functools.partial(peers, task, seed)) for seed in SEEDS for task in TASKS
    ]
    return mine + theirs


def of_seeds(found: Results, side: str, task: Task) -> list[dict[str, Any]]:
    """The cells of each seed that are there."""
    names = (cell_name(side, task, seed) for seed in SEEDS)
    return [found[name] for name in names if name in found]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Recurrent PPO where velocities are hidden",
        "",
        f"Mean return of {EPISODES} episodes a seed with the last policy's likeliest action, {len(SEEDS)} seeds, with "
        "its 95 % interval over seeds and initial states. Settings are those of sb3-contrib's RecurrentPPO: 8 "
        "environments of 128 steps, 10 epochs, minibatches of 128 steps, an LSTM of 256 for actor and critic each. "
        "Ours by default has 16 environments, a memory of 128, a rate that falls to 0, and normalises observations and "
        "rewards. Wall seconds of training are of a shared, noisy machine. Written by "
        "`python benchmarks/recurrent_ppo.py`.",
        "",
        "| environment | steps | ours, these settings | ours, its defaults | PPO without memory | sb3-contrib "
        "| ours, these - sb3-contrib | s, ours | s, sb3-contrib |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        sides = {side: of_seeds(found, side, task) for side in (*SIDES, PEER)}
        returns = {side: [np.asarray(one["returns"]) for one in there] for side, there in sides.items()}
        row = [task.environment, f"{task.steps:,}"]
        row += [entry(returns[side], len(SEEDS)) for side in (OURS, USUAL, BLIND, PEER)]
        row.append(difference(returns[OURS], returns[PEER], False))
        for side in (OURS, PEER):
            seconds = [one["seconds"] for one in sides[side]]
            row.append(f"{np.median(seconds):.0f}" if seconds else "missing")
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A block or two of a small memory."""
    small = {"num_envs": 4, "horizon": 16, "minibatches": 2, "memory_width": 8, "hidden": (8,)}
    return training_cell("recurrent_ppo", small, None, "native/pendulum", 0, 128, 2, evaluations=1)


def main() -> None:
    """The command line."""
    study_main(__doc__, "recurrent_ppo", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
