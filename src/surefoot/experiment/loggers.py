"""Metrics to TensorBoard or Weights & Biases, beside the run folder's own `metrics.jsonl`."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from surefoot.core.errors import ConfigError, MissingExtraError, nearest

Event = Mapping[str, Any]


class TensorBoardListener:
    """Writes progress and evaluations of each seed under RUN/tensorboard."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Prepare to write; raises MissingExtraError without tensorboard."""
        require("tensorboard", "tensorboard", "logger=tensorboard")
        self.folder = folder / "tensorboard"
        self._writers: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event."""
        for name, value in numbers(event):
            self._writer(int(event["seed"])).add_scalar(name, value, int(event["step"]))
        if event["kind"] == "done" and int(event["seed"]) in self._writers:
            self._writers.pop(int(event["seed"])).close()

    def _writer(self, seed: int) -> Any:
        if seed not in self._writers:  # not before the run folder exists
            from torch.utils.tensorboard import SummaryWriter

            self._writers[seed] = SummaryWriter(str(self.folder / f"seed{seed}"))  # type: ignore[no-untyped-call]
        return self._writers[seed]


class WandbListener:
    """Sends progress and evaluations to Weights & Biases, one run there per run folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Prepare to send; raises MissingExtraError without wandb."""
        require("wandb", "wandb", "logger=wandb")
        self.folder = folder
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        """Send the numbers of one event; the plan becomes the run's config."""
        if event["kind"] == "start":
            wandb = importlib.import_module("wandb")
            config = dict(event["plan"])
            self._run = wandb.init(project="surefoot", name=self.folder.name, dir=str(self.folder), config=config)
        found = {f"seed{event.get('seed')}/{name}": value for name, value in numbers(event)}
        if found and self._run is not None:
            self._run.log({**found, "step": int(event["step"])})
        if event["kind"] == "summary" and self._run is not None:
            self._run.finish()


LOGGERS: dict[str, Callable[[pathlib.Path], Callable[[Event], None]]] = {
    "tensorboard": TensorBoardListener,
    "wandb": WandbListener,
}
"""Word after logger= -> listener of a run folder's events."""


def make_logger(name: str, folder: pathlib.Path) -> Callable[[Event], None]:
    """The listener of this name.

    Raises:
        ConfigError: unknown name.
        MissingExtraError: its package is not installed.
    """
    if name not in LOGGERS:
        raise ConfigError(f"logger={name!r} is unknown: {nearest(name, list(LOGGERS))}")
    return LOGGERS[name](folder)


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
    values = {**event, **(event.get("values") or {})}
    for name, value in values.items():
        if name not in ("seed", "step", "steps") and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{event['kind']}/{name}", float(value)
