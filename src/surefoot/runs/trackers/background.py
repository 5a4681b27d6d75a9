"""A tracker neither ends nor delays training: it hears in a thread of its own, and what it raises becomes a note."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from surefoot.runs.progress_events import Event, Listener, say

WAIT = 60.0
"""Seconds that the end of a run waits for what is not sent yet."""
IN_FULL = 160
"""Characters of an error that a note shows."""


class Tracker(Protocol):
    """Who writes a run's numbers somewhere else."""

    note: Callable[[str], None]
    """Says a sentence to the user; set before the first event."""

    def __call__(self, event: Event) -> None:
        """Write the numbers of one event."""
        ...

    def close(self) -> None:
        """End what is open; where no summary was heard, as of a run that was interrupted."""
        ...


class Background:
    """The listener of a run that hands its events to a tracker."""

    def __init__(self, name: str, tracker: Tracker, notify: Listener, wait: float = WAIT) -> None:
        """Nothing is started before the run is.

        Args:
            name: of the logger, for notes.
            tracker: who hears; it is called from one other thread alone.
            notify: who hears notes, always from the thread of the run.
            wait: seconds that `close` waits.
        """
        self.name, self._tracker, self._notify, self._wait = name, tracker, notify, wait
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = False
        tracker.note = self._notes.put

    def __call__(self, event: Event) -> None:
        """Hear an event; from the start of training on."""
        if self._thread is None and event["kind"] == "start":
            self._thread = threading.Thread(target=self._work, name=f"logger {self.name}", daemon=True)
            self._thread.start()
        if self._thread is not None and not self._failed:
            self._events.put(dict(event))
        if event["kind"] != "note":
            self._say()

    def close(self) -> None:
        """Wait for what is not written yet, but not for ever."""
        if self._thread is None:
            return
        self._events.put(None)
        self._thread.join(self._wait)
        if self._thread.is_alive():
            self._notes.put(
                f"logger={self.name} was not done {self._wait:.0f} s after the run: it is left behind, and what it did "
                "not send is in metrics.jsonl"
            )
        self._thread = None
        self._say()

    def _say(self) -> None:
        while not self._notes.empty():
            say(self._notify, self._notes.get())

    def _work(self) -> None:
        while True:
            event = self._events.get()
            try:
                if event is not None:
                    self._tracker(event)
                    continue
                self._tracker.close()
            except Exception as error:  # whatever another library raises: training continues without it
                self._failed = True
                lines = str(error).strip().splitlines() or ["no message"]
                self._notes.put(
                    f"logger={self.name} gave up ({type(error).__name__}: {lines[0][:IN_FULL]}): training continues "
                    "without it, and metrics.jsonl has all numbers"
                )
            return
