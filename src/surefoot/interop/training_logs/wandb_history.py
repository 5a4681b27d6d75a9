"""Histories of Weights & Biases as CSV, which is how Open RL Benchmark's runs are shared.

- one run: what `run.history().to_csv` writes, or `run_df.csv` with `run.json` beside it (openrlbenchmark's own cache);
- several runs: what the button "Export as CSV" of a chart writes, a column `NAME - METRIC` each.

A line has `global_step` and, where an episode ended, `charts/episodic_return` (CleanRL), or `rollout/ep_rew_mean` and
`eval/mean_reward` (stable-baselines3's runs there).
"""

from __future__ import annotations

import pathlib
from typing import Any

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import read_json
from surefoot.core.base.schema import Record, parse
from surefoot.interop.training_logs import seed_log, titles
from surefoot.interop.training_logs.sb3 import MEANS, of_means
from surefoot.interop.training_logs.seed_log import EVALUATION, TRAINING, Point, SeedLog
from surefoot.interop.training_logs.tables import columns, pairs, text_of

STEPS = ("global_step", "time/total_timesteps", "Step", "_step")
"""Columns of steps in the environment; the first that is there counts. The last two count only of a chart's export."""
EPISODES = "charts/episodic_return"
EVALUATED = ("charts/eval_episodic_return", "eval/episodic_return", MEANS[EVALUATION])
BETWEEN = " - "
BOUNDS = ("__MIN", "__MAX")
"""Ends of a chart's further columns."""
KEYS = {"environment": ("env_id", "env"), "algorithm": ("exp_name", "algo"), "seed": ("seed",)}
"""What is known of a run -> keys of its config."""


def is_history(path: pathlib.Path) -> bool:
    """Whether a CSV file's heading is one of these."""
    with open(path, "rb") as file:
        heading = file.readline(1 << 20).decode("utf-8", "replace")
    return any(name in heading for name in (EPISODES, *EVALUATED, *MEANS.values()))


def histories(path: pathlib.Path, score: str | None, last: int, about: dict[str, Any]) -> list[SeedLog]:
    """The runs in a file.

    Args:
        path: of the CSV file.
        score: evaluation or training; None: evaluations if there are some.
        last: how many training episodes judge a seed.
        about: what its place says.

    Raises:
        DataError: it is damaged, or has no steps.
    """
    table = columns(text_of(path), path)
    steps = next((name for name in STEPS if name in table), None)
    if steps is None:
        raise DataError(f"{path}: has none of the columns {', '.join(STEPS)}, so that its steps are not known")
    runs: dict[str, dict[str, list[float]]] = {}
    for heading, cells in table.items():
        title, _, metric = heading.rpartition(BETWEEN)
        if not metric.endswith(BOUNDS):
            runs.setdefault(title, {})[metric] = cells
    alone = runs.pop("", {})
    if not runs and steps in ("Step", "_step"):
        raise DataError(
            f"{path}: has no column global_step, and {steps} counts calls of wandb.log, not steps in the environment; "
            "export it with global_step"
        )
    found = []
    for title, metrics in (runs or {"": alone}).items():
        given = {**about, **(titles.about(title) if title else _beside(path))}
        for kind, names in ((EVALUATION, EVALUATED), (TRAINING, (EPISODES, MEANS[TRAINING]))):
            name = next((one for one in names if one in metrics), None)
            if name is None or score not in (None, kind):
                continue
            values = pairs(table[steps], metrics[name])
            if not values:
                continue
            if name == EPISODES:
                points = [Point(step, value, (value,)) for step, value in values]
                found.append(seed_log.judged_by_the_last(path, points, last, given))
            else:
                found.append(of_means(path, kind, values, given))
            break
    return found


def _beside(path: pathlib.Path) -> dict[str, Any]:
    """What run.json beside a history says of its run's config."""
    place = path.with_name("run.json")
    if not place.is_file():
        return {}
    reported = read_json(place, Record({}, others=True))
    held = reported.get("config")
    if held is None and isinstance(inner := reported.get("_attrs"), dict):
        held = inner.get("config")
    if isinstance(held, str):
        held = parse(held, f"{place}, its config", DataError)
    if not isinstance(held, dict):
        return {}
    plain = {
        key: value["value"] if isinstance(value, dict) and "value" in value else value for key, value in held.items()
    }
    known: dict[str, Any] = {}
    for what, keys in KEYS.items():
        value = next((plain[key] for key in keys if key in plain), None)
        right = isinstance(value, int) and not isinstance(value, bool) if what == "seed" else isinstance(value, str)
        known |= {what: value} if right else {}
    return known
