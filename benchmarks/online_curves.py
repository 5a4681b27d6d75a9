"""Learning curves of SAC, TD3 and PPO on MuJoCo's tasks, beside stable-baselines3's on the same tasks and steps.

    python benchmarks/online_curves.py                      # compute what is missing, then write table and pictures
    python benchmarks/online_curves.py --only sac-HalfCheetah
    python benchmarks/online_curves.py --table              # only table and pictures
    python benchmarks/online_curves.py --quick              # one small cell, for CI

The peer's cells need benchmarks/peers/setup.sh sb3; without it they are left missing. Settings are the same on both
sides: see benchmarks/peers/sb3_curves.py.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import RESULTS, Cell, curve_points, difference, entry, study_main, training_cell

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import plots

EPISODES, SEEDS, POINTS = 20, (0, 1, 2), 10
OURS, PEER = "surefoot", "stable-baselines3"
PEER_PYTHON = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "sb3" / "bin" / "python"


class Task(NamedTuple):
    """One algorithm on one environment."""

    algorithm: str
    environment: str
    steps: int
    options: dict[str, Any]
    compared: bool = True  # whether the peer is trained too
    wanted: float | None = None  # mean return that ours should exceed, where there is a reference

    @property
    def name(self) -> str:
        """Of its cells."""
        return f"{self.algorithm}-{self.environment}"


ZOO = {"preset": "zoo"}
TASKS = (
    Task("sac", "HalfCheetah-v5", 100_000, ZOO, wanted=3000),
    Task("sac", "Hopper-v5", 100_000, ZOO),
    Task("sac", "Walker2d-v5", 100_000, ZOO, compared=False),  # for streaming_mujoco.py
    Task("td3", "HalfCheetah-v5", 100_000, ZOO),
    Task("ppo", "Hopper-v5", 300_000, {}, wanted=1000),
    Task("ppo", "Walker2d-v5", 300_000, {}),
)


def ours(task: Task, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed of ours."""
    options = (task.algorithm, task.options, None, task.environment, seed, task.steps, EPISODES)
    return training_cell(*options, evaluations=POINTS)


def peers(task: Task, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed of stable-baselines3 in its own environment."""
    if not PEER_PYTHON.exists():
        raise ConfigError(f"{PEER_PYTHON} is missing: run benchmarks/peers/setup.sh sb3, or --only {OURS}")
    script = str(pathlib.Path(__file__).parent / "peers" / "sb3_curves.py")
    words = [task.algorithm, task.environment, *(str(n) for n in (task.steps, seed, EPISODES))]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([str(PEER_PYTHON), script, *words], capture_output=True, text=True, env=threads, check=False)
    if found.returncode != 0:
        raise ConfigError(f"{script} failed: {found.stderr[-2000:]}")
    value: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return value


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next, ours first."""
    return [
        Cell(f"{side}-{task.name}-s{seed}", functools.partial(compute, task, seed))
        for side, compute in ((OURS, ours), (PEER, peers))
        for seed in SEEDS
        for task in TASKS
        if side == OURS or task.compared
    ]


def returns_of(found: dict[str, dict[str, Any]], side: str, task: Task) -> list[np.ndarray]:
    """Per-episode returns of each seed that is there."""
    names = [f"{side}-{task.name}-s{seed}" for seed in SEEDS]
    return [np.asarray(found[name]["returns"]) for name in names if name in found]


def speed(found: dict[str, dict[str, Any]], side: str, task: Task) -> str:
    """Median wall-clock seconds of the seeds."""
    seconds = [found[n]["seconds"] for n in (f"{side}-{task.name}-s{s}" for s in SEEDS) if n in found]
    return f"{np.median(seconds):.0f}" if seconds else "missing"


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there; draws the curves too."""
    names = [one.name for one in cells()]
    lines = [
        "# Online learning beside stable-baselines3",
        "",
        f"Mean return of {EPISODES} episodes a seed with the last policy's mean action, {len(SEEDS)} seeds, with its "
        "95 % interval over seeds and initial states. Wall seconds of training are of a shared, noisy machine. Written "
        "by `python benchmarks/online_curves.py`.",
        "",
        "| algorithm | environment | steps | ours | wanted | stable-baselines3 | ours - theirs | s, ours | s, theirs "
        "| curves |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        mine, theirs = returns_of(found, OURS, task), returns_of(found, PEER, task)
        row = [task.algorithm.upper(), task.environment, f"{task.steps:,}", entry(mine, len(SEEDS))]
        row.append(verdict(task, mine))
        row += [entry(theirs, len(SEEDS)), difference(mine, theirs, False)] if task.compared else ["not trained", "-"]
        row += [speed(found, OURS, task), speed(found, PEER, task) if task.compared else "-"]
        row.append(draw(found, task))
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", f"{len(found)} of {len(names)} cells are there."]
    return lines


def verdict(task: Task, returns: list[np.ndarray]) -> str:
    """The reference returns, and whether ours exceed them."""
    if task.wanted is None:
        return "-"
    if len(returns) < len(SEEDS):
        return f"> {task.wanted:.0f}"
    mean = float(np.mean([one.mean() for one in returns]))
    return f"> {task.wanted:.0f}: {'yes' if mean > task.wanted else 'NO'}"


def draw(found: dict[str, dict[str, Any]], task: Task) -> str:
    """Write the picture of a task's curves and return a link to it, or "missing" where there are none."""
    curves = {}
    for side in (OURS, PEER):
        lines = [found[n]["curve"] for n in (f"{side}-{task.name}-s{s}" for s in SEEDS) if n in found]
        if lines:
            curves[side] = curve_points(lines)
    if not curves:
        return "missing"
    picture = f"{task.name}.png"
    title = f"{task.algorithm.upper()}, {task.environment}"
    figure = plots.learning_curves(curves, title=title, steps_of="environment steps")
    plots.save_png(figure, RESULTS / "online_curves" / picture)
    return f"[picture](online_curves/{picture})"


def quick_cell() -> dict[str, Any]:
    """A few steps of TD3."""
    small = {"initial_steps": 50, "hidden": (32, 32)}
    return training_cell("td3", small, None, "native/pendulum", 0, 200, 2, evaluations=2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "online_curves", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
