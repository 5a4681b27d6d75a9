"""Every seed's log below some paths."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.interop.training_logs import sb3, tensorboard_events, titles, wandb_history
from surefoot.interop.training_logs.seed_log import EVALUATION, TRAINING, SeedLog

KNOWN = (
    f"{sb3.EVALUATIONS}, *{sb3.MONITOR} and {sb3.PROGRESS} of stable-baselines3, TensorBoard's event files, and "
    f"histories of W&B as CSV with {wandb_history.EPISODES}"
)


def seeds_in(paths: Sequence[str | os.PathLike[str]], score: str | None = None, last: int = 100) -> list[SeedLog]:
    """The logs in files and folders, in the order of their names.

    Of one folder with several kinds of file the best is taken: evaluations episode by episode, evaluations' means,
    training episodes, their running mean.

    Args:
        paths: files, or folders that hold such at any depth.
        score: evaluation or training; None: the former where there is one.
        last: how many training episodes judge a seed.

    Raises:
        ConfigError: a path that is not there.
        DataError: a damaged file, or a path without a log.
    """
    found: list[SeedLog] = []
    for given in paths:
        path = pathlib.Path(given)
        if path.is_dir():
            logs = [log for place in _folders(path) for log in _of_folder(place, score, last)]
        elif path.is_file():
            logs = _of_files([path], score, last)
        else:
            raise ConfigError(f"{path}: there is no such file or folder")
        if not logs:
            wanted = "" if score is None else f" with {score} returns"
            raise DataError(f"{path}: holds no log{wanted}; known are {KNOWN}")
        found += logs
    return found


def _folders(root: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for place, folders, _ in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.append(pathlib.Path(place))
    return found


def _of_folder(place: pathlib.Path, score: str | None, last: int) -> list[SeedLog]:
    files = sorted(path for path in place.iterdir() if path.is_file())
    own = [path for path in files if path.name == sb3.EVALUATIONS or path.name.endswith((sb3.MONITOR, sb3.PROGRESS))]
    others = [path for path in files if path not in own and path.suffix == ".csv" and wandb_history.is_history(path)]
    found = _of_files(own, score, last)
    for path in others:
        found += _of_files([path], score, last)
    if not found and any(place.glob(tensorboard_events.FILES)):
        log = tensorboard_events.events(place, score, last, titles.about_place(place))
        found = [] if log is None else [log]
    return found


def _of_files(files: Sequence[pathlib.Path], score: str | None, last: int) -> list[SeedLog]:
    """The best of what the files of one seed hold; of a history several seeds."""
    if not files:
        return []
    about = titles.about_place(files[0].parent)
    by_name = {path.name: path for path in files}
    monitors = [path for path in files if path.name.endswith(sb3.MONITOR)]
    if score in (None, EVALUATION) and sb3.EVALUATIONS in by_name:
        known = sb3.monitors(monitors, last, {}).environment if monitors else None
        named = {"environment": known} if known else {}
        return [sb3.evaluations(by_name[sb3.EVALUATIONS], {**named, **about})]
    progress = by_name.get(sb3.PROGRESS)
    for kind in (EVALUATION, TRAINING):
        if score not in (None, kind):
            continue
        if kind == TRAINING and monitors:
            return [sb3.monitors(monitors, last, about)]
        if progress is not None and (log := sb3.progress(progress, kind, about)) is not None:
            return [log]
    only = files[0]
    if len(files) == 1 and only.suffix == ".csv" and not monitors and progress is None:
        return wandb_history.histories(only, score, last, titles.about_place(only))
    if len(files) == 1 and only.name.startswith("events.out.tfevents"):
        raise ConfigError(f"{only}: give the folder of an event file, whose name says whose it is")
    return []
