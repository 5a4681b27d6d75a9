"""The defaults of the offline algorithms, which who tries one first leaves alone, on files of trained policies.

    python benchmarks/defaults.py                  # compute what is missing, then write results/defaults.md
    python benchmarks/defaults.py --only halfcheetah
    python benchmarks/defaults.py --table          # only the table
    python benchmarks/defaults.py --quick          # one small cell, for CI

The files were rolled out by trained SACs, so that cloning is enough for the data's mean: an algorithm that is far below
BC there is at fault, by its settings or by its code. Each algorithm twice, with observations as they are and
normalised, everything else at its default.
"""

from __future__ import annotations

import functools
from typing import Any

from cells import Results
from study import Cell, entry, shared, study_main, training_cell

from surefoot.evaluation import hierarchical_interval
from surefoot.runs.plan import agent_class

UPDATES, EPISODES, SEEDS = 30_000, 20, 1
FILES = {
    "halfcheetah-v5-expert-sb3": "HalfCheetah-v5",
    "hopper-v5-expert-sb3": "Hopper-v5",
    "walker2d-v5-expert-sb3": "Walker2d-v5",
}
ALGORITHMS = (
    *("bc", "iql", "td3bc", "rebrac", "awac", "xql", "cql", "calql", "mcq", "edac", "sac_n", "msg", "dvl", "recoil"),
    *(
        "riql",
        "famo2o",
        "famo2o_cql",
        "bisim_iql",
        "rcsl",
        "flow_bc",
        "awr_flow",
        "fql",
        "ifql",
        "idql",
        "qc",
        "qc_fql",
    ),
    *("qam", "diffusion_bc", "dt"),
)
"""Cheapest and most often used first."""
FORMS = ("normalised", "raw")


def default_form(algorithm: str) -> str:
    """Which of the two the algorithm's default is."""
    return "raw" if agent_class(algorithm).Config().normalization == "none" else "normalised"  # type: ignore[attr-defined]


def options(algorithm: str, form: str) -> dict[str, Any]:
    """What differs from the defaults."""
    if form == default_form(algorithm):
        return {}
    return {"normalization": "observations" if form == "normalised" else "none"}


def cells() -> list[Cell]:
    """What decides first: all algorithms' defaults on one file before the next file, then the other form."""
    found = []
    for seed in range(SEEDS):
        for default in (True, False):
            for file, environment in FILES.items():
                for algorithm in ALGORITHMS:
                    form = default_form(algorithm)
                    if not default:
                        form = FORMS[form == FORMS[0]]
                    compute = functools.partial(
                        training_cell,
                        algorithm,
                        options(algorithm, form),
                        functools.partial(shared, file),
                        environment,
                        seed,
                        UPDATES,
                        EPISODES,
                    )
                    found.append(Cell(f"{algorithm}-{form}-{file}-s{seed}", compute))
    return found


def returns_of(found: Results, algorithm: str, form: str, file: str) -> list[Any]:
    """Episodes' returns of each seed that was computed."""
    names = [f"{algorithm}-{form}-{file}-s{seed}" for seed in range(SEEDS)]
    return [found[name]["returns"] for name in names if name in found]


def verdict(found: Results, algorithm: str, file: str) -> str:
    """Whether the default is at least half of what BC has on this file."""
    mine = returns_of(found, algorithm, default_form(algorithm), file)
    clone = returns_of(found, "bc", "normalised", file)
    if not mine or not clone:
        return ""
    share = hierarchical_interval(mine).estimate / hierarchical_interval(clone).estimate
    return f"{share:.2f}"


def table(found: Results) -> list[str]:
    """A row an algorithm, for each file observations as they are and normalised, and the default's share of BC."""
    lines = [
        "# Defaults of the offline algorithms on files of trained policies",
        "",
        f"{UPDATES:,} updates, {SEEDS} seed, {EPISODES} episodes with the mean action, last checkpoint; all options at "
        "their defaults but `algo.normalization`, which is `none` in the first column of a file and `observations` in "
        "the second. Mean return with its 95 % interval over episodes. The last column is the default's mean by that "
        "of BC: below 0.5 is wanted of none. Written by `python benchmarks/defaults.py`.",
    ]
    for file, environment in FILES.items():
        lines += ["", f"## {file} ({environment})", ""]
        lines += ["| algorithm | as they are | normalised | default | of BC |", "|---|---|---|---|---|"]
        for algorithm in ALGORITHMS:
            raw, normalised = (entry(returns_of(found, algorithm, form, file), SEEDS) for form in ("raw", "normalised"))
            default = agent_class(algorithm).Config().normalization  # type: ignore[attr-defined]
            lines.append(f"| {algorithm} | {raw} | {normalised} | {default} | {verdict(found, algorithm, file)} |")
    return lines


if __name__ == "__main__":
    small = functools.partial(
        training_cell, "iql", options("iql", "normalised"), functools.partial(shared, "hopper-v5-expert-sb3")
    )
    quick = Cell("iql-normalised-quick", functools.partial(small, "Hopper-v5", 0, 20, 2))
    study_main(__doc__, "defaults", cells(), table, quick)
