"""A leaderboard of robustness: five algorithms on one file, clean and with its rows corrupted, normalised alike.

python benchmarks/robustness.py              # compute what is missing, then write the table
python benchmarks/robustness.py --table      # only the table
python benchmarks/robustness.py --quick      # one small cell, for CI

Corruption is RIQL's (Yang et al., 2024), random: 30 % of the rows, scale 1, redrawn for each seed. In its tables the
baselines had no normalisation of observations; here all have RIQL's, with statistics of the corrupted data, and CORL's
order and actor for IQL. BC stands below as the line to stay above: it reads neither rewards nor next observations.
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
from surefoot.evaluation import hierarchical_interval

FILE, ENVIRONMENT = "hopper-v5-medium-sb3", "Hopper-v5"
UPDATES, EPISODES, SEEDS = 30_000, 50, 3
CONDITIONS = ("clean", "dynamics", "observations")
ALIKE = {"normalization": "stacked"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "riql": ALIKE,
    "iql": {"preset": "corl", "actor": "deterministic", **ALIKE},
    "td3bc": ALIKE,
    "rebrac": {"learning_rate": 3e-4, **ALIKE},
    "edac": ALIKE,
    "bc": ALIKE,
}


def data(condition: str, seed: int) -> Dataset:
    """The file, clean or with an element of its rows corrupted."""
    clean = shared(FILE)
    return clean if condition == "clean" else corrupt(clean, condition, "random", 0.3, 1.0, seed).dataset


def cells() -> list[Cell]:
    """One seed of everything before the next."""
    return [
        Cell(
            f"{name}-{condition}-s{seed}",
            functools.partial(
                training_cell,
                name,
                options,
                functools.partial(data, condition, seed),
                ENVIRONMENT,
                seed,
                UPDATES,
                EPISODES,
            ),
        )
        for seed in range(SEEDS)
        for condition in CONDITIONS
        for name, options in ALGORITHMS.items()
    ]


def table(found: Results) -> list[str]:
    """Best worst case first; what is not complete last."""
    scores = {name: {c: _scores(found, name, c) for c in CONDITIONS} for name in ALGORITHMS}
    means = {name: [np.concatenate(s).mean() for s in rows.values() if s] for name, rows in scores.items()}
    order = sorted(ALGORITHMS, key=lambda name: (-len(means[name]), -min(means[name], default=0.0)))
    lines = [
        "# A leaderboard of robustness",
        "",
        f"{FILE} with 30 % of its rows corrupted at random (scale 1, redrawn for each seed), {UPDATES:,} updates, "
        f"{SEEDS} seeds, {EPISODES} episodes a seed in the clean simulator, last checkpoint; observations normalised "
        "alike, by the statistics of the corrupted data. D4RL's scores with 95 % intervals over seeds and initial "
        "states, ordered by the worst of the three. The algorithms were fixed when the study was written and are not "
        "the best of [offline breadth](offline_breadth.md), whose cells were missing: RIQL, which is made for such "
        "data, IQL, which it changes, TD3+BC and ReBRAC, which clone besides, EDAC, an ensemble, and BC as the line to "
        "stay above. By `python benchmarks/robustness.py` on one core of an x86 server CPU.",
        "",
        f"| rank | algorithm | {' | '.join(CONDITIONS)} | worst |",
        f"|---|---|{'---|' * len(CONDITIONS)}---|",
    ]
    for rank, name in enumerate(order, 1):
        complete = len(means[name]) == len(CONDITIONS)
        shown = " | ".join(_entry(scores[name][condition]) for condition in CONDITIONS)
        worst = f"{min(means[name]):.1f}" if complete else ""
        lines.append(f"| {rank if complete else ''} | {name} | {shown} | {worst} |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def _scores(found: Results, name: str, condition: str) -> list[np.ndarray]:
    reference = reference_scores(ENVIRONMENT)
    assert reference is not None
    names = [f"{name}-{condition}-s{seed}" for seed in range(SEEDS)]
    return [normalized_score(np.asarray(found[n]["returns"]), reference) for n in names if n in found]


def _entry(scores: list[np.ndarray]) -> str:
    if not scores:
        return "missing"
    interval = hierarchical_interval(scores)
    text = f"{interval.estimate:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
    return text if len(scores) == SEEDS else f"{text} ({len(scores)} of {SEEDS} seeds)"


if __name__ == "__main__":
    small = functools.partial(data, "dynamics", 0)
    quick = Cell("quick", functools.partial(training_cell, "rebrac", ALIKE, small, ENVIRONMENT, 0, 100, 2))
    study_main(__doc__, "robustness", cells(), table, quick)
