"""Stages 3 and 4: runs as a user starts them, on real data, for as long as the time allows."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from learners import CRITICS
from measuring import ROOT, Bench

HOPPER = ROOT / ".data" / "hopper-v5-medium-sb3.hdf5"
PUZZLE = ROOT / ".data" / "puzzle-3x3-part.hdf5"
"""Carried to the GPU's machine; part.py makes the second."""
PUZZLE_RUN = pathlib.Path(os.environ.get("PUZZLE_RUN", "/tmp/surefoot-puzzle"))
"""The run of stage 4, which the next call continues: a machine that is kept between two calls keeps it."""
REHEARSED = 20
"""Steps of a rehearsal."""
CHECKPOINTS = 40
"""Of stage 4's run, besides that of its end: each takes half a minute of steps on an H100."""
CLOSING = 15.0
"""Seconds that a run has to write its last checkpoint."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that has ended, by itself or because its time was over."""

    code: int
    """0 too where it was asked to stop."""
    steps: int
    """Of the seed that has most, of all calls so far."""
    rows: list[dict[str, Any]]
    """The last metrics of each seed."""
    seconds: float
    """Of this call, from the start of the process to its end."""


def hopper(bench: Bench) -> None:
    """IQL, 16 seeds stacked, for 1,000,000 steps or as many as the time allows; tiny in a rehearsal, on made data."""
    bench.attempt("steps", lambda: _hopper(bench))


def puzzle(bench: Bench) -> None:
    """ReBRAC with ten critics of four layers of 512 on part of a puzzle-3x3 recording; continues where it was stopped.

    For 1,000,000 steps of one seed, or as many as the time of all calls allows; tiny in a rehearsal, on made data
    where the recording is not there.
    """
    bench.attempt("steps", lambda: _puzzle(bench))


def _hopper(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(prefix="surefoot-gpu-", ignore_cleanup_errors=True) as folder:
        out = pathlib.Path(folder) / "run"
        data, seeds, steps = (HOPPER, 16, 1_000_000) if bench.on_gpu else (_made(pathlib.Path(folder)), 2, 20)
        own = [f"dataset={data}", "env=none", f"seeds={seeds}", f"steps={steps}", f"device={bench.device}"]
        ended = _trained(bench, "hopper", ["algo=iql", *own, f"out={out}"], out)
        _report(bench, "hopper", ended, 0)


def _puzzle(bench: Bench) -> None:
    run = PUZZLE_RUN if bench.on_gpu else bench.out / "puzzle-run"
    before = _steps(run)
    if (run / "config.json").exists():
        arguments = ["--resume", str(run)]
    else:
        run.parent.mkdir(parents=True, exist_ok=True)
        steps, hidden = (1_000_000, 512) if bench.on_gpu else (REHEARSED, 8)
        data = PUZZLE if bench.on_gpu or PUZZLE.exists() else _made(run.parent)
        layers = ",".join([str(hidden)] * 4)
        own = [f"dataset={data}", "env=none", "seeds=1", f"steps={steps}", f"device={bench.device}"]
        own += [f"checkpoint_every={max(1, steps // CHECKPOINTS)}"]  # what a kill may cost
        own += [f"algo.critics={CRITICS}", "algo.aggregate=mean", f"algo.hidden=[{layers}]"]
        arguments = ["algo=rebrac", "algo.preset=fql", *own, f"out={run}"]
    _report(bench, "puzzle", _trained(bench, "puzzle", arguments, run), before)


def _trained(bench: Bench, name: str, arguments: Sequence[str], run: pathlib.Path) -> Ended:
    """Train until the run ends or the time is over; what it prints goes to NAME.txt."""
    start = time.perf_counter()
    with (bench.out / f"{name}.txt").open("a") as log:
        command = [sys.executable, "-m", "surefoot", "train", *arguments]
        process = subprocess.Popen(command, cwd=bench.out, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(max(1.0, bench.seconds - CLOSING))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = 0 if process.wait(CLOSING) is not None else 1
    return Ended(code, _steps(run), _last_rows(run), time.perf_counter() - start)


def _report(bench: Bench, name: str, ended: Ended, before: int) -> None:
    if ended.code != 0 or ended.steps == 0:
        given = (bench.out / f"{name}.txt").read_text()[-500:]
        bench.error("steps", f"the run ended with {ended.code} after {ended.steps} steps: {given}")
        return
    bench.row("steps", ended.steps, "steps in the time", seconds=bench.seconds, rows=ended.rows[:2], before=before)
    if ended.steps > before:
        bench.row(
            "rate", (ended.steps - before) / ended.seconds, "updates/s", what="with the start and the end of the run"
        )


def _last_rows(run: pathlib.Path) -> list[dict[str, Any]]:
    texts = [path.read_text().splitlines() for path in sorted(run.rglob("metrics.jsonl"))]
    return [json.loads(lines[-1]) for lines in texts if lines]


def _steps(run: pathlib.Path) -> int:
    return max((row.get("step", 0) for row in _last_rows(run)), default=0)


def _made(folder: pathlib.Path) -> pathlib.Path:
    """A file of made transitions."""
    from surefoot.data import save
    from surefoot.runs.embedded import generate

    path = folder / "made.hdf5"
    save(generate("native/double-integrator", 0, 2000, "mixed"), path)
    return path
