"""`Bench`: how a task measures, and where it writes what it found."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def read_rows(path: pathlib.Path) -> list[Row]:
    """The rows of a file of JSON lines; none where it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_row(out: pathlib.Path, row: Row) -> None:
    """Append a row to `out`/rows.jsonl."""
    with (out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measures on one device. Every result is written at once, so that what comes after it can't lose it."""

    task: str
    """The first word of the rows' names."""
    device: str
    """"cuda", or "cpu" for a rehearsal."""
    out: pathlib.Path
    """Folder of rows.jsonl and of the tasks' own files."""
    seconds: float = 100.0
    """That the task may take."""
    done: frozenset[str] = frozenset()
    """Names of an earlier call's rows: they are not measured again."""

    @property
    def on_gpu(self) -> bool:
        """Whether this is no rehearsal."""
        return self.device == "cuda"

    def row(self, name: str, value: float | None, unit: str = "", **more: Any) -> None:
        """Write down a value, or a fact that has none."""
        write_row(self.out, {"task": self.task, "name": name, "value": value, "unit": unit, **more})
        print(f"{self.task:14} {name:52} {'' if value is None else f'{value:.4g}'} {unit}", flush=True)

    def error(self, name: str, error: str, **more: Any) -> None:
        """Write down what went wrong."""
        self.row(name, None, error=error[:600], **more)

    def attempt(self, name: str, function: Callable[[], None]) -> None:
        """Call a function, unless an earlier call did; what it raises is a row, and the task continues."""
        if f"{self.task}/{name}" in self.done:
            return
        try:
            function()
        except Exception as error:  # whatever it is: the GPU is lent for minutes
            self.error(name, f"{type(error).__name__}: {error}", where=traceback.format_exc()[-1500:])

    def lacks_gpu(self, what: str) -> bool:
        """Whether this is a rehearsal; then a row says that `what` needs a GPU."""
        if not self.on_gpu:
            self.row(what, None, "needs a GPU", skipped=True)
        return not self.on_gpu

    def wait(self) -> None:
        """Until the device has done all."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds_of(self, function: Callable[[], Any], least: float = 1.0) -> float:
        """Median seconds of a call with the wait for it, repeated for `least` seconds and 3 times at least."""
        for _ in range(2):
            function()
        self.wait()
        times: list[float] = []
        while sum(times) < (least if self.on_gpu else 0.0) or len(times) < 3:
            start = time.perf_counter()
            function()
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def device_seconds_of(self, function: Callable[[], Any], times: int = 5) -> float:
        """The same by the GPU's own clock."""
        if not self.on_gpu:
            return self.seconds_of(function)
        function()
        found = []
        for _ in range(times):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            function()
            last.record()
            last.synchronize()
            found.append(first.elapsed_time(last) / 1e3)
        return statistics.median(found)

    def rate_of(self, steps: Callable[[int], Any], portion: int, least: float) -> float:
        """Steps a second of `steps(portion)`, called again and again for `least` seconds; once in a rehearsal."""
        self.wait()
        taken, start = 0, time.perf_counter()
        while taken == 0 or (self.on_gpu and time.perf_counter() - start < least):
            steps(portion)
            taken += portion
            self.wait()
        return taken / (time.perf_counter() - start)
