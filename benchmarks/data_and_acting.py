"""Do algorithms that learn from data and online get further than the data? On the pendulum, small networks.

    python benchmarks/data_and_acting.py              # compute what is missing, then write the table
    python benchmarks/data_and_acting.py --only rlpd
    python benchmarks/data_and_acting.py --table      # only the table
    python benchmarks/data_and_acting.py --quick      # one small cell, for CI

pendulum-mixed-sb3 in Pendulum-v1: those that are started from a pre-trained policy get 5,000 updates on the data first.
DARC learns from data of native/pendulum and acts in one with doubled gravity; it is evaluated in the former. `family-*`
are FamO2O on that file alone with a range of coefficients, and with each of some fixed ones (which is IQL); `long-*`
the same for three times as many updates, after which IQL's values have come to rest; `medium-*` on data of
native/pendulum by a policy of middling skill, on which they have not.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, difference, entry, shared, study_main, training_cell

from surefoot.data.dataset import Dataset
from surefoot.runs.embedded import generate

DATASET, ENVIRONMENT = "pendulum-mixed-sb3", "Pendulum-v1"
WRONG, GAP = "native/pendulum", "gravity2"
EPISODES, SEEDS, PRETRAINING = 20, (0, 1, 2), 5_000
SMALL: dict[str, Any] = {"hidden": (128, 128)}
ONLINE: dict[str, Any] = {**SMALL, "initial_steps": 1_000}


class Task(NamedTuple):
    """One algorithm, and the algorithm whose networks it starts from."""

    title: str
    algorithm: str
    steps: int
    options: dict[str, Any]
    before: tuple[str, dict[str, Any]] | None = None  # and its options
    keeps_data: bool = True
    gap: str | None = None


FEW: dict[str, Any] = {"sampled_actions": 4}
TASKS = (
    Task("RLPD", "rlpd", 5_000, {**ONLINE, "critics": 5, "critic_steps": 4}),
    Task("MOORL", "moorl", 5_000, ONLINE),
    Task("HNPG", "hnpg", 100_000, {}),
    Task("DARC, gravity2", "darc", 15_000, ONLINE, gap=GAP),
    Task("WSRL from CQL", "wsrl", 5_000, ONLINE, ("cql", {**SMALL, **FEW}), keeps_data=False),
    Task("IQL fine-tuning", "iql_online", 5_000, ONLINE, ("iql", SMALL)),
    Task("Cal-QL fine-tuning", "calql_online", 5_000, {**ONLINE, **FEW}, ("calql", {**SMALL, **FEW})),
    Task("FamO2O fine-tuning", "famo2o_online", 5_000, ONLINE, ("famo2o", SMALL)),
    Task("FamO2O fine-tuning on CQL", "famo2o_cql_online", 5_000, {**ONLINE, **FEW}, ("famo2o_cql", {**SMALL, **FEW})),
)

FAMILY: dict[str, tuple[float, float]] = {"1to5": (1.0, 5.0), **{f"{b:g}": (b, b) for b in (1.0, 2.0, 3.0, 5.0)}}
"""Ranges of FamO2O's coefficient, by name of the cell."""
FAMILY_DATA: dict[str, tuple[str, str | None, int]] = {
    "family": (ENVIRONMENT, None, 10_000),
    "long": (ENVIRONMENT, None, 30_000),
    "medium": (WRONG, GAP, 10_000),
}
"""Prefix of the cell's name -> where it is evaluated, whose data it has (see `data`), and updates."""


@functools.cache
def data(gap: str | None) -> Dataset:
    """The real file; for a wrong simulator, as many rows of the native system by a medium policy."""
    return shared(DATASET) if gap is None else generate(WRONG, 0, 20_000, "medium")


def cell(task: Task, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed, after the run that it starts from."""
    environment = ENVIRONMENT if task.gap is None else WRONG
    facts = functools.partial(training_cell, environment=environment, seed=seed, episodes=EPISODES)
    given = data(task.gap) if task.keeps_data else None
    if task.before is None:
        return facts(task.algorithm, task.options, given, steps=task.steps, gap=task.gap)
    with tempfile.TemporaryDirectory(prefix="surefoot-study-") as folder:
        start = f"{folder}/before"
        before = facts(*task.before, data(None), steps=PRETRAINING, out=start)
        return {**facts(task.algorithm, task.options, given, steps=task.steps, init=start), "before": before}


def family_cell(kind: str, coefficients: tuple[float, float], seed: int) -> dict[str, Any]:
    """FamO2O on the data alone."""
    options = {**SMALL, "preset": "locomotion", "coefficients": coefficients}
    environment, gap, steps = FAMILY_DATA[kind]
    return training_cell("famo2o", options, data(gap), environment, seed, steps, EPISODES)


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next."""
    return [
        one
        for seed in SEEDS
        for one in (
            *(Cell(f"{task.algorithm}-s{seed}", functools.partial(cell, task, seed)) for task in TASKS),
            *(
                Cell(f"{kind}-{name}-s{seed}", functools.partial(family_cell, kind, coefficients, seed))
                for kind in FAMILY_DATA
                for name, coefficients in FAMILY.items()
            ),
        )
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Data and acting",
        "",
        f"{DATASET} in {ENVIRONMENT} (DARC: {WRONG}, its simulator with {GAP}); mean return of {EPISODES} episodes a "
        f"seed, mean action, {len(SEEDS)} seeds, with its 95 % interval over seeds and initial states; networks of "
        f"128-128 (HNPG: 64-64). Pre-trained: {PRETRAINING:,} updates on the data. Written by "
        "`python benchmarks/data_and_acting.py`.",
        "",
        "| algorithm | steps | data | pre-trained | after acting | each seed | gained |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        there = [found[n] for n in (f"{task.algorithm}-s{s}" for s in SEEDS) if n in found]
        after = [np.asarray(one["returns"]) for one in there]
        before = [np.asarray(one["before"]["returns"]) for one in there] if task.before is not None else []
        row = [task.title, f"{task.steps:,}", behaviour(task.gap)]
        row += [entry(before, len(SEEDS)) if task.before is not None else "none", entry(after, len(SEEDS))]
        row += [", ".join(f"{one.mean():.0f}" for one in after)]
        row += [difference(after, before) if task.before is not None else ""]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, "", *family_table(found), "", f"{len(found)} of {len(cells())} cells are there."]


def family_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """FamO2O's range beside each fixed coefficient."""
    names = [f"{DATASET if gap is None else f'{WRONG} medium'}, {steps:,}" for _, gap, steps in FAMILY_DATA.values()]
    titles = [f"{what}, {name}" for name in names for what in ("return", "the range minus it")]
    lines = [
        "## FamO2O: one policy for all coefficients",
        "",
        "On the data alone, for as many updates as stated. Wanted: within noise of the best fixed coefficient.",
        "",
        "| coefficient of the advantage | " + " | ".join(titles) + " |",
        "|---" * (1 + len(titles)) + "|",
    ]

    def returns(kind: str, name: str) -> list[np.ndarray]:
        return [np.asarray(found[n]["returns"]) for n in (f"{kind}-{name}-s{s}" for s in SEEDS) if n in found]

    whole = next(iter(FAMILY))
    for name, (low, high) in FAMILY.items():
        row = [f"{low:g} to {high:g}, chosen for each state" if low < high else f"{low:g}"]
        for kind in FAMILY_DATA:
            own = returns(kind, name)
            row += [entry(own, len(SEEDS)), "" if low < high else difference(returns(kind, whole), own)]
        lines.append("| " + " | ".join(row) + " |")
    return lines


def behaviour(gap: str | None) -> str:
    """Mean return of the data's episodes."""
    return f"{data(gap).episode_returns.mean():.0f}"


def quick_cell() -> dict[str, Any]:
    """A few steps of MOORL."""
    quick = {"hidden": (16, 16), "initial_steps": 40, "num_envs": 1}
    return training_cell("moorl", quick, generate(WRONG, 0, 400, "medium"), WRONG, 0, 80, 2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "data_and_acting", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
