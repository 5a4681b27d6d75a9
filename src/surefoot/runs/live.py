"""`metrics.jsonl` of a run that is still training: a line is added as soon as it is known.

The lines are those that checkpoints keep; when the run is complete the file is written anew, in the order of steps.
After a crash the last line may be cut, and after resuming lines occur twice: readers take the last of each (seed, step,
kind).
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from surefoot.core.base.errors import SurefootError
from surefoot.core.base.files import why
from surefoot.core.base.schema import MOST_BYTES, check, parse
from surefoot.evaluation.runs import METRICS_FORMAT, METRICS_LINE

Event = dict[str, Any]


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
