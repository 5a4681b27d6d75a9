"""Metrics to the run folder's own `metrics.jsonl`, and beside it to TensorBoard, Weights & Biases or MLflow.

Lines of `metrics.jsonl` are those that checkpoints keep, added as soon as they are known; when the run is complete the
file is written anew, in the order of steps. After a crash the last line may be cut, and after resuming lines occur
twice: readers take the last of each (seed, step, kind).
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import SurefootError
from surefoot.core.base.files import why
from surefoot.core.base.schema import MOST_BYTES, check, parse
from surefoot.evaluation.runs import METRICS_FORMAT, METRICS_LINE
from surefoot.runs.progress_events import Event, Listener, Listeners, silent
from surefoot.runs.trackers.background import Background, Tracker
from surefoot.runs.trackers.mlflow import MlflowListener
from surefoot.runs.trackers.options import check_options
from surefoot.runs.trackers.tensorboard import TensorBoardListener
from surefoot.runs.trackers.wandb import WandbListener


class LiveMetrics:
    """Adds the lines of `metrics` events to a run's file."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Nothing is written before the first line.

        Args:
            folder: of the run.
        """
        self.path = folder / "metrics.jsonl"
        self._begun = False

    def __call__(self, event: Event) -> None:
        """Hear an event.

        Raises:
            SurefootError: the file can't be written.
        """
        if event["kind"] != "metrics":
            return
        line = json.dumps({"format": METRICS_FORMAT, **event["line"]}) + "\n"
        try:
            if not self._begun:
                line = self._ending() + line
                self._begun = True
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise SurefootError(f"{self.path}: can't be written ({why(error)})") from error

    def _ending(self) -> str:
        """What a line that was cut by a crash lacks."""
        if not self.path.is_file() or self.path.stat().st_size == 0:
            return ""
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return "" if file.read(1) == b"\n" else "\n"


def read_live(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The metrics of a run as far as they are written; lines that were cut are passed over, of repeated ones the last.

    Returns:
        Lines in the order of their steps; empty where there is nothing yet.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES)
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for number, text in enumerate(content.splitlines(), 1):
        try:
            line = check(parse(text, f"{path}, line {number}"), METRICS_LINE, str(path))
        except SurefootError:
            continue
        found[line["seed"], line["step"], line["kind"]] = line
    return sorted(found.values(), key=lambda line: (line["step"], line["seed"]))


LOGGERS: dict[str, Callable[[pathlib.Path, bool, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoardListener,
    "wandb": WandbListener,
    "mlflow": MlflowListener,
}
"""Word after logger= -> who hears the events of a run folder."""


def make_logger(
    name: str, folder: pathlib.Path, resumed: bool = False, options: Mapping[str, Any] | None = None
) -> Tracker:
    """The tracker of this name, which works in the thread that calls it.

    Raises:
        ConfigError: unknown name or option.
        MissingExtraError: its package is not installed.
    """
    ready = check_options(name, options)
    return LOGGERS[name](folder, resumed, ready)


def loggers(
    name: str | None,
    folder: pathlib.Path,
    resumed: bool = False,
    options: Mapping[str, Any] | None = None,
    notify: Listener = silent,
) -> list[Listener]:
    """The tracker of this name in the background, in a list; an empty one where none is named.

    Args:
        name: of the logger.
        folder: of the run.
        resumed: it continues.
        options: of the logger.
        notify: who hears the tracker's notes, such as that it failed.
    """
    if name is None:
        check_options(name, options)
        return []
    return [Background(name, make_logger(name, folder, resumed, options), notify)]


def to_all(listeners: Sequence[Listener]) -> Listeners:
    """One listener that hands events to several."""
    return Listeners(listeners)


def close(listener: Listener) -> None:
    """End the trackers among a run's listeners; no other is touched."""
    if isinstance(listener, Background):
        listener.close()
    elif isinstance(listener, Listeners):
        for one in listener.listeners:
            close(one)
