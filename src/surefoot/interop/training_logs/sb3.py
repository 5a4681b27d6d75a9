"""stable-baselines3's files: evaluations.npz, monitor.csv and progress.csv.

https://stable-baselines3.readthedocs.io/en/master/common/monitor.html, .../guide/callbacks.html, .../common/logger.html
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.schema import Number, Record, Text, check, parse
from surefoot.core.base.unpacking import read_npz
from surefoot.interop.training_logs import seed_log
from surefoot.interop.training_logs.seed_log import EVALUATION, TRAINING, Point, SeedLog
from surefoot.interop.training_logs.tables import columns, pairs, text_of

EVALUATIONS, MONITOR, PROGRESS = "evaluations.npz", "monitor.csv", "progress.csv"
STEPS = "time/total_timesteps"
MEANS = {EVALUATION: "eval/mean_reward", TRAINING: "rollout/ep_rew_mean"}
"""What a seed is judged by -> the column of progress.csv, and tag of TensorBoard, that has it."""
NEEDED = ("timesteps", "results")
HEADER = Record({}, {"t_start": Number(), "env_id": Text(200)}, others=True)


def evaluations(path: pathlib.Path, about: dict[str, Any]) -> SeedLog:
    """What `EvalCallback` wrote: (K,) steps and (K, E) returns of each evaluation's episodes.

    Raises:
        DataError: it is damaged, or holds something else; objects are never unpickled.
    """
    found, names = read_npz(
        path, lambda name: name in (*NEEDED, "ep_lengths", "successes"), DataError, as_is=lambda name: True
    )
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise DataError(f"{path}: has no {missing[0]!r}, which EvalCallback writes; it holds {sorted(names)}")
    steps, results = found["timesteps"], found["results"]
    if steps.ndim != 1 or results.ndim != 2 or len(steps) != len(results) or not results.size:
        raise DataError(
            f"{path}: timesteps have shape {steps.shape} and results {results.shape}; they must be (K,) and (K, E)"
        )
    others = {}
    for name in ("ep_lengths", "successes"):
        if name in found:
            if found[name].shape != results.shape:
                raise DataError(f"{path}: {name} has shape {found[name].shape}, and results {results.shape}")
            others[name] = found[name].astype(float)
    points = [
        Point(
            int(step),
            float(np.mean(returns)),
            tuple(map(float, returns)),
            tuple(map(float, others["ep_lengths"][k])) if "ep_lengths" in others else (),
            tuple(map(float, others["successes"][k])) if "successes" in others else (),
        )
        for k, (step, returns) in enumerate(zip(steps, results, strict=True))
    ]
    ready = seed_log.check(path, points)
    last = ready[-1].returns
    return SeedLog(path, EVALUATION, ready, last, f"mean of the last evaluation's {len(last)} episodes", **about)


def monitors(paths: list[pathlib.Path], last: int, about: dict[str, Any]) -> SeedLog:
    """What `Monitor` wrote of one seed: a file for each of its environments, a line for each episode.

    Episodes of several environments are ordered by the time at which they ended, and steps are those of all together.

    Args:
        paths: the files.
        last: how many training episodes judge the seed.
        about: what is known of the seed; the environment is that of the files' headers, where they name one.

    Raises:
        DataError: one is damaged.
    """
    rows: list[tuple[float, float, float]] = []
    for path in paths:
        text = text_of(path)
        first, _, rest = text.partition("\n")
        if not first.startswith("#"):
            raise DataError(f"{path}, line 1: Monitor's header, which begins with #, is missing")
        header = check(parse(first[1:], f"{path}, line 1", DataError), HEADER, f"{path}, line 1", DataError)
        if header.get("env_id") not in (None, "None"):
            about = {"environment": header["env_id"], **about}
        table = columns(rest, path, first_line=2)
        if not {"r", "l", "t"} <= table.keys():
            raise DataError(f"{path}: has no columns r, l and t (return, length, time) of numbers")
        began = float(header.get("t_start", 0.0))
        ends = zip(table["r"], table["l"], table["t"], strict=True)
        rows += [(began + t, length, value) for value, length, t in ends]
    if not np.isfinite(rows).all():
        raise DataError(f"{paths[0]}: has a return, length or time that is not finite; every line must have all three")
    points, step = [], 0
    for _, length, value in sorted(rows):
        step += int(length)
        points.append(Point(step, value, (value,), (float(length),)))
    return seed_log.judged_by_the_last(paths[0].parent if len(paths) > 1 else paths[0], points, last, about)


def progress(path: pathlib.Path, score: str | None, about: dict[str, Any]) -> SeedLog | None:
    """What the CSV logger wrote: evaluations where it has them, or else the mean of the last 100 training episodes.

    Args:
        path: of progress.csv.
        score: which of the two; None: evaluations if there are some.
        about: what is known of the seed.

    Returns:
        The seed; None where the file has no such column.

    Raises:
        DataError: it is damaged.
    """
    table = columns(text_of(path), path)
    if STEPS not in table:
        raise DataError(f"{path}: has no column {STEPS!r} of numbers, so that its steps are not known")
    for kind, name in MEANS.items():
        found = pairs(table[STEPS], table[name]) if name in table and score in (None, kind) else []
        if found:
            return of_means(path, kind, found, about)
    return None


def of_means(path: pathlib.Path, kind: str, found: list[tuple[int, float]], about: dict[str, Any]) -> SeedLog:
    """A seed of which only means are known, (step, mean) each."""
    points = seed_log.check(path, [Point(step, value) for step, value in found])
    judged = "the last evaluation's mean" if kind == EVALUATION else "running mean of training episodes at the end"
    return SeedLog(path, kind, points, (points[-1].mean,), judged, **about)
