"""Training as one watches it: a bar per seed on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

LINE_SECONDS = 10.0
"""Between log lines of one seed."""
SECOND_LINE = 3.0
"""The second follows the first sooner: only then is anything known of the time left."""
WINDOW = 30.0
"""Seconds over which the time left is measured."""
SLOW = 10.0
"""Steps a second below which digits after the point are shown."""
LEAST = 1.0
"""Seconds of steps that must have been seen before it is shown."""


class Watcher:
    """A listener of `surefoot.runs.start` that shows its events; use it as a context manager."""

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
        self._deaf = False
        self._began = time.monotonic()
        self._last_line: dict[int, float] = {}
        self._lines: dict[int, int] = {}
        self._seen: dict[int, collections.deque[tuple[float, int]]] = {}
        self._limit: float | None = None
        self._tasks: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
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
        with contextlib.suppress(OSError):
            self._progress.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event; those of unknown kinds are passed over.

        Where it can't be written, on a full disk or to a reader that has gone, training continues silently.
        """
        if self._deaf:
            return
        try:
            self._show(event)
        except OSError:
            self._deaf = True

    def _show(self, event: dict[str, Any]) -> None:
        kind, seed = event["kind"], event.get("seed")
        if kind == "start":
            self._show_start(event["plan"], event["device"])
        elif kind == "note":
            text = event["text"]
            if text.startswith("warning:"):
                self.console.print(f"{self.label}{text}", markup=False)  # also where it is to be quiet
            else:
                self.say(f"note: {text}")
        elif kind == "ready":
            self._show_ready(event["seeds"], event["step"])
        elif kind == "progress":
            self._show_progress(seed, event)
        elif kind == "eval":
            self._show_score(seed, event["step"], event)
        elif kind == "done":
            self._show_done(seed)

    def say(self, text: str) -> None:
        """A line above the bars."""
        if not self.quiet:
            self.console.print(f"{self.label}{text}", markup=False)

    def _show_start(self, plan: dict[str, Any], device: str) -> None:
        self._limit = (plan.get("config") or {}).get("cost_limit")
        seeds = ", ".join(map(str, plan["seeds"]))
        place = plan["environment"] or "without a simulator"
        if plan["dataset"] is not None:
            place = f"{plan['dataset']}, {place}"
        what = self.title or f"{plan['algorithm']} on {place}"
        of = f"seed{'s' if len(plan['seeds']) > 1 else ''} {seeds}"
        self.say(f"{what}; {plan['steps']:,} steps of {of} on {device}")
        if self.bars:
            for seed in plan["seeds"]:
                self._task(seed, plan["steps"])

    def _show_ready(self, seeds: Any, step: int) -> None:
        for seed in seeds:
            if self.bars and seed in self._tasks:
                self._progress.update(self._tasks[seed], rate="first steps")
            elif not self.bars:
                self._line(f"seed {seed}: {f'goes on at step {step:,}' if step else 'begins'}")

    def _show_progress(self, seed: Any, event: dict[str, Any]) -> None:
        step, steps, rate, warming_up = event["step"], event["steps"], event["rate"], event.get("warming_up", False)
        now = time.monotonic()
        left = self._left(seed, step, steps, now, warming_up)
        known = len(self._seen[seed]) > 1 or warming_up  # the first rate has all in it that happens only once
        words = [f"{rate:,.0f} steps/s" if rate >= SLOW else f"{rate:.2g} steps/s"] if known and rate > 0 else []
        for name, given in (("episode_return", "training episodes"), ("episode_cost", "at cost")):
            met = event.get(name)
            if met is None or math.isnan(met):
                break
            words.append(f"{given} {met:,.1f}")
        if self.bars:
            reported = f"ETA {left}" if left and not warming_up else left
            self._progress.update(
                self._task(seed, steps), completed=step, total=steps, rate=", ".join(words), left=reported
            )
        lines = self._lines.get(seed, 0)
        wait = (0.0, SECOND_LINE, LINE_SECONDS)[min(lines, 2)]
        if self.bars or now - self._last_line.get(seed, -LINE_SECONDS) < wait:
            return
        self._last_line[seed], self._lines[seed] = now, 0 if warming_up else lines + 1
        if left:
            words.append(left if warming_up else f"{left} left")
        self._line(f"seed {seed}: {', '.join([f'step {step:,} of {steps:,}', *words])}")

    def _left(self, seed: Any, step: int, steps: int, now: float, warming_up: bool) -> str:
        """The time left by the steps of the last half minute, "" where too little is known to tell it.

        What came before the first event, such as compiling and filling buffers, happens only once, and is not counted.
        """
        seen = self._seen.setdefault(seed, collections.deque())
        if warming_up:
            seen.clear()
            return "warming up"
        seen.append((now, step))
        while len(seen) > 2 and now - seen[1][0] > WINDOW:
            seen.popleft()
        (first, started), elapsed = seen[0], now - seen[0][0]
        if elapsed < LEAST or step <= started or first == now:
            return ""
        return duration((steps - step) * elapsed / (step - started))

    def _show_score(self, seed: Any, step: int, event: dict[str, Any]) -> None:
        text = f"return {event['return_mean']:,.1f}"
        if (cost := event.get("cost_mean")) is not None:
            text += f", cost {cost:,.1f}" + ("" if self._limit is None else f" (limit {self._limit:g})")
        if (solved := event.get("success_mean")) is not None:
            text += f", success {100 * solved:.0f} %"
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
            self._tasks[seed] = self._progress.add_task(description, total=steps, rate="starting", left="", score="")
        return self._tasks[seed]


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as in 1:02:03, without hours where there are none.

    >>> duration(62.4), duration(3723)
    ('1:02', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
