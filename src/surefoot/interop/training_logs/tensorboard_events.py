"""TensorBoard's event files of stable-baselines3 and CleanRL."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

from surefoot.core.base.errors import DataError, MissingExtraError
from surefoot.interop.training_logs import seed_log
from surefoot.interop.training_logs.sb3 import MEANS, of_means
from surefoot.interop.training_logs.seed_log import EVALUATION, TRAINING, Point, SeedLog
from surefoot.interop.training_logs.wandb_history import EPISODES, EVALUATED

FILES = "events.out.tfevents.*"


def events(folder: pathlib.Path, score: str | None, last: int, about: dict[str, Any]) -> SeedLog | None:
    """The seed whose events lie in a folder; None where they have no return.

    Args:
        folder: with event files of one run.
        score: evaluation or training; None: evaluations if there are some.
        last: how many training episodes judge the seed, where each is logged.
        about: what its place says.

    Raises:
        MissingExtraError: tensorboard is not installed.
        DataError: a file can't be read.
    """
    try:
        reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard", f"reading {folder}") from error
    try:
        held = reading.EventAccumulator(str(folder), size_guidance={reading.SCALARS: 0}).Reload()
        tags = held.Tags()["scalars"]
        series = {name: [(int(one.step), float(one.value)) for one in held.Scalars(name)] for name in tags}
    except Exception as error:  # whatever its parser raises
        raise DataError(f"{folder}: its event files can't be read ({type(error).__name__}: {error})") from error
    for kind, names in ((EVALUATION, EVALUATED), (TRAINING, (EPISODES, MEANS[TRAINING]))):
        name = next((one for one in names if series.get(one)), None)
        if name is None or score not in (None, kind):
            continue
        if name == EPISODES:
            points = [Point(step, value, (value,)) for step, value in series[name]]
            return seed_log.judged_by_the_last(folder, points, last, about)
        return of_means(folder, kind, series[name], about)
    return None
