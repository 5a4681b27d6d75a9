"""MBRCSL on its point maze, beside return-conditioned cloning without a model, the decision transformer and 10%BC.

    surefoot datasets generate pointmaze/stitch   # once: 1,000 episodes into the cache, about 15 seconds of a core
    python benchmarks/mbrcsl.py                   # compute what is missing, table and picture
    python benchmarks/mbrcsl.py --only mbrcsl-0   # some cells
    python benchmarks/mbrcsl.py --table           # only the table and the picture
    python benchmarks/mbrcsl.py --quick           # one small cell, for CI

A cell is a method and a seed on one core. Sizes are those that suit a core, below the published ones: the settings of
each cell are in its line.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cells import Results
from study import RESULTS, Cell, entry, study_main, training_cell

from surefoot.evaluation import plots
from surefoot.runs.embedded import load

NAME, ENV, SEEDS, EPISODES = "pointmaze/stitch", "pointmaze/stitch-v0", (0, 1, 2, 3), 50
BEST = 71.3
"""Return of the data's best episode, all of its 200 steps."""
METHODS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "mbrcsl": ("mbrcsl", {}, 15_050, 256),
    "rcsl": ("rcsl", {"preset": "mbrcsl", "hidden": (256, 256), "learning_rate": 1e-3, "l2": 0.0}, 6_000, 256),
    "10%BC": ("bc", {"preset": "ten_percent"}, 6_000, 256),
    "dt": ("dt", {"preset": "small"}, 1_500, 64),
}
"""Name -> algorithm, options, training steps, batch size."""
TITLES = {"mbrcsl": "MBRCSL", "rcsl": "RCSL", "10%BC": "10%BC", "dt": "DT"}
PUBLISHED = {"mbrcsl": "91.5 +- 7.1", "10%BC": "54.0 +- 9.2", "dt": "57.2 +- 4.1"}
"""Mean return and deviation of 4 seeds, as recalled from the paper's table."""


def cell(method: str, seed: int) -> dict[str, Any]:
    """A method's run of one seed."""
    algorithm, options, steps, rows = METHODS[method]
    data = functools.partial(load, NAME)
    return training_cell(
        algorithm, options, data, ENV, seed, steps, EPISODES, evaluations=1, batch_size=rows
    )  # fmt: skip


def quick() -> dict[str, Any]:
    """A run that ends in a minute."""
    small = {"model_updates": 100, "behavior_updates": 100, "rollout_batches": 1, "rollouts": 4, "horizon": 5}
    options = {**small, "hidden": (8,), "target_return": 1.0}
    try:
        return training_cell("mbrcsl", options, functools.partial(load, NAME), ENV, 0, 210, 2, evaluations=1)
    except Exception as error:
        if "none of 4 paths" not in str(error):
            raise
        return {"message": str(error)}


CELLS = [Cell(f"{method}-{seed}", functools.partial(cell, method, seed)) for seed in SEEDS for method in METHODS]


def table(found: Results) -> list[str]:
    """Returns with intervals, seeds apart, and what MBRCSL's filter says."""
    returns = {
        method: {seed: np.array(found[f"{method}-{seed}"]["returns"]) for seed in SEEDS if f"{method}-{seed}" in found}
        for method in METHODS
    }
    lines = [
        "# MBRCSL's point maze",
        "",
        f"Mean return of {EPISODES} episodes of 200 steps, with a 95 % interval over seeds and episodes. The best of",
        f"the data's 1,000 episodes returns {BEST}, their mean is 40. Published: 4 seeds, 10 episodes, and",
        "networks many times as large, as recalled from the paper.",
        "",
        "| method | mean [interval] | seeds | published |",
        "|---|---|---|---|",
    ]
    for method in METHODS:
        own = returns[method]
        each = ", ".join(f"{own[s].mean():.1f}" if s in own else "missing" for s in SEEDS)
        lines.append(
            f"| {TITLES[method]} | {entry(list(own.values()), len(SEEDS))} | {each} | {PUBLISHED.get(method, '')} |"
        )
    lines += [
        "",
        "| MBRCSL | acceptance | paths kept | g_0 over the data's best | seconds |",
        "|---|---|---|---|---|",
    ]
    for seed in SEEDS:
        if (line := found.get(f"mbrcsl-{seed}")) is not None:
            last = line["last"]
            numbers = f"{last['acceptance']:.3f} | {last['kept_paths']:.0f} | {last['model_return_over_best']:.2f}"
            lines.append(f"| seed {seed} | {numbers} | {line['seconds']:.0f} |")
    lines += [
        "",
        "Tried before on seed 0: a clone of twice the width at three times the rate fitted the data better, beat them",
        "seldomer (90 of 6,000 paths), asked for 1.40 of the best and returned 62.5, episodes from 14 to 99: the best",
        "of many paths in a model is also the luckiest.",
        "",
        "A second look, on seed 100, outside of the table, towards the paper's numbers of paths and updates: of 9,800",
        "paths 406 were kept (median 77.5, most 86.2 in the model). Policies on them, 30 episodes each, asked for the",
        "highest return among theirs: the first 100, as in the table, 74.5; all 406 76.3; the best 100 70.7. Asked for",
        "their median return they have 72.8, 74.0 and 74.6 (standard errors 0.9 to 1.3). So it is not the policy that",
        "falls short of 91.5: it returns about what the kept paths do, and the clone makes none of more than 86.",
        "A clone trained less, as by the published code's slip (rate 2e-5 for 3e-4), had 1 of 6,000 paths kept.",
    ]
    picture(returns)
    return [*lines, "", "![returns by method](mbrcsl.png)"]


def picture(returns: dict[str, dict[int, np.ndarray]]) -> None:
    """Each seed's episodes as dots, beside the data's best."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (_, own) in enumerate(returns.items()):
        for seed, values in own.items():
            x = place + 0.15 * (seed - 1.5)
            spread = np.linspace(-0.05, 0.05, len(values))
            axes.plot(x + spread, values, ".", markersize=3, alpha=0.4, color=plots.COLOURS[place])
            axes.plot([x - 0.06, x + 0.06], [values.mean()] * 2, color="black", linewidth=1.5)
    axes.axhline(BEST, color="grey", linestyle="--", linewidth=1)
    axes.text(len(returns) - 0.5, BEST + 1, "best in the data", ha="right", fontsize=8, color="grey")
    axes.set_xticks(range(len(returns)), [TITLES[method] for method in returns])
    axes.set_ylabel("return of an episode")
    plots.save_png(figure, RESULTS / "mbrcsl.png", dpi=120)


if __name__ == "__main__":
    study_main(__doc__, "mbrcsl", CELLS, table, Cell("quick", quick))
