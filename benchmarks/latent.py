"""Learning a model while acting: TD-MPC2 and MBPO beside SAC on the native pendulum, Dreamer on its images.

    python benchmarks/latent.py                 # compute what is missing, then write the table
    python benchmarks/latent.py --only tdmpc2
    python benchmarks/latent.py --table         # only the table
    python benchmarks/latent.py --quick         # one small cell, for CI

TD-MPC2, MBPO and SAC take 30,000 steps of the system's state, two seeds each; Dreamer 20,000 of three stacked frames of
64 x 64, one seed. Sizes are for a core of a CPU (`preset=tiny`), not the published ones; MBPO's were tried on seed 100,
once. A cell is one seed; seconds are those of acting and learning.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cells import Results
from study import Cell, entry, study_main, training_cell

EPISODES, EVALUATIONS = 20, 6
LOOPS: dict[str, Any] = {"num_envs": 4, "updates_per_step": 0.5}
METHODS: dict[str, tuple[str, str, str, dict[str, Any], int, int]] = {
    "tdmpc2": (
        "TD-MPC2",
        "tdmpc2",
        "native/pendulum",
        {"preset": "tiny", "pretrain": False, "episode_length": 200, **LOOPS},
        30_000,
        128,
    ),
    "mbpo": (
        "MBPO",
        "mbpo",
        "native/pendulum",
        {
            **{"initial_steps": 1_000, "hidden": (64, 64), "num_envs": 4, "updates_per_step": 2.0},
            **{"model_hidden": (64, 64, 64), "model_decays": (), "model_updates": 1_000, "rollouts": 2_000},
            **{"imagine_every": 500, "length_schedule": (1_000, 10_000, 1, 5)},
        },
        30_000,
        128,
    ),
    "sac": ("SAC", "sac", "native/pendulum", {"initial_steps": 1_000, "hidden": (64, 64), **LOOPS}, 30_000, 128),
    "dreamer": (
        "Dreamer, three frames",
        "dreamer",
        "native/pendulum-pixels",
        {"preset": "tiny", "length": 16, "imagined": 10, "updates_per_step": 0.25, "discount": 0.97},
        20_000,
        8,
    ),
}
"""Name -> title, algorithm, environment, options, steps, batch size."""
SEEDS = {"tdmpc2": (0, 1), "mbpo": (0, 1), "sac": (0, 1), "dreamer": (0,)}


def cell(
    method: str,
    seed: int,
    steps: int | None = None,
    episodes: int = EPISODES,
    evaluations: int = EVALUATIONS,
    **more: Any,
) -> dict[str, Any]:
    """Train and evaluate one seed."""
    _, algorithm, environment, options, usual, batch_size = METHODS[method]
    given = {**options, **more}
    return training_cell(
        algorithm, given, None, environment, seed, steps or usual, episodes, None, evaluations, None, None, batch_size
    )


CELLS = [
    Cell(f"{method}/{seed}", functools.partial(cell, method, seed)) for method in METHODS for seed in SEEDS[method]
]
QUICK = Cell("quick", functools.partial(cell, "tdmpc2", 0, 120, 1, 1, initial_steps=80))


def table(found: Results) -> list[str]:
    """Returns with intervals, at the end and on the way."""
    lines = [
        "# Learning a model while acting",
        "",
        f"The native pendulum, {EPISODES} episodes of 200 steps at the end of each seed; a policy that swings up well "
        "has about -150, one that does nothing about -1,200. `python benchmarks/latent.py`.",
        "",
        "| method | steps | return [95 % interval] | returns on the way | minutes a seed |",
        "|---|---|---|---|---|",
    ]
    for method, (title, _, _, _, steps, _) in METHODS.items():
        cells = [found[f"{method}/{seed}"] for seed in SEEDS[method] if f"{method}/{seed}" in found]
        score = entry([np.asarray(one["returns"]) for one in cells], len(SEEDS[method]))
        curves = [dict(one["curve"]) for one in cells]
        way = ", ".join(f"{np.mean([c[at] for c in curves]):.0f}" for at in curves[0]) if curves else ""
        minutes = f"{np.mean([one['seconds'] for one in cells]) / 60:.0f}" if cells else ""
        lines.append(f"| {title} | {steps:,} | {score} | {way} | {minutes} |")
    return lines


if __name__ == "__main__":
    study_main(__doc__, "latent", CELLS, table, QUICK)
