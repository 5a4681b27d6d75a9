"""SRL beside SAC where policies decide more rarely than the environment steps.

    python benchmarks/srl.py              # compute what is missing, then write the table
    python benchmarks/srl.py --table      # only the table
    python benchmarks/srl.py --quick      # one small cell, for CI

Each policy is evaluated reading an observation every L steps: SAC holds its action, SRL emits a sequence of L actions
(`evaluation.frequency`, as `surefoot evaluate --decision-steps`).
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any

import numpy as np
from cells import Results
from study import Cell, entry, study_main, training_cell

import surefoot
from surefoot.evaluation.frequency import evaluate_frequencies

ENVIRONMENT, STEPS, EPISODES, SEEDS, POINTS = "native/pendulum", 10_000, 20, (0, 1), 4
LENGTHS = (1, 2, 4, 8)
SMALL: dict[str, Any] = {"hidden": (64, 64), "initial_steps": 500}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "SAC": ("sac", SMALL),
    "SRL, J = 8": ("srl", {**SMALL, "sequence": 8, "width": 64, "model_hidden": (64, 64)}),
}
"""Side -> algorithm and options."""


def one(side: str, seed: int, steps: int = STEPS, episodes: int = EPISODES) -> dict[str, Any]:
    """Train one seed, and evaluate its policy at each length."""
    algorithm, options = SIDES[side]
    with tempfile.TemporaryDirectory(prefix="surefoot-srl-") as folder:
        out = str(pathlib.Path(folder) / "run")
        trained = training_cell(
            algorithm, options, None, ENVIRONMENT, seed, steps, episodes, evaluations=POINTS, out=out
        )
        policy = surefoot.load_policy(out, seed=seed)
        found = evaluate_frequencies([policy], ENVIRONMENT, LENGTHS, episodes)
    at = {str(steps): of[0].returns.tolist() for steps, of in zip(LENGTHS, found.episodes, strict=True)}
    return {**trained, "returns_at": at}


def cell_name(side: str, seed: int) -> str:
    """Of a side and seed."""
    return f"{side}-s{seed}"


def cells() -> list[Cell]:
    """All cells."""
    return [Cell(cell_name(side, seed), functools.partial(one, side, seed)) for seed in SEEDS for side in SIDES]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# SRL beside SAC at lower decision frequencies",
        "",
        f"Mean return of {EPISODES} episodes in {ENVIRONMENT} after {STEPS:,} steps, {len(SEEDS)} seeds, with its 95 % "
        "interval over seeds and initial states, reading an observation every L steps. Both have layers of 64; SRL's "
        "sequences have 8 actions, which it plays in training too. Steps are equal, the time is not: `s` is the median "
        "of the seconds of training on a shared, noisy machine. Written by `python benchmarks/srl.py`.",
        "",
        "| | " + " | ".join(f"L = {length}" for length in LENGTHS) + " | s |",
        "|---|" + "---|" * (len(LENGTHS) + 1),
    ]
    for side in SIDES:
        there = [found[name] for seed in SEEDS if (name := cell_name(side, seed)) in found]
        row = [entry([np.asarray(cell["returns_at"][str(length)]) for cell in there], len(SEEDS)) for length in LENGTHS]
        seconds = f"{np.median([cell['seconds'] for cell in there]):.0f}" if there else "missing"
        lines.append(f"| {side} | " + " | ".join(row) + f" | {seconds} |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A few steps of short sequences."""
    return one("SAC", 0, 600, 2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "srl", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
