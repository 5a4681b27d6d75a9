"""Worker processes: started, listened to, and stopped."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from surefoot.core import errors
from surefoot.core.children import environment
from surefoot.core.errors import SurefootError
from surefoot.experiment.run import Run, names_in
from surefoot.experiment.stopping import Terminated, raise_lost, signals_wait
from surefoot.experiment.trust import for_workers
from surefoot.experiment.worker import STOP

Event = dict[str, Any]
Listener = Callable[[Event], None]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that say how many threads libraries use: a worker has one."""


def say(notify: Listener, *texts: str) -> None:
    """Tell a listener sentences for the user."""
    for text in texts:
        notify({"kind": "note", "text": text})


def cores() -> int:
    """Cores that this process may use: fewer than there are where SUREFOOT_CORES, or whoever began it, says so."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:
        found = os.cpu_count() or 1
    said = os.environ.get("SUREFOOT_CORES", "")
    return max(1, min(found, int(said))) if said.isdigit() else found


SHARING_A_CORE = 0.85
"""Rate per core of several workers on one, as a fraction of one alone: they evict each other's caches (measured)."""


def at_once(seeds: int, cores: int) -> int:
    """How many single-threaded workers to run side by side so that `seeds` of them end soonest.

    One a core where they divide evenly; more where a core would otherwise idle (three seeds on two cores).
    """

    def rounds(workers: int) -> float:
        share = max(1.0, workers / cores) / (1.0 if workers <= cores else SHARING_A_CORE)
        return math.ceil(seeds / workers) * share

    return min(range(1, max(1, min(seeds, 4 * cores)) + 1), key=lambda workers: (rounds(workers), workers))


class _Worker:
    """A worker process and the thread that reads its events."""

    def __init__(self, run: Run, seeds: list[int], lock: int, inbox: queue.Queue[tuple[_Worker, Event | None]]) -> None:
        self.run, self.seeds = run, seeds
        self.log = run.seed_folder(seeds[0]) / "log.txt"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        given = json.dumps(for_workers(names_in(run.plan)))
        arguments = [str(run.folder), ",".join(map(str, seeds)), str(lock), given]
        with open(self.log, "ab") as log, signals_wait():
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "surefoot.experiment.worker", *arguments],
                stdin=subprocess.PIPE,  # open while we live, and where we ask it to stop (experiment.worker)
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(lock,),
                env=environment(**dict.fromkeys(THREADS, "1")),
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

    def stop(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def in_groups(seeds: Sequence[int], device: torch.device) -> list[list[int]]:
    """Seeds that are trained together by one process: on a GPU all, on a CPU each by itself."""
    return [list(seeds)] if device.type == "cuda" and seeds else [[seed] for seed in seeds]


def work(run: Run, groups: list[list[int]], notify: Listener, lock: int) -> None:
    """Train each group of seeds in a process of its own, which holds the run's lock; errors of workers are raised."""
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
            else:
                notify(event)
    except (KeyboardInterrupt, Terminated):
        _let_end(alive, inbox, notify)
        raise
    finally:
        for worker in alive:
            worker.stop()


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
        error.args = (text,)
        return error
    return RuntimeError(f"seed {worker.seeds[0]}: {event['text']}; the traceback is in {worker.log}")
