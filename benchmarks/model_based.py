"""Model-based learning from data: NeoRL-2's own files beside its published scores, and MuJoCo beside IQL and TD3+BC.

One setting for all NeoRL-2 tasks. Its environments are those of polixir/NeoRL2, a checkout of which must be importable;
Simglucose also needs pandas below 3, and goes through benchmarks/peers/shims, since newer packages refuse parts of it:

export PYTHONPATH=CHECKOUT:benchmarks/peers/shims
python benchmarks/model_based.py              # compute what is missing, then write the table
python benchmarks/model_based.py --table      # only the table
python benchmarks/model_based.py --quick      # one small cell, for CI
"""

from __future__ import annotations

import csv
import functools
import importlib.util
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import SHARED, Cell, entry, shared, study_main, training_cell

from surefoot.data import normalized_score, reference_scores

UPDATES, MODEL_UPDATES, EPISODES, SEEDS = 30_000, 20_000, 20, 3


class Task(NamedTuple):
    """A dataset, and where its policies are judged."""

    name: str
    dataset: str
    environment: str
    published: str = ""  # row of NeoRL-2's table
    termination: str = "auto"  # where episodes end in a model

    @property
    def reference(self) -> str:
        """Environment whose reference returns make scores."""
        return f"neorl2:{self.published}" if self.published else self.environment


TASKS = (
    Task("DMSD", "neorl2-dmsd-high-train", "neorl2:DMSD", "DMSD"),
    Task("SafetyHalfCheetah", "neorl2-safetyhalfcheetah-high-train", "neorl2:SafetyHalfCheetah", "SafetyHalfCheetah"),
    Task(
        "Simglucose",
        "neorl2-simglucose-high-train",
        "simglucose_today:SimglucoseToday-v0",
        "Simglucose",
        "simglucose_today:glucose_ends",
    ),
    Task("HalfCheetah", "halfcheetah-v5-mixed-sb3", "HalfCheetah-v5"),
    Task("Hopper", "hopper-v5-mixed-sb3", "Hopper-v5"),
)
IMAGINED: dict[str, Any] = {
    "model_updates": MODEL_UPDATES, "rollouts": 5_000, "rollout_length": 5, "normalization": "observations",
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "mobile": {**IMAGINED, "penalty": 1.0},
    "ravl": {**IMAGINED, "critics": 10, "diversity": 1.0},
    "mopo": {**IMAGINED, "penalty": 1.0},
    "combo": {**IMAGINED, "cql_weight": 0.5},
    "iql": {"preset": "corl"},
    "td3bc": {},
}
PLAIN = ("iql", "td3bc")
VARYING = (
    "seed", "kwargs/seed", "current_time", "Reward_Mean_Env", "Reward_Std_Env", "Length_Mean_Env", "Length_Std_Env",
    "epoch", "training_iteration",
)  # fmt: skip
"""Columns of the published runs that are none of a setting."""


def cell(task: Task, method: str, seed: int, updates: int = UPDATES, **options: Any) -> dict[str, Any]:
    """Train and evaluate one seed; with the signals of the alarm that were logged last."""
    if task.published and importlib.util.find_spec("neorl2") is None:
        raise SystemExit("put a checkout of polixir/NeoRL2 on PYTHONPATH, or choose other cells with --only")
    settings = {**METHODS[method], **options}
    if method not in PLAIN:
        settings["termination"] = task.termination
    steps = updates + settings.get("model_updates", 0)
    data = functools.partial(shared, task.dataset)
    return training_cell(method, settings, data, task.environment, seed, steps, EPISODES)


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next."""
    return [
        Cell(f"{task.name}-{method}-s{seed}", functools.partial(cell, task, method, seed))
        for seed in range(SEEDS)
        for task in TASKS
        for method in METHODS
        if not (task.published and method in PLAIN)
    ]


def published() -> dict[str, dict[str, str]]:
    """Task -> method -> score of NeoRL-2's table; empty where it is not there."""
    path = SHARED / "results" / "neorl2_task_score.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row[""]: row for row in csv.DictReader(file)}


def published_range() -> dict[tuple[str, str], tuple[float, float]]:
    """Task and method -> lowest and highest mean return over seeds of all published settings."""
    path = SHARED / "results" / "neorl2_runs.csv"
    if not path.is_file():
        return {}
    apart: dict[tuple[str, str], dict[tuple[str, ...], list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            setting = tuple(value for name, value in row.items() if name not in VARYING)
            of_method = apart.setdefault((row["env"], row["algo"]), {})
            if row["Reward_Mean_Env"]:
                of_method.setdefault(setting, []).append(float(row["Reward_Mean_Env"]))
    means = {key: [float(np.mean(returns)) for returns in settings.values()] for key, settings in apart.items()}
    return {key: (min(values), max(values)) for key, values in means.items() if values}


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    theirs, ranges = published(), published_range()
    lines = [
        "# Model-based learning from data",
        "",
        f"Mean return of {EPISODES} episodes a seed with its 95 % interval, after {UPDATES:,} updates of the policy "
        f"and at most {MODEL_UPDATES:,} of the model; one setting for all. Score: 100 (return - low) / (high - low). "
        "Published scores are NeoRL-2's own, of the best setting for each task, after 3,000,000 updates; "
        "their range is that of all its settings. Alarm: seeds in which it rang, and at which signals. Where "
        "Simglucose's episodes end in a model is encoded by the sensor's reading (`glucose_ends`: below 40, above 600) "
        "as by NeoRL-2's own rule; its simulator ends them by the glucose itself, so that 35 of the file's 111 "
        "terminations have readings of 40 or more, where models continue. Written by "
        "`python benchmarks/model_based.py`.",
        "",
        "| task | method | seeds | return | score | published score | lowest, highest | alarm | updates a second |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        reference = reference_scores(task.reference)
        row = theirs.get(task.published, {})
        if row:
            data = f"{float(row['data']):.1f}"
            best = max((key for key in row if key not in ("", "data")), key=lambda key: float(row[key].split("±")[0]))
            lines.append(f"| {task.name} | the data; best published: {best} | | | {data} | {row[best]} | | | |")
        for method in METHODS:
            if task.published and method in PLAIN:
                continue
            names = [f"{task.name}-{method}-s{seed}" for seed in range(SEEDS)]
            rows = [found[name] for name in names if name in found]
            returns = [np.asarray(one["returns"]) for one in rows]
            mean = float(np.mean([one.mean() for one in returns])) if rows else None
            score = "" if mean is None or reference is None else f"{float(normalized_score(mean, reference)):.1f}"
            speed = f"{np.mean([one['updates_per_second'] for one in rows]):.0f}" if rows else ""
            ends = ranges.get((task.published, method))
            span = "" if ends is None else ", ".join(f"{normalized_score(end, reference):.1f}" for end in ends)
            reported = f"{len(rows)} of {SEEDS} | {entry(returns, SEEDS)} | {score} | {row.get(method, '')} | {span}"
            lines.append(f"| {task.name} | {method} | {reported} | {_alarm(rows)} | {speed} |")
    return lines


def _alarm(rows: list[dict[str, Any]]) -> str:
    rang = [row["rings"] for row in rows if row.get("rings")]
    signals = sorted({ring["signal"] for rings in rang for ring in rings})
    return f"{len(rang)}: {', '.join(signals)}" if rang else ""


QUICK = {"model_updates": 60, "rollouts": 50, "model_hidden": (16, 16), "model_decays": (), "hidden": (16, 16)}

if __name__ == "__main__":
    quick = functools.partial(cell, TASKS[-1], "mopo", 0, 200, **QUICK)
    study_main(__doc__, "model_based", cells(), table, Cell("hopper-mopo-quick", quick))
