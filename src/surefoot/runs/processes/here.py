"""Training in this process, of environments that no other process can make."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from surefoot.core.base.errors import SimulatorError
from surefoot.core.base.threads import one_torch_thread
from surefoot.envs.make import only_here
from surefoot.runs.plan import Plan
from surefoot.runs.processes.stopping import Stopped, Terminated, raise_lost
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import Run
from surefoot.runs.trainers.choose import seed_trainer


def here_note(plan: Plan) -> list[str]:
    """What a run says of an environment that no other process can make; nothing of others."""
    reason = None if plan.environment is None else only_here(plan.environment)
    if reason is None:
        return []
    return [
        f"environment {plan.environment} {reason}: its seeds train in this process, one after the other, and the "
        "command line can't resume or evaluate the run (surefoot.resume(folder, env=...) in python does); put it in a "
        "module of its own and name it module:name to train in worker processes"
    ]


def work_here(run: Run, groups: list[list[int]], notify: Listener) -> None:
    """Train each group of seeds in this process; the numbers are those of worker processes.

    Ctrl-C and SIGTERM let it write a checkpoint at the next training step, and then end it; a second one ends it at
    once.
    """
    with one_torch_thread(), _stop_asked() as (stop, came):  # threads as workers have them
        for seeds in groups:
            run.seed_folder(seeds[0]).mkdir(parents=True, exist_ok=True)
            try:
                _train(run, seeds, notify, stop)
            except Stopped:
                raise (Terminated() if signal.SIGTERM in came else KeyboardInterrupt()) from None


def _train(run: Run, seeds: list[int], notify: Listener, stop: threading.Event) -> None:
    finish = threading.Event()

    def send(event: dict[str, Any]) -> None:
        if notify(event) is False:  # a listener ends these seeds, as it does those of a worker process
            finish.set()

    try:
        trainer = seed_trainer(run, seeds, send, stop.is_set)
        trainer.asked_to_finish = finish.is_set
        send({"kind": "ready", "seeds": trainer.seeds, "step": trainer.step})
        trainer.train()
        trainer.finish()
    except SimulatorError as error:
        raise SimulatorError(
            f"{error}; if it had come to a checkpoint, surefoot.resume({str(run.folder)!r})"
        ) from error


@contextlib.contextmanager
def _stop_asked() -> Iterator[tuple[threading.Event, set[int]]]:
    """An event that the first SIGINT or SIGTERM inside sets, and which of them came; other threads get no signals."""
    stop, came = threading.Event(), set[int]()
    raise_lost()
    if threading.current_thread() is not threading.main_thread():
        yield stop, came
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        came.add(number)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
