"""RIQL against IQL on corrupted real data: is it the algorithm, or the normalisation?

    python benchmarks/riql_corruption.py            # computes what is missing, then writes the table
    python benchmarks/riql_corruption.py --table    # only writes the table
    python benchmarks/riql_corruption.py --quick    # one small cell, for CI

Most of RIQL's published gap to IQL comes from observation normalisation, which its baselines lacked. The
fair baseline is IQL with the same normalisation, actor, order of updates and steps.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cells import Results
from study import Cell, shared, study_main, training_cell

from surefoot.data import normalized_score, reference_scores
from surefoot.data.corrupt import corrupt
from surefoot.data.dataset import Dataset
from surefoot.evaluation import difference_interval, hierarchical_interval

DATASET, ENVIRONMENT = "hopper-v5-medium-sb3", "Hopper-v5"
STEPS, EPISODES, SEEDS = 50_000, 100, (0, 1, 2, 3, 4)
ELEMENTS = ("dynamics", "observations")
PLAIN_IQL = {"actor": "deterministic", "order": "together", "initialization": "torch", "rewards": "none"}
VARIANTS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "riql": ("riql", {e: {"sigma": 1.0, "quantile": 0.25, "critics": 5} for e in ELEMENTS}),
    "iql-equal": ("iql", {e: {**PLAIN_IQL, "critic_weight": 0.5, "normalization": "stacked"} for e in ELEMENTS}),
    "iql-published": ("iql", {e: {**PLAIN_IQL, "critic_weight": 0.5, "normalization": "none"} for e in ELEMENTS}),
    "riql-paper": (
        "riql",
        {
            "dynamics": {"sigma": 1.0, "quantile": 0.5, "critics": 5},
            "observations": {"sigma": 0.1, "quantile": 0.25, "critics": 3},
        },
    ),
}
NAMES = {
    "riql": "RIQL, shared setting (sigma 1, alpha .25, K 5)",
    "riql-paper": "RIQL, the paper's setting for this cell",
    "iql-equal": "IQL, same normalisation, actor, order",
    "iql-published": "IQL as published there (no normalisation)",
}


def corrupted(element: str, seed: int) -> Dataset:
    """The dataset with 30 % of its rows corrupted at random, redrawn for each seed as the authors do."""
    return corrupt(shared(DATASET), element, "random", rate=0.3, scale=1.0, seed=seed).dataset


def cells() -> list[Cell]:
    """All cells; the required comparison comes first."""
    order = [(e, v) for v in ("riql", "iql-equal") for e in ELEMENTS[:1]]
    order += [(e, v) for e in ELEMENTS for v in VARIANTS if (e, v) not in order]
    first = [(e, v, s) for s in SEEDS for e, v in order[:2]]
    rest = [(e, v, s) for s in SEEDS for e, v in order[2:]]
    return [
        Cell(
            f"{variant}-{element}-s{seed}",
            functools.partial(
                training_cell,
                VARIANTS[variant][0],
                VARIANTS[variant][1][element],
                functools.partial(corrupted, element, seed),
                ENVIRONMENT,
                seed,
                STEPS,
                EPISODES,
            ),
        )
        for element, variant, seed in first + rest
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    reference = reference_scores(ENVIRONMENT)
    assert reference is not None
    lines = [
        "# RIQL and IQL on randomly corrupted hopper-v5-medium",
        "",
        f"30 % of the rows corrupted (scale 1, redrawn for each seed), {STEPS:,} updates, {len(SEEDS)} seeds, "
        f"{EPISODES} episodes a seed in the clean simulator, last checkpoint. Mean return with its 95 % interval "
        "over seeds and initial states, in brackets D4RL-normalised. Written by "
        "`python benchmarks/riql_corruption.py` on 2 cores of an x86 server CPU.",
        "",
        "| corrupted | algorithm | return | RIQL (shared) minus this one, 95 % interval |",
        "|---|---|---|---|",
    ]
    for element in ELEMENTS:
        scores = {
            v: [np.asarray(found[n]["returns"]) for s in SEEDS if (n := f"{v}-{element}-s{s}") in found]
            for v in VARIANTS
        }
        for variant, returns in scores.items():
            text, gap = "missing", ""
            if returns:
                interval = hierarchical_interval(returns)
                text = f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
                text += f" ({normalized_score(interval.estimate, reference):.1f})"
                if len(returns) < len(SEEDS):
                    text += f" ({len(returns)} of {len(SEEDS)} seeds)"
            if variant != "riql" and len(returns) > 1 and len(scores["riql"]) > 1:
                difference = difference_interval(scores["riql"], returns)
                gap = f"{difference.estimate:.0f} [{difference.low:.0f}, {difference.high:.0f}]"
            lines.append(f"| {element} | {NAMES[variant]} | {text} | {gap} |")
    lines += ["", f"{len(found)} of {len(cells())} cells are there."]
    return lines


def main() -> None:
    data = functools.partial(corrupted, "dynamics", 0)
    quick = Cell("quick", functools.partial(training_cell, "riql", {}, data, ENVIRONMENT, 0, 200, 2))
    study_main(__doc__, "riql_corruption", cells(), table, quick)


if __name__ == "__main__":
    main()
