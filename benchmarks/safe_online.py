"""Constrained algorithms that act, on HalfCheetahVelocity with a limit of 25 an episode.

    python benchmarks/safe_online.py                    # compute what is missing, then write the table
    python benchmarks/safe_online.py --only sac_lag
    python benchmarks/safe_online.py --table            # only the table
    python benchmarks/safe_online.py --quick            # one small cell, for CI

The published figures beside them are OmniSafe's (benchmarks/on-policy and off-policy, README.md): 1e7 steps for the
on-policy algorithms and 1e6 for SAC-Lag, on its own HalfCheetahVelocity-v1. A cell takes ten
minutes, of SAC-Lag an hour; runs are kept under build/safe_online, and an interrupted one is resumed.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, study_main, training_cell

from surefoot.evaluation import cost_interval, hierarchical_interval
from surefoot.evaluation.tables import format_bounds

RUNS = pathlib.Path(__file__).parent.parent / "build" / "safe_online"
ENVIRONMENT, LIMIT, EPISODES, SEEDS = "surefoot/HalfCheetahVelocity-v5", 25.0, 20, (0, 1, 2)


class Task(NamedTuple):
    """One algorithm, how long it is trained, and the published return and cost."""

    algorithm: str
    steps: int
    published: str
    options: dict[str, Any]


NARROW = {"initial_log_std": -1.0}
"""With the default, 0, one seed of PPO-Lag stayed at a return of 1,900: it moves with less noise, or not well."""
TASKS = (
    Task("sac_lag", 300_000, "2834 / 0.0 (1e6 steps)", {}),
    Task("ppo_lag", 3_000_000, "2946 / 3.4 (1e7 steps)", NARROW),
    Task("ppo_pid", 3_000_000, "2838 / 8.1 (1e7 steps)", NARROW),
    Task("trpo_lag", 1_000_000, "2885 / 9.0 (1e7 steps)", NARROW),
    Task("cpo", 1_000_000, "2786 / 4.7 (1e7 steps)", NARROW),
    Task("focops", 1_000_000, "2965 / 2.4 (1e7 steps)", NARROW),
    Task("cup", 1_000_000, "2851 / 4.3 (1e7 steps)", NARROW),
)


def train(task: Task, seed: int) -> dict[str, Any]:
    """Train one seed, or continue it, and evaluate its last policy's mean action."""
    options = {**task.options, "cost_limit": LIMIT}
    facts = functools.partial(training_cell, task.algorithm, options, None, ENVIRONMENT, seed, task.steps, EPISODES)
    return facts(evaluations=10, out=str(RUNS / f"{task.algorithm}-s{seed}"))


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next."""
    return [Cell(f"{task.algorithm}-s{seed}", functools.partial(train, task, seed)) for seed in SEEDS for task in TASKS]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    names = [one.name for one in cells()]
    lines = [
        "# Constrained algorithms that act, on HalfCheetahVelocity",
        "",
        f"{EPISODES} episodes a seed with the last policy's mean action, {len(SEEDS)} seeds, limit {LIMIT:g} an "
        "episode (undiscounted). Intervals are over seeds and initial states; costs of each seed are means. Written "
        "by `python benchmarks/safe_online.py`.",
        "",
        "| algorithm | steps | return [95 %] | cost [95 %] | cost of each seed | seeds within the limit | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        own = [found[n] for n in (f"{task.algorithm}-s{s}" for s in SEEDS) if n in found]
        row = [task.algorithm, f"{task.steps:,}"]
        if own:
            returns, costs = ([np.asarray(one[key]) for one in own] for key in ("returns", "costs"))
            row += [format_bounds(one.to_json()) for one in (hierarchical_interval(returns), cost_interval(costs))]
            means = [float(one.mean()) for one in costs]
            row.append(", ".join(f"{mean:.1f}" for mean in means))
            row.append(f"{sum(mean <= LIMIT for mean in means)} of {len(means)}")
        else:
            row += ["missing"] * 4
        lines.append("| " + " | ".join([*row, task.published]) + " |")
    return [*lines, "", f"{len(found)} of {len(names)} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A few steps of PPO-Lag."""
    small = {"num_envs": 2, "horizon": 64, "minibatches": 2, "epochs": 2, "hidden": (16, 16)}
    return training_cell("ppo_lag", small, None, ENVIRONMENT, 0, 256, 2, evaluations=2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "safe_online", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
