"""TD3 with and without hindsight on FetchReach of gymnasium-robotics.

    python benchmarks/fetch.py             # compute what is missing, then write the table
    python benchmarks/fetch.py --table     # only the table
    python benchmarks/fetch.py --quick     # one small cell, for CI

Episodes have 50 steps and a reward of -1 in each that is not at the goal. Networks have two layers of 128, batches 128
rows, one update a step. Success is that of the last step of an episode, of 50 episodes. Needs the extra `robotics`.
"""

from __future__ import annotations

import functools
from typing import Any

from cells import Results
from study import Cell, study_main, training_cell

from surefoot.evaluation import hierarchical_interval
from surefoot.evaluation.tables import format_bounds

NAME, ENVIRONMENT, STEPS, EPISODES, SEEDS = "fetch", "FetchReach-v4", 30_000, 50, (0,)
OPTIONS: dict[str, Any] = {"hidden": (128, 128), "discount": 0.95, "initial_steps": 500}
KINDS = {"with": {"hindsight": 4}, "without": dict[str, Any]()}


def learned(kind: str, seed: int, steps: int = STEPS, episodes: int = EPISODES) -> dict[str, Any]:
    """A run of one seed."""
    options = {**OPTIONS, "initial_steps": min(OPTIONS["initial_steps"], steps // 2), **KINDS[kind]}
    return training_cell("td3", options, None, ENVIRONMENT, seed, steps, episodes, evaluations=4, batch_size=128)


def cells() -> list[Cell]:
    """Hindsight first."""
    return [Cell(f"{kind}-s{seed}", functools.partial(learned, kind, seed)) for seed in SEEDS for kind in KINDS]


def table(found: Results) -> list[str]:
    """A row a kind."""
    lines = [
        "# FetchReach with hindsight",
        "",
        f"TD3 after {STEPS:,} steps, {EPISODES} episodes a seed; intervals of one seed are over episodes. Written by "
        "`python benchmarks/fetch.py`, which says what was trained.",
        "",
        "| `algo.hindsight` | seeds | success in % [95 %] | return on the way (steps: mean of 5 episodes) |",
        "|---|---|---|---|",
    ]
    for kind, options in KINDS.items():
        own = [found[name] for name in (f"{kind}-s{seed}" for seed in SEEDS) if name in found]
        shown, curve = "missing", ""
        if own:
            shown = format_bounds(hierarchical_interval([[100 * x for x in one["successes"]] for one in own]).to_json())
            curve = ", ".join(f"{step:,}: {value:.0f}" for step, value in own[0]["curve"])
        lines.append(f"| {options.get('hindsight', 0)} | {len(own)} | {shown} | {curve} |")
    return lines


if __name__ == "__main__":
    study_main(__doc__, NAME, cells(), table, Cell("quick", functools.partial(learned, "with", 0, 120, 2)))
