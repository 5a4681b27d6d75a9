"""TensorBoard."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.runs.progress_events import Event
from surefoot.runs.trackers.numbers import finals, numbers, require


class TensorBoardListener:
    """Writes progress, losses and evaluations of each seed under RUN/tensorboard."""

    note: Callable[[str], None]

    def __init__(self, folder: pathlib.Path, resumed: bool = False, options: Mapping[str, Any] | None = None) -> None:
        """Prepare to write; raises MissingExtraError without tensorboard.

        Args:
            folder: of the run.
            resumed: what an interrupted run wrote after its last checkpoint is replaced.
            options: there are none.
        """
        require("tensorboard", "tensorboard", "logger=tensorboard")
        self.folder, self._resumed = folder / "tensorboard", resumed
        self._writers: dict[int, Any] = {}

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event."""
        found = list(numbers(event))
        for name, value in found:
            self._writer(int(event["seed"]), int(event["step"])).add_scalar(name, value, int(event["step"]))
        if found:  # to disk: a run that is killed continues after its last checkpoint, and writes none of this again
            self._writers[int(event["seed"])].flush()
        if event["kind"] == "summary":
            summary = event["summary"]
            for seed in summary["seeds"]:
                for name, value in finals(summary, seed).items():
                    self._writer(seed).add_scalar(name, value, int(summary["steps"]))
            self.close()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, seed: int, step: int | None = None) -> Any:
        if seed not in self._writers:  # not before the run folder exists
            from torch.utils.tensorboard import SummaryWriter

            place, purge = str(self.folder / f"seed{seed}"), step if self._resumed else None
            self._writers[seed] = SummaryWriter(place, purge_step=purge)
        return self._writers[seed]
