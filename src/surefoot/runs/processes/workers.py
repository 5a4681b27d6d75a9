"""Worker processes: started, listened to, and stopped."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Sequence

import torch

from surefoot.core.base import errors
from surefoot.core.base.children import ONE_THREAD, start_python
from surefoot.core.base.errors import SurefootError
from surefoot.runs.machine import at_once, cores
from surefoot.runs.processes.stopping import FINISH, STOP, Terminated, raise_lost, signals_wait
from surefoot.runs.progress_events import Event, Listener, say, silent
from surefoot.runs.run import Run, names_in
from surefoot.runs.trust import for_workers


class _Worker:
    """A worker process and the thread that reads its events."""

    def __init__(self, run: Run, seeds: list[int], lock: int, inbox: queue.Queue[tuple[_Worker, Event | None]]) -> None:
        self.run, self.seeds = run, seeds
        self.log = run.seed_folder(seeds[0]) / "log.txt"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        given = json.dumps(for_workers(names_in(run.plan)))
        arguments = [str(run.folder), ",".join(map(str, seeds)), str(lock), given]
        with open(self.log, "ab") as log, signals_wait():
            self.process = start_python(  # its standard input is open while we live, and where we ask it to stop
                "-m", "surefoot.runs.processes.worker", *arguments, stderr=log, inherited=(lock,), variables=ONE_THREAD
            )
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue[tuple[_Worker, Event | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                inbox.put((self, json.loads(line)))
        self.process.wait()
        inbox.put((self, None))

    def ask_to_stop(self) -> None:
        """Let it write a checkpoint at the next training step and end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(STOP)
            self.process.stdin.flush()

    def ask_to_finish(self) -> None:
        """Let it end training at the next step, and evaluate and save what it has."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(FINISH)
            self.process.stdin.flush()

    def stop(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def in_groups(seeds: Sequence[int], device: torch.device) -> list[list[int]]:
    """Seeds that are trained together by one process: on a GPU all, on a CPU each by itself."""
    return [list(seeds)] if device.type == "cuda" and seeds else [[seed] for seed in seeds]


def work(run: Run, groups: list[list[int]], notify: Listener, lock: int) -> None:
    """Train each group of seeds in a process of its own, which holds the run's lock; errors of workers are raised.

    A group whose event makes `notify` return False ends training at its next step.
    """
    inbox: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()
    most = at_once(len(groups), cores())
    alive: set[_Worker] = set()
    try:
        while groups or alive:
            raise_lost()
            while groups and len(alive) < most:
                alive.add(_Worker(run, groups.pop(0), lock, inbox))
            worker, event = inbox.get()
            if event is None:
                alive.discard(worker)
                if worker.process.returncode != 0:
                    raise SurefootError(
                        f"the worker of seed {worker.seeds[0]} ended with code {worker.process.returncode} (killed, or "
                        f"out of memory?); see {worker.log}{_saved(worker)}"
                    )
            elif event["kind"] == "error":
                raise _as_error(event, worker)
            elif event["kind"] == "stopped":  # by a signal that was sent to it
                raise Terminated
            elif _heard(event, alive, inbox, notify) is False and worker in alive:
                worker.ask_to_finish()
    except (KeyboardInterrupt, Terminated):
        _let_end(alive, inbox, notify)
        raise
    finally:
        for worker in alive:
            worker.stop()


def _heard(
    event: Event, alive: set[_Worker], inbox: queue.Queue[tuple[_Worker, Event | None]], notify: Listener
) -> bool | None:
    """What the listener returns; where it raises, each worker writes a checkpoint first."""
    try:
        return notify(event)
    except Exception:
        _let_end(alive, inbox, silent)
        raise


def _let_end(alive: set[_Worker], inbox: queue.Queue[tuple[_Worker, Event | None]], notify: Listener) -> None:
    """Wait until each worker has written a checkpoint and ended; a second Ctrl-C is raised here."""
    for worker in alive:  # first of all: a listener may fail, as where its reader died of the same Ctrl-C
        worker.ask_to_stop()
    say(notify, "stopping: each seed writes a checkpoint first (Ctrl-C again: end at once)")
    while alive:
        worker, event = inbox.get()
        if event is None:
            alive.discard(worker)
        elif event["kind"] == "error":
            raise _as_error(event, worker)
        elif event["kind"] != "stopped":
            notify(event)


def _saved(worker: _Worker) -> str:
    """What a worker that ended had done, where that is more than its checkpoints."""
    run, seed = worker.run, worker.seeds[0]
    if not run.policy_path(seed).is_file():
        return ""
    return f". Training had ended, and the policy is saved: {run.policy_path(seed)}; for the rest: {run.resume_command}"


def _as_error(event: Event, worker: _Worker) -> Exception:
    kind = getattr(errors, event["type"], None)
    if isinstance(kind, type) and issubclass(kind, SurefootError):
        error, text = SurefootError.__new__(kind), event["text"]
        if kind is errors.SimulatorError:
            text += f"; the traceback is in {worker.log}; if it had come to a checkpoint: {worker.run.resume_command}"
        error.args, error.field, error.code = (text,), event.get("field"), event.get("code")
        return error
    return RuntimeError(f"seed {worker.seeds[0]}: {event['text']}; the traceback is in {worker.log}")
