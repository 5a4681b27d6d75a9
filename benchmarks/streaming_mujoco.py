"""Stream AC on MuJoCo's tasks for a million steps, with SAC's curves beside it at equal steps.

    python benchmarks/streaming_mujoco.py              # compute what is missing, then write table and pictures
    python benchmarks/streaming_mujoco.py --only Hopper
    python benchmarks/streaming_mujoco.py --table      # only table and pictures
    python benchmarks/streaming_mujoco.py --quick      # one small cell, for CI

SAC's cells are those of online_curves.py, which go to 100,000 steps.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cells import Results, read_cells
from study import RESULTS, Cell, curve_points, entry, results, study_main, training_cell

from surefoot.evaluation import difference_interval, plots
from surefoot.evaluation.curves import CurvePoint

STEPS, EPISODES, SEEDS, EVALUATIONS = 1_000_000, 20, (0, 1, 2), 50
ENVIRONMENTS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")
SAC_STEPS = 100_000
ALGORITHM = "stream_ac"


def cell(environment: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed."""
    return training_cell(ALGORITHM, {}, None, environment, seed, STEPS, EPISODES, evaluations=EVALUATIONS)


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next."""
    return [
        Cell(f"{environment}-s{seed}", functools.partial(cell, environment, seed))
        for seed in SEEDS
        for environment in ENVIRONMENTS
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there; draws the curves too."""
    lines = [
        "# Streaming on MuJoCo's tasks",
        "",
        f"Stream AC with its defaults, {STEPS:,} steps, {len(SEEDS)} seeds; the last policy's mean action in "
        f"{EPISODES} episodes a seed, mean return with its 95 % interval over seeds and initial states. Beside it both "
        f"algorithms after {SAC_STEPS:,} steps, where SAC's run of `online_curves.py` ends (mean of 5 episodes during "
        "training; interval over seeds). Written by `python benchmarks/streaming_mujoco.py`.",
        "",
        f"| environment | after {STEPS:,} steps | stream AC at {SAC_STEPS:,} | SAC at {SAC_STEPS:,} | "
        "stream AC - SAC | stream AC passes SAC's mean | steps/s | curves |",
        "|---|---|---|---|---|---|---|---|",
    ]
    online = read_cells(results("online_curves"))
    for environment in ENVIRONMENTS:
        mine = [found[n] for n in (f"{environment}-s{seed}" for seed in SEEDS) if n in found]
        sac = [online[n] for n in (f"surefoot-sac-{environment}-s{seed}" for seed in SEEDS) if n in online]
        returns = [np.asarray(one["returns"]) for one in mine]
        rate = f"{np.median([one['steps'] / one['seconds'] for one in mine]):,.0f}" if mine else "missing"
        row = [environment, entry(returns, len(SEEDS)), at(mine), at(sac), gap(mine, sac), passes(mine, sac), rate]
        lines.append("| " + " | ".join([*row, draw(environment, mine, sac)]) + " |")
    lines += ["", f"{len(found)} of {len(cells())} cells are there."]
    return lines


def scores(runs: list[dict[str, Any]]) -> list[np.ndarray]:
    """Mean return of each run after SAC_STEPS."""
    return [np.asarray([dict(map(tuple, one["curve"]))[SAC_STEPS]]) for one in runs]


def at(runs: list[dict[str, Any]]) -> str:
    """Mean return after SAC_STEPS."""
    return entry(scores(runs), len(SEEDS)) if len(runs) > 1 else "missing"


def gap(mine: list[dict[str, Any]], sac: list[dict[str, Any]]) -> str:
    """Difference at equal steps."""
    if len(mine) < 2 or len(sac) < 2:
        return "missing"
    interval = difference_interval(scores(mine), scores(sac), shared_episodes=False)
    return f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"


def passes(mine: list[dict[str, Any]], sac: list[dict[str, Any]]) -> str:
    """First step at which the mean over seeds is above SAC's last mean."""
    if not mine or not sac:
        return "missing"
    level = float(np.mean(scores(sac)))
    above = [p.step for p in curve_points([one["curve"] for one in mine]) if p.mean > level]
    return f"after {above[0]:,} steps" if above else "never"


def draw(environment: str, mine: list[dict[str, Any]], sac: list[dict[str, Any]]) -> str:
    """Write the picture of an environment's curves and return a link to it, or "missing" where there are none."""
    curves: dict[str, list[CurvePoint]] = {
        label: curve_points([one["curve"] for one in runs])
        for label, runs in (("stream AC", mine), ("SAC", sac))
        if len(runs) > 0
    }
    if "stream AC" not in curves:
        return "missing"
    figure = plots.learning_curves(curves, title=environment, steps_of="environment steps")
    plots.save_png(figure, RESULTS / "streaming_mujoco" / f"{environment}.png")
    return f"[picture](streaming_mujoco/{environment}.png)"


def quick_cell() -> dict[str, Any]:
    """A few steps."""
    return training_cell(ALGORITHM, {}, None, "native/pendulum", 0, 2_000, 2, evaluations=2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "streaming_mujoco", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
