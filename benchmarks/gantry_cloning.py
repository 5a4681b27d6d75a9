"""Cloning `gantry-pick` from 100 demonstrations: BC, flow, diffusion and ACT from two cameras, beside the state.

    python benchmarks/gantry_cloning.py                  # compute what is missing, then write the table
    python benchmarks/gantry_cloning.py --only sides     # one task's cells
    python benchmarks/gantry_cloning.py --table          # only the table
    python benchmarks/gantry_cloning.py --quick          # one small cell, for CI

Demonstrations are drawn anew by the scripted expert with its noise (seed 0, kept under build/gantry_cloning), the same
episodes with pictures and without. All learn at 1e-3 from batches of 64 rows; pictures of 64 pixels go through a
`small` encoder a camera and are moved by up to 4 pixels (ACT: 2). BC gives an action a step; flow (4 steps) and
diffusion (DDIM, 5 of 100) a chunk of 8, of which 4 are played; ACT a chunk of 8, which is played whole. ACT has
`preset=small` and batches of 32 rows at 3e-4. Nothing was searched for but the number of updates, which is what a
core does in about a minute.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any, NamedTuple

from cells import Results
from study import Cell, difference, study_main, training_cell

from surefoot.data import load, save
from surefoot.data.dataset import Dataset
from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.tables import format_bounds
from surefoot.play.demonstrations import demonstrate

KEPT = pathlib.Path(__file__).parent.parent / "build" / "gantry_cloning"
DEMONSTRATIONS, EPISODES, SEEDS = 100, 50, (0, 1, 2)
PIXELS, STATE = "pixels", "state"
CHUNKED: dict[str, Any] = {"learning_rate": 1e-3, "preset": "visual_small"}


class Method(NamedTuple):
    """An algorithm, its options, and what it learns from in a step."""

    algorithm: str
    options: dict[str, Any]
    updates: int = 1_500
    batch_size: int = 64


METHODS = {
    "BC": Method("bc", {"learning_rate": 1e-3, "encoder": "small"}),
    "flow": Method("flow_bc", CHUNKED),
    "diffusion": Method("diffusion_bc", CHUNKED),
    "ACT": Method("act", {"preset": "small", "chunk": 8}, batch_size=32),
}
TASKS = {
    "gantry-pick": (PIXELS, STATE),
    "gantry-pick-sides": (PIXELS, STATE),
    "gantry-pick-shift": (PIXELS,),
    "gantry-pick-two-cubes": (PIXELS,),
}
"""Task -> what is seen; a camera that stands elsewhere and a color are nothing that a state has."""


def environment_of(task: str, seen: str) -> str:
    """The environment's name."""
    return task if seen == PIXELS else f"{task}-state"


def data_of(environment: str) -> Dataset:
    """Recorded at first use."""
    path = KEPT / f"{environment}.hdf5"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        save(demonstrate(environment, DEMONSTRATIONS), path)
    return load(path).replace(name=f"{environment}-expert-{DEMONSTRATIONS}")


def learned(method: Method, environment: str, seed: int) -> dict[str, Any]:
    """A run of one seed."""
    return training_cell(
        method.algorithm,
        method.options,
        functools.partial(data_of, environment),
        environment,
        seed,
        method.updates,
        EPISODES,
        evaluations=1,
        batch_size=method.batch_size,
    )


def name_of(task: str, seen: str, method: str, seed: int) -> str:
    """Of a cell."""
    return f"{task.removeprefix('gantry-')}-{seen}-{method.lower()}-s{seed}"


def cells() -> list[Cell]:
    """The two tasks that decide first, one seed of each; ACT, the slowest, behind the others of its seed."""
    tasks = list(TASKS)
    rounds = [(tasks[:2], seed) for seed in SEEDS] + [(tasks[2:], seed) for seed in SEEDS]
    return [
        Cell(
            name_of(task, seen, method, seed),
            functools.partial(learned, METHODS[method], environment_of(task, seen), seed),
        )
        for some, seed in rounds
        for methods in (("BC", "flow", "diffusion"), ("ACT",))
        for task in some
        for seen in TASKS[task]
        for method in methods
    ]


def successes(found: Results, task: str, seen: str, method: str) -> list[list[float]]:
    """Of each seed that is there, 100 for each episode that was solved and 0 for another."""
    names = (name_of(task, seen, method, seed) for seed in SEEDS)
    return [[100 * value for value in found[name]["successes"]] for name in names if name in found]


def table(found: Results) -> list[str]:
    """A row of each task, view and method; then the differences from BC."""
    lines = [
        "# gantry-pick, cloned",
        "",
        f"{DEMONSTRATIONS} demonstrations, {EPISODES} episodes a seed from the same initial states, success in % with "
        "95 % intervals over seeds and episodes. Seconds are of training on one core shared with other work. Written "
        "by `python benchmarks/gantry_cloning.py`, which says what was trained.",
        "",
        "| task | from | method | updates | seeds | success in % [95 %] | above BC | seconds a seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, views in TASKS.items():
        for seen in views:
            plain = successes(found, task, seen, "BC")
            for method, facts in METHODS.items():
                own = successes(found, task, seen, method)
                shown, above, seconds = "missing", "", ""
                if own:
                    shown = format_bounds(hierarchical_interval(own, bounds=(0, 100)).to_json())
                    above = "" if method == "BC" else difference(own, plain)
                    names = [name_of(task, seen, method, seed) for seed in SEEDS]
                    spent = [found[name]["seconds"] for name in names if name in found]
                    seconds = f"{sum(spent) / len(spent):.0f}"
                lines.append(
                    f"| `{task}` | {seen} | {method} | {facts.updates:,} | {len(own)} | {shown} | {above} | {seconds} |"
                )
    return lines


def quick_cell() -> dict[str, Any]:
    """A few updates on a few demonstrations."""
    with tempfile.TemporaryDirectory() as folder:
        save(demonstrate("gantry-pick", 2), pathlib.Path(folder) / "two.hdf5")
        data = load(pathlib.Path(folder) / "two.hdf5")
    return training_cell("flow_bc", CHUNKED, data, "gantry-pick", 0, 4, 2, evaluations=1, batch_size=8)


if __name__ == "__main__":
    study_main(__doc__, "gantry_cloning", cells(), table, Cell("quick", quick_cell))
