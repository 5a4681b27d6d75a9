"""SAC whose first episodes start from snapshots of a log, beside the same steps from the task's own starts.

    python benchmarks/snapshots.py              # compute what is missing, then write the table
    python benchmarks/snapshots.py --table      # only the table
    python benchmarks/snapshots.py --quick      # one small cell, for CI

The log is the task's embedded expert dataset: its states follow from the observations, their values are discounted
returns to go. `uniform` draws of all snapshots alike and cuts no episode off.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, difference, entry, study_main, training_cell

EPISODES, SEEDS, POINTS = 20, (0, 1), 4
OPTIONS: dict[str, Any] = {"hidden": (64, 64)}
PLAIN, CLUSTERS, UNIFORM = "own starts", "six clusters, 100 steps", "uniform, whole episodes"


class Task(NamedTuple):
    """A native system, how long it is learned, and for how many of these steps episodes start from snapshots."""

    system: str
    steps: int
    until: int


TASKS = (Task("point-maze", 10_000, 6_000), Task("cartpole-swingup", 10_000, 6_000))


def sides(task: Task) -> dict[str, dict[str, Any]]:
    """Side -> settings of its runs."""
    starts = {"starts": f"native/{task.system}-expert", "starts_until": task.until}
    return {PLAIN: {}, CLUSTERS: starts, UNIFORM: {**starts, "starts_clusters": 1, "starts_truncate": 0}}


def one(task: Task, side: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed from the task's own initial states."""
    environment = f"native/{task.system}"
    given = task.steps, EPISODES, None, POINTS
    return training_cell("sac", OPTIONS, None, environment, seed, *given, settings=sides(task)[side])


def cell_name(task: Task, side: str, seed: int) -> str:
    """Of a task, side and seed."""
    return f"{task.system}-{side}-s{seed}"


def cells() -> list[Cell]:
    """All cells."""
    return [
        Cell(cell_name(task, side, seed), functools.partial(one, task, side, seed))
        for seed in SEEDS
        for task in TASKS
        for side in sides(task)
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Starts from snapshots",
        "",
        f"SAC of two layers of 64; mean return of {EPISODES} episodes from the task's own initial states with the "
        f"last policy, {len(SEEDS)} seeds, with its 95 % interval over seeds and initial states. Snapshots are states "
        "of the embedded expert dataset, worth the discounted return to go. Steps are equal. Written by "
        "`python benchmarks/snapshots.py`.",
        "",
        "| task | steps | of which from snapshots | starts | return | more than own starts |",
        "|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        returns = {
            side: [
                np.asarray(found[name]["returns"]) for seed in SEEDS if (name := cell_name(task, side, seed)) in found
            ]
            for side in sides(task)
        }
        for side, there in returns.items():
            steps = f"{task.steps:,}", "0" if side == PLAIN else f"{task.until:,}"
            more = "" if side == PLAIN else difference(there, returns[PLAIN], False)
            lines.append(f"| {task.system} | {steps[0]} | {steps[1]} | {side} | {entry(there, len(SEEDS))} | {more} |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A few steps from snapshots."""
    settings = {"starts": "native/pendulum-mixed", "starts_until": 100, "starts_truncate": 20}
    return training_cell("sac", {"hidden": (8,)}, None, "native/pendulum", 0, 200, 2, evaluations=1, settings=settings)


def main() -> None:
    """The command line."""
    study_main(__doc__, "snapshots", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
