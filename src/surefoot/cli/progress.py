"""Training as one watches it: a bar per seed on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_SECONDS = 10.0  # between log lines of one seed


class Watcher:
    """A listener of `surefoot.experiment.training` that shows its events; use it as a context manager."""

    def __init__(
        self, console: Console, quiet: bool = False, bars: bool | None = None, label: str = "", title: str = ""
    ) -> None:
        """Choose how to show.

        Args:
            console: where to.
            quiet: show nothing.
            bars: progress bars; None: where the console is a terminal.
            label: in front of every line.
            title: shown when training begins.
        """
        self.console, self.quiet, self.label, self.title = console, quiet, label, title
        self.bars = console.is_terminal if bars is None else bars
        self._began = time.monotonic()
        self._last_line: dict[int, float] = {}
        self._returns: dict[int, float] = {}
        self._tasks: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[score]}"),
            console=console,
            disable=quiet or not self.bars,
        )

    def __enter__(self) -> Watcher:
        """Begin."""
        self._progress.start()
        return self

    def __exit__(self, *unused: object) -> None:
        """Leave the bars as they are."""
        self._progress.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event; those of unknown kinds are passed over."""
        kind, seed = event["kind"], event.get("seed")
        if kind == "start":
            self._show_start(event["plan"], event["device"])
        elif kind == "note":
            text = event["text"]
            if text.startswith("warning:"):
                self.console.print(f"{self.label}{text}", markup=False)  # also where it is to be quiet
            else:
                self.say(f"note: {text}")
        elif kind == "progress":
            self._show_progress(seed, event)
        elif kind == "eval":
            self._show_score(seed, event["step"], event["return_mean"], event.get("success_mean"))
        elif kind == "done":
            self._show_done(seed)

    def say(self, text: str) -> None:
        """A line above the bars."""
        if not self.quiet:
            self.console.print(f"{self.label}{text}", markup=False)

    def _show_start(self, plan: dict[str, Any], device: str) -> None:
        seeds = ", ".join(map(str, plan["seeds"]))
        place = plan["environment"] or "without a simulator"
        if plan["dataset"] is not None:
            place = f"{plan['dataset']}, {place}"
        what = self.title or f"{plan['algorithm']} on {place}"
        self.say(f"{what}; {plan['steps']:,} steps of seeds {seeds} on {device}")
        if self.bars:
            for seed in plan["seeds"]:
                self._task(seed, plan["steps"])

    def _show_progress(self, seed: Any, event: dict[str, Any]) -> None:
        step, steps, rate, warming_up = event["step"], event["steps"], event["rate"], event.get("warming_up", False)
        speed = f"{rate:,.0f} steps/s"
        for name, words in (("episode_return", ", training episodes"), ("episode_cost", " at cost")):
            met = event.get(name)
            if met is None or math.isnan(met):
                break
            speed += f"{words} {met:,.1f}"
        if self.bars:
            task = self._task(seed, steps)
            if warming_up:
                self._progress.reset(task, completed=step)  # so that its speed does not enter the ETA
            self._progress.update(task, completed=step, total=steps, rate=speed)
        now = time.monotonic()
        if self.bars or now - self._last_line.get(seed, -LINE_SECONDS) < LINE_SECONDS:
            return
        self._last_line[seed] = now
        left = "warming up" if warming_up else f"{duration((steps - step) / max(rate, 1e-9))} left"
        self._line(f"seed {seed}: step {step:,} of {steps:,}, {speed}, {left}")

    def _show_score(self, seed: Any, step: int, score: float, solved: float | None) -> None:
        self._returns[seed] = score
        text = f"return {score:,.1f}" + ("" if solved is None else f", success {100 * solved:.0f} %")
        if self.bars and seed in self._tasks:
            self._progress.update(self._tasks[seed], score=text)
        elif not self.bars:
            self._line(f"seed {seed}: step {step:,}, {text}")

    def _show_done(self, seed: Any) -> None:
        if not self.bars:
            self._line(f"seed {seed}: done")

    def _line(self, text: str) -> None:
        self.say(f"[{duration(time.monotonic() - self._began)}] {text}")

    def _task(self, seed: Any, steps: int) -> TaskID:
        if seed not in self._tasks:
            description = f"{self.label}seed {seed}"
            self._tasks[seed] = self._progress.add_task(description, total=steps, rate="", score="")
        return self._tasks[seed]


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as in 1:02:03, without hours where there are none.

    >>> duration(62.4), duration(3723)
    ('1:02', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
