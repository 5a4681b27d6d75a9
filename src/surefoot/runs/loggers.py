"""Metrics to the run folder's own `metrics.jsonl`, and beside it to TensorBoard, Weights & Biases or MLflow.

Lines of `metrics.jsonl` are those that checkpoints keep, added as soon as they are known; when the run is complete the
file is written anew, in the order of steps. After a crash the last line may be cut, and after resuming lines occur
twice: readers take the last of each (seed, step, kind).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError, MissingExtraError, SurefootError, nearest
from surefoot.core.base.files import why
from surefoot.core.base.schema import MOST_BYTES, check, parse
from surefoot.evaluation.runs import METRICS_FORMAT, METRICS_LINE
from surefoot.runs.progress_events import Event, Listener, Listeners


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


class TensorBoardListener:
    """Writes progress, losses and evaluations of each seed under RUN/tensorboard."""

    def __init__(self, folder: pathlib.Path, resumed: bool = False) -> None:
        """Prepare to write; raises MissingExtraError without tensorboard.

        Args:
            folder: of the run.
            resumed: what an interrupted run wrote after its last checkpoint is replaced.
        """
        require("tensorboard", "tensorboard", "logger=tensorboard")
        self.folder, self._resumed = folder / "tensorboard", resumed
        self._writers: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event."""
        found = list(numbers(event))
        for name, value in found:
            self._writer(int(event["seed"]), int(event["step"])).add_scalar(name, value, int(event["step"]))
        if found:  # to disk: a run that is killed goes on after its last checkpoint, and writes none of this again
            self._writers[int(event["seed"])].flush()
        if event["kind"] == "done" and int(event["seed"]) in self._writers:
            self._writers.pop(int(event["seed"])).close()

    def _writer(self, seed: int, step: int) -> Any:
        if seed not in self._writers:  # not before the run folder exists
            from torch.utils.tensorboard import SummaryWriter

            place, purge = str(self.folder / f"seed{seed}"), step if self._resumed else None
            self._writers[seed] = SummaryWriter(place, purge_step=purge)
        return self._writers[seed]


class WandbListener:
    """Sends progress, losses and evaluations to Weights & Biases, one run there per run folder."""

    def __init__(self, folder: pathlib.Path, resumed: bool = False) -> None:
        """Prepare to send; raises MissingExtraError without wandb. A run that is resumed goes on in the one it has."""
        require("wandb", "wandb", "logger=wandb")
        self.folder = folder
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        """Send the numbers of one event; the plan becomes the run's config."""
        if event["kind"] == "start":
            wandb = importlib.import_module("wandb")
            config = dict(event["plan"])
            place = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]
            name = {"name": self.folder.name, "id": f"surefoot-{place}", "resume": "allow"}
            self._run = wandb.init(project="surefoot", dir=str(self.folder), config=config, **name)
        found = {f"seed{event.get('seed')}/{name}": value for name, value in numbers(event)}
        if found and self._run is not None:
            self._run.log({**found, "step": int(event["step"])})
        if event["kind"] == "summary" and self._run is not None:
            self._run.finish()


class MlflowListener:
    """Writes progress and evaluations to MLflow, one run there per run folder.

    Where MLFLOW_TRACKING_URI names a server or database it goes there, else into files under RUN/mlruns.
    """

    def __init__(self, folder: pathlib.Path, resumed: bool = False) -> None:
        """Prepare to write; raises MissingExtraError without mlflow. A resumed run goes on in the one it has."""
        require("mlflow", "mlflow", "logger=mlflow")
        self.folder, self._resumed = folder, resumed
        self._client: Any = None
        self._run = ""

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event; the plan becomes the run's parameters."""
        if event["kind"] == "start":
            self._begin(event["plan"])
        found = list(numbers(event))
        if self._client is None:
            return
        if found:
            entities, now = importlib.import_module("mlflow.entities"), int(time.time() * 1000)
            seed, step = event["seed"], int(event["step"])
            metrics = [entities.Metric(f"seed{seed}/{name}", value, now, step) for name, value in found]
            self._client.log_batch(self._run, metrics=metrics)
        if event["kind"] == "summary":
            self._client.set_terminated(self._run)

    def _begin(self, plan: Mapping[str, Any]) -> None:
        mlflow, entities = (importlib.import_module(name) for name in ("mlflow", "mlflow.entities"))
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer versions ask for
            uri = (self.folder / "mlruns").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        there = self._client.get_experiment_by_name("surefoot")
        experiment = self._client.create_experiment("surefoot") if there is None else there.experiment_id
        place = str(self.folder.resolve())
        known = self._client.search_runs([experiment], "tags.folder = '" + place.replace("'", "") + "'")
        if self._resumed and known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"folder": place.replace("'", "")}
        self._run = self._client.create_run(experiment, run_name=self.folder.name, tags=tags).info.run_id
        flat = {**{key: value for key, value in plan.items() if key != "config"}, **dict(plan["config"])}
        parameters = [entities.Param(key, str(value)[:500]) for key, value in flat.items()]
        self._client.log_batch(self._run, params=parameters[:100])


LOGGERS: dict[str, Callable[[pathlib.Path, bool], Listener]] = {
    "tensorboard": TensorBoardListener,
    "wandb": WandbListener,
    "mlflow": MlflowListener,
}
"""Word after logger= -> listener of a run folder's events."""


def make_logger(name: str, folder: pathlib.Path, resumed: bool = False) -> Listener:
    """The listener of this name.

    Raises:
        ConfigError: unknown name.
        MissingExtraError: its package is not installed.
    """
    if name not in LOGGERS:
        raise ConfigError(f"logger={name!r} is unknown: {nearest(name, list(LOGGERS))}")
    return LOGGERS[name](folder, resumed)


def loggers(name: str | None, folder: pathlib.Path, resumed: bool = False) -> list[Listener]:
    """The listener of this name in a list; an empty one where none is named."""
    return [] if name is None else [make_logger(name, folder, resumed)]


def to_all(listeners: Sequence[Listener]) -> Listeners:
    """One listener that hands events to several."""
    return Listeners(listeners)


def require(package: str, extra: str, purpose: str) -> None:
    """Import a package, or raise MissingExtraError."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


def numbers(event: Event) -> Iterator[tuple[str, float]]:
    """(name, value) of every number of an event that belongs to a seed's step."""
    if "seed" not in event or "step" not in event:
        return
    if event["kind"] == "metrics":  # losses; evaluations have events of their own
        event = {**event["line"], "kind": event["line"]["kind"]}
        if event["kind"] != "train":
            return
    values = {**event, **(event.get("values") or {})}
    for name, value in values.items():
        if name not in ("seed", "step", "steps") and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{event['kind']}/{name}", float(value)
