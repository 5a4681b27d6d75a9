"""How a run is stopped so that it can be resumed: Ctrl-C and SIGTERM in the parent, a request in its workers."""

from __future__ import annotations

import contextlib
import contextvars
import pathlib
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

STOP = b"s"
"""What the parent writes to a worker's standard input to ask for a checkpoint and the end."""
FINISH = b"f"
"""Likewise to ask for the end of training: the policy of that step is evaluated and saved as the run's."""
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside of resumable", default=False)


class Stopped(BaseException):
    """Raised in a worker between two training steps, once it was asked to stop."""


class Finishing(BaseException):
    """Raised in a worker between two training steps, once a listener has ended training."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a run was training; its checkpoints are written, and it can be resumed."""


class Terminated(SystemExit):
    """SIGTERM; where a run was training, its checkpoints are written, and standard error says how to resume it."""

    def __init__(self, reported: bool = False) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.reported = reported
        """Whether standard error says how to continue."""


_lost = threading.Event()
"""SIGTERM came, and no one has seen what it raised: code in C that imports modules may lose it."""


def raise_lost() -> None:
    """Raise `Terminated` where it was raised before and lost on the way."""
    if _lost.is_set():
        raise Terminated


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM inside raises `Terminated`, once, where nothing else handles it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handle(*unused: object) -> None:
        signal.signal(signal.SIGTERM, _nothing)  # what follows is to end in peace
        _lost.set()
        raise Terminated

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        _lost.clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def resumable(folder: pathlib.Path, command: Callable[[], str] | None = None) -> Iterator[None]:
    """Ctrl-C or SIGTERM inside says how to continue, where that is possible; of one inside of another the outer one
    does.

    Args:
        folder: of a run, or of what trains several.
        command: says what continues the folder, where it is none of one run.

    Raises:
        Interrupted: Ctrl-C after the run had started.
        Terminated: SIGTERM.
    """
    if _inside.get():
        yield
        return
    outermost = _inside.set(True)
    with terminable():
        try:
            yield
        except (KeyboardInterrupt, Terminated) as error:
            if command is None and not (folder / "config.json").is_file():
                raise
            advice = f"resume with: {_of_the_run(folder) if command is None else command()}"
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"interrupted; {advice}") from None
            error.reported = True
            with contextlib.suppress(OSError):  # no one reads it
                print(f"terminated; {advice}", file=sys.stderr, flush=True)
            raise
        finally:
            _inside.reset(outermost)


@contextlib.contextmanager
def going_on_told(folder: pathlib.Path) -> Iterator[None]:
    """What ends a run from outside, as a full disk or a process that was killed, is given with what continues it.

    Args:
        folder: of the run.

    Raises:
        SurefootError: with that added, where it is of none of its kinds: those say what to do first.
    """
    from surefoot.core.base.errors import SurefootError

    try:
        yield
    except SurefootError as error:
        if type(error) is not SurefootError:
            raise
        raise SurefootError(f"{error}; then continue: {_of_the_run(folder)}") from error


def _of_the_run(folder: pathlib.Path) -> str:
    from surefoot.core.base.errors import SurefootError  # here: a worker listens to signals before it imports this much
    from surefoot.runs.run import Run

    try:
        return Run.open(folder).resume_command
    except SurefootError:  # whoever resumes it is shown what is wrong with it
        return f"surefoot train --resume {shlex.quote(str(folder))}"


def listen_to_signals(stop: threading.Event) -> None:
    """In a worker: SIGTERM asks it to stop; Ctrl-C, which a terminal sends to parent and workers, is the parent's."""

    def handle(*unused: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    leave_interrupts()


def leave_interrupts() -> None:
    """In a process that was started while `signals_wait`: Ctrl-C is the parent's; SIGTERM does what it is set to do."""
    signal.signal(signal.SIGINT, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """A process started inside gets SIGINT and SIGTERM when it has called `leave_interrupts`, and not before."""
    before: Any = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing(*unused: object) -> None:
    """A handler that does nothing; unlike SIG_IGN it is not inherited by programs that are started."""
