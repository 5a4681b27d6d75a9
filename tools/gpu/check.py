"""Checks on a GPU's machine: the tasks of a stage, each a process of its own with a time limit, and a table at the end.

    python tools/gpu/check.py --stage 1 --seconds 200 --out DIR      # all tasks of a stage
    python tools/gpu/check.py --one rollouts --out DIR               # one of them, in this process
    python tools/gpu/check.py --stage 2 --device cpu                 # rehearsal without a GPU: tiny sizes

Stage 1 is the first contact, 2 speed beside JAX, 3 real data, 4 a long run on real data, which each call continues.
A task writes rows {task, name, value, unit, ...} to DIR/rows.jsonl as it measures, so that an error or the end of the
time loses none. Rows of an earlier call (--done FILE) are not measured again. What fails is a row too, and what needs a
GPU says so in a row of a rehearsal. The exit code is 1 where a row is an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import beside_jax
import first_contact
import real_data
import speed
from measuring import ROOT, Bench, Row, read_rows, write_row
from predict import predicted_values


@dataclasses.dataclass(frozen=True)
class Task:
    """A function that measures, and seconds that it may take."""

    function: Callable[[Bench], None]
    seconds: float
    rows: str = ""
    """First word of its rows' names, where that is not its own."""
    beside: str = ""
    """The task that it runs beside: neither is timed."""


STAGES: dict[int, dict[str, Task]] = {
    1: {
        "facts": Task(first_contact.facts, 30),
        "smoke": Task(first_contact.smoke, 60),
        "small": Task(first_contact.small, 30),
        "tests": Task(first_contact.tests, 120),
        "sanitizer": Task(first_contact.sanitizer, 120, beside="tests"),
        "syncs": Task(first_contact.syncs, 45),
    },
    2: {
        "rollouts": Task(speed.rollouts, 60),
        "learners": Task(speed.learners, 150),
        "jax_rollouts": Task(beside_jax.rollouts, 60, "jax"),
        "jax_learners": Task(beside_jax.learners, 80, "jax"),
        "ppo": Task(speed.ppo, 45),
        "planners": Task(speed.planners, 30),
        "ncu": Task(speed.ncu, 60),
        "compiled": Task(speed.compiled, 70),
    },
    3: {"hopper": Task(real_data.hopper, 170)},
    4: {"puzzle": Task(real_data.puzzle, 560)},
}
TASKS = {name: task for stage in STAGES.values() for name, task in stage.items()}
LEAST = 8.0
"""Seconds without which no task is started."""


@dataclasses.dataclass
class Running:
    """A task's process, and when its time ends."""

    process: subprocess.Popen[bytes]
    until: float


class Stage:
    """Runs the tasks of a stage one after another, but for those that go beside another."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.end = time.monotonic() + given.seconds
        self.running: dict[str, Running] = {}

    def run(self) -> None:
        """All tasks, until the time is over."""
        tasks = STAGES[self.given.stage]
        before = {task.beside for task in tasks.values()}
        for name, task in tasks.items():
            if task.beside not in self.running:
                self._finish_all()
            if self.end - time.monotonic() < LEAST:
                self._error(name, "no time was left")
                continue
            self.running[name] = self._start(name, min(task.seconds, self.end - time.monotonic()))
            if name not in before:
                self._finish(name)
        self._finish_all()

    def _start(self, name: str, seconds: float) -> Running:
        g = self.given
        options = ["--one", name, "--out", str(g.out), "--device", g.device, "--seconds", str(seconds)]
        options += ["--done", str(g.done)] if g.done is not None else []
        with (g.out / f"log-{g.stage}.txt").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, *options], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        return Running(process, time.monotonic() + seconds)

    def _finish_all(self) -> None:
        for name in list(self.running):
            self._finish(name)

    def _finish(self, name: str) -> None:
        one = self.running.pop(name)
        try:
            code = one.process.wait(max(1.0, min(one.until, self.end) - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
            self._error(name, "out of time")
            return
        if code != 0:
            self._error(name, f"its process ended with {code}")

    def _error(self, name: str, error: str) -> None:
        write_row(self.given.out, {"task": name, "name": "task", "value": None, "unit": "", "error": error})


def done_names(path: pathlib.Path) -> frozenset[str]:
    """Names of what an earlier call measured, as `Bench.attempt` is given them."""
    rows = [row for row in read_rows(path) if not row.get("error")]
    return frozenset(f"{row['task']}/{row['name'].partition(':')[0]}" for row in rows)


def table(rows: Sequence[Row], predicted: dict[str, float]) -> list[str]:
    """A line a row: measured, predicted, and their ratio."""
    lines = [f"{'what':64} {'measured':>10} {'predicted':>10}  ratio"]
    for row in rows:
        key = f"{row['task']}/{row['name']}"
        start, value, wanted = f"{key[:64]:64}", row["value"], predicted.get(key)
        if row.get("error"):
            lines.append(f"{start} FAILED {row['error'][:90]}")
        elif value is None:
            lines.append(f"{start} {row['unit']}")
        elif wanted is None:
            lines.append(f"{start} {value:10.4g} {'':10}  {'':5} {row['unit']}")
        else:
            lines.append(f"{start} {value:10.4g} {wanted:10.4g}  {value / wanted:5.2f} {row['unit']}")
    return lines


def main() -> int:
    """Run a stage, or one task in this process; 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--stage", type=int, choices=STAGES)
    chosen.add_argument("--one", choices=[*TASKS, "once"])
    parser.add_argument("--seconds", type=float, default=200.0, help="that the tasks may take together")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/gpu"), help="folder of the results")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal of tiny sizes")
    parser.add_argument("--done", type=pathlib.Path, help="rows.jsonl of an earlier call")
    parser.add_argument("--envs", type=int, default=4096, help="of the task once")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.stage is not None:
        before = len(read_rows(given.out / "rows.jsonl"))
        Stage(given).run()
        rows = read_rows(given.out / "rows.jsonl")[before:]
        print("\n".join(table(rows, predicted_values() if given.device == "cuda" else {})))
        return int(any(row.get("error") for row in rows))
    done = frozenset[str]() if given.done is None else done_names(given.done)
    task = TASKS.get(given.one) or Task(functools.partial(speed.once, envs=given.envs), given.seconds)
    task.function(Bench(task.rows or given.one, given.device, given.out, given.seconds, done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
