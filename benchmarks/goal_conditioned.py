"""Goal-conditioned algorithms on OGBench's mazes and puzzles, beside what was published.

    python benchmarks/goal_conditioned.py                  # compute what is missing, then write the table
    python benchmarks/goal_conditioned.py --only maze      # one task's cells
    python benchmarks/goal_conditioned.py --table          # only the table
    python benchmarks/goal_conditioned.py --quick          # one small cell, for CI

Data are drawn anew by OGBench's own scripts (`surefoot datasets generate`, 1,000 episodes, kept under
build/goal_conditioned): they are no published files. Networks have three layers of 256, batches 256 rows, and the
strength of cloning is OGBench's for the environment. 50 episodes at the end, each with one of the five goals, drawn.
Published figures are of networks of 512, batches of 1,024 rows and 1,000,000 updates, mean and deviation over 8 seeds
(Park, Frans, Eysenbach and Levine, "OGBench", 2025, table 2).
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

from cells import Results
from study import Cell, study_main, training_cell

from surefoot.data import load
from surefoot.data.dataset import Dataset
from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.tables import format_bounds
from surefoot.runs.recorded import generate

KEPT = pathlib.Path(__file__).parent.parent / "build" / "goal_conditioned"
UPDATES, EPISODES, RECORDED, SEEDS = 30_000, 50, 1000, (0, 1)
SMALL: dict[str, Any] = {"hidden": (256, 256, 256)}


class Task(NamedTuple):
    """Data and environment, the algorithms' presets there, and published success in per cent."""

    data: str
    presets: dict[str, dict[str, Any]]
    published: dict[str, str]


TASKS = {
    "maze": Task(
        "ogbench/pointmaze-medium-navigate",
        {name: {"preset": "point"} for name in ("gciql", "crl", "qrl")},
        {
            "gcbc": "9 +- 6",
            "gcivl": "63 +- 6",
            "gciql": "53 +- 8",
            "qrl": "82 +- 5",
            "crl": "29 +- 7",
            "hiql": "79 +- 5",
        },
    ),
    "puzzle": Task(
        "ogbench/puzzle-3x3-play",
        {name: {"preset": "manipulation"} for name in ("gciql", "crl", "qrl", "hiql")},
        {"gcbc": "2", "gcivl": "6 +- 1", "gciql": "95 +- 1", "qrl": "1", "crl": "3 +- 1", "hiql": "12 +- 2"},
    ),
}
ALGORITHMS = ("hiql", "gcivl", "gcbc", "gciql", "crl", "qrl")
"""Those that decide the published order first; qrl is the slowest."""


def data_of(task: str) -> Dataset:
    """Recorded at first use."""
    path = KEPT / f"{task}.hdf5"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        generate(TASKS[task].data, path, RECORDED, 0, 1)
    return load(path).replace(name=f"{TASKS[task].data}-{RECORDED}")


def learned(task: str, algorithm: str, seed: int) -> dict[str, Any]:
    """A run of one seed."""
    facts = TASKS[task]
    options = {**SMALL, **facts.presets.get(algorithm, {})}
    data = functools.partial(data_of, task)
    return training_cell(algorithm, options, data, f"{facts.data}-v0", seed, UPDATES, EPISODES, evaluations=1)


def cells() -> list[Cell]:
    """One seed of each algorithm in the maze, then in the puzzle, then the other seed."""
    return [
        Cell(f"{task}-{algorithm}-s{seed}", functools.partial(learned, task, algorithm, seed))
        for seed in SEEDS
        for task in TASKS
        for algorithm in ALGORITHMS
    ]


def table(found: Results) -> list[str]:
    """A table a task."""
    lines = [
        "# Goal-conditioned algorithms on OGBench",
        "",
        f"{UPDATES:,} updates, {EPISODES} episodes a seed, 95 % intervals over seeds and episodes. Written by "
        "`python benchmarks/goal_conditioned.py`, which says what was trained; the published figures are of larger "
        "networks, a million updates and other draws of the data.",
    ]
    for task, facts in TASKS.items():
        lines += ["", f"## {facts.data}, {RECORDED:,} episodes", ""]
        lines += ["| algorithm | seeds | success in % [95 %] | published | updates a second |", "|---|---|---|---|---|"]
        for algorithm in sorted(ALGORITHMS):
            own = [found[name] for name in (f"{task}-{algorithm}-s{seed}" for seed in SEEDS) if name in found]
            shown, rate = "missing", ""
            if own:
                interval = hierarchical_interval([[100 * x for x in one["successes"]] for one in own])
                shown = format_bounds(interval.to_json())
                rate = f"{sum(one['updates_per_second'] for one in own) / len(own):.0f}"
            lines.append(f"| {algorithm} | {len(own)} | {shown} | {facts.published[algorithm]} | {rate} |")
    return lines


def quick_cell() -> dict[str, Any]:
    """A few updates on a few episodes."""
    with tempfile.TemporaryDirectory() as folder:
        data = generate(TASKS["maze"].data, pathlib.Path(folder) / "maze.hdf5", 2, 0, 1)
    small = {"hidden": (16, 16)}
    return training_cell("gcivl", small, data, "ogbench/pointmaze-medium-navigate-v0", 0, 20, 2, evaluations=1)


if __name__ == "__main__":
    study_main(__doc__, "goal_conditioned", cells(), table, Cell("quick", quick_cell))
