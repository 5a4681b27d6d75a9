"""Trains some seeds of a run: `python -P -m surefoot.runs.processes.worker RUN SEED[,SEED...] LOCK NAMES`.

Events go to standard output as JSON lines, all else to the seed's log. Asked to stop, by a byte on standard input or by
SIGTERM, it writes a checkpoint at the next training step and ends. It ends at once when its standard input does, that
is, when its parent ends, however that ends. It begins to listen before it imports anything heavy, so that a parent
killed early leaves nothing behind either.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pathlib
import sys
import threading
import traceback
from typing import Any


class Log(io.TextIOWrapper):
    """The log of a worker: what a terminal that shows it would obey stands there as its escape.

    On a full disk it ends: what can't be written is lost, and the run continues to the error of what it can't do
    without.
    """

    def write(self, text: str) -> int:
        """Write a text; its length."""
        from surefoot.core.base.errors import printable

        with contextlib.suppress(OSError):
            super().write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Write what has been held back, if that can be done."""
        with contextlib.suppress(OSError):
            super().flush()


def listen_to_parent(stop: threading.Event, finish: threading.Event | None = None) -> None:
    """Watch standard input from a thread: set `stop` or `finish` when asked to, and end the process when it closes."""
    from surefoot.runs.processes.stopping import FINISH

    def wait() -> None:
        while asked := os.read(0, 1):  # not sys.stdin: its lock, held by a daemon thread, aborts the interpreter's exit
            (stop if finish is None or asked != FINISH else finish).set()
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Train the seeds named on the command line; exit code 0, 2 after an error of the user's, 1 after a bug."""
    from surefoot.runs.processes.stopping import Stopped, listen_to_signals

    stop, finish = threading.Event(), threading.Event()
    listen_to_parent(stop, finish)
    listen_to_signals(stop)
    if "SUREFOOT_LEARNER" not in os.environ:  # of a learner that joins another it is not the lock
        os.set_inheritable(int(arguments[2]), False)  # the run's lock is ours, and no simulator's that we start
    channel, writing = os.fdopen(os.dup(1), "w", buffering=1), threading.Lock()
    os.dup2(2, 1)  # what libraries print belongs in the log, not among the events
    sys.stdout = sys.stderr = Log(sys.stderr.buffer, "utf-8", "backslashreplace", line_buffering=True)

    def send(event: dict[str, Any]) -> None:
        with writing:
            channel.write(json.dumps(event) + "\n")

    import torch

    from surefoot.core.base.errors import SimulatorError, SurefootError
    from surefoot.core.base.memory import ADVICE, short_of_memory
    from surefoot.core.nn.native import kernels
    from surefoot.runs import trust
    from surefoot.runs.processes.sharing import join
    from surefoot.runs.processes.watchdog import Watchdog, stack_of_main_thread
    from surefoot.runs.run import Run
    from surefoot.runs.trainers.choose import seed_trainer

    trust.take_over(json.loads(arguments[3]))
    torch.set_num_threads(1)
    kernels.keep_memory()
    run, seeds = Run.open(pathlib.Path(arguments[0])), [int(s) for s in arguments[1].split(",")]
    name = f"seed {seeds[0]}"

    def give_up(text: str) -> None:
        print(stack_of_main_thread(), file=sys.stderr, flush=True)
        send({"kind": "error", "type": SimulatorError.__name__, "text": f"{name}: {text}"})
        os._exit(2)

    def mention(text: str) -> None:
        send({"kind": "note", "text": f"{name}: {text}"})

    watchdog = Watchdog(run.plan.patience, mention, give_up)
    watchdog.start()
    try:
        share = join(run.plan, arguments) if run.plan.learners > 1 else None
        trainer = seed_trainer(run, seeds, send, stop.is_set, share)
        trainer.asked_to_finish = finish.is_set
        gc.freeze()
        send({"kind": "ready", "seeds": trainer.seeds, "step": trainer.step})
        trainer.train()
        trainer.finish()
    except Stopped:
        send({"kind": "stopped", "seeds": seeds})
    except SurefootError as error:
        if isinstance(error, SimulatorError):
            traceback.print_exc()
        send(
            {
                "kind": "error",
                "type": type(error).__name__,
                "text": str(error),
                "field": error.field,
                "code": error.code,
            }
        )
        return 2
    except Exception as error:
        traceback.print_exc()
        if short_of_memory(error):
            text = f"{name}: the memory is not enough ({str(error)[:200]}); {ADVICE}, then: {run.resume_command}"
            send({"kind": "error", "type": SurefootError.__name__, "text": text})
            return 2
        send({"kind": "error", "type": "unexpected", "text": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        watchdog.stop()
        gc.unfreeze()  # or cycles that were frozen outlive the interpreter, and the log calls them leaked
    return 0


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # a slow end of the interpreter aborts when the parent closes what the listening thread reads
