"""Notices a call that never comes back, such as an environment's `step`, and says which."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from surefoot.envs.acting import waiting_for

IMPORTS = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
"""Importing takes as long as it takes."""
FIRST_WORD = 0.1
"""Part of the patience after which a call that has not come back is mentioned."""


class Watchdog:
    """A thread that watches what the main thread waits for.

    That is a call of an environment (`envs.acting.waiting_for`), or else the innermost call from surefoot's code into
    code outside of it. A call that is merely slow is mentioned once.
    """

    def __init__(self, patience: float, mention: Callable[[str], None], give_up: Callable[[str], None]) -> None:
        """Not started yet.

        Args:
            patience: seconds that one call may take; 0: for ever.
            mention: called with a sentence when a tenth of it is over.
            give_up: called with a sentence when all of it is over, once; the main thread still waits then.
        """
        self.patience, self._mention, self._give_up = patience, mention, give_up
        self._main = threading.main_thread().ident
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self.patience > 0:
            self._thread.start()

    def stop(self) -> None:
        """Watch no longer, and wait for the thread's end: one that python's own end overtakes can abort the process."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        every = min(1.0, self.patience / 20)
        held: object = None
        waited, mentioned, before = 0.0, False, time.monotonic()
        while not self._ended.wait(every):
            now = time.monotonic()
            elapsed, before = min(now - before, 2 * every), now  # no more where the whole process slept
            stack = _stack(sys._current_frames().get(self._main or 0))
            found = waiting_for() or _call_outside(stack)
            words = "" if found is None else found[0] if isinstance(found, tuple) else _words(stack, found)
            del stack  # or what all these functions hold would live on
            if found is None or found != held:
                held, waited, mentioned = found, 0.0, False
                continue
            waited += elapsed
            if waited >= self.patience:
                self._give_up(
                    f"{words} has not come back for {waited:.0f} s, and is waited for no longer (patience="
                    f"{self.patience:g}; 0 waits for ever)"
                )
                return
            if waited >= FIRST_WORD * self.patience and not mentioned:
                mentioned = True
                self._mention(f"{words} has not come back for {waited:.0f} s (patience={self.patience:g})")


def stack_of_main_thread() -> str:
    """Where the main thread is, as a traceback shows it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame))


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _call_outside(stack: list[FrameType]) -> FrameType | None:
    """The frame that the innermost of surefoot's calls; while a reference to it is held, no other call has the same."""
    for inner, frame in zip([None, *stack], stack, strict=False):
        if _package(frame) == "surefoot":
            return None if inner is None or _package(inner) in IMPORTS else inner
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def _words(stack: list[FrameType], call: FrameType) -> str:
    """A call in words: the first of it that is not gymnasium's, and where it is now."""
    inside = stack[: stack.index(call) + 1]
    own = [one for one in inside if not str(one.f_globals.get("__name__", "")).startswith("gymnasium.")] or inside
    return f"{_place(own[-1])}" + (f", now in {_place(inside[0])}," if inside[0] is not own[-1] else "")


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
