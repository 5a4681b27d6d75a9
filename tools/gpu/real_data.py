"""Stage 3: a run as a user starts it, on real data, for as long as the time allows."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import tempfile

from measuring import ROOT, Bench

DATA = ROOT / ".data" / "hopper-v5-medium-sb3.hdf5"
"""Carried to the GPU's machine."""
CLOSING = 15.0
"""Seconds that a run has to write its last checkpoint."""


def hopper(bench: Bench) -> None:
    """IQL, 16 seeds stacked, for 1,000,000 steps or as many as the time allows; tiny in a rehearsal, on made data."""
    bench.attempt("steps", lambda: _train(bench))


def _train(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(prefix="surefoot-gpu-", ignore_cleanup_errors=True) as folder:
        out = pathlib.Path(folder) / "run"
        data, seeds, steps = (DATA, 16, 1_000_000) if bench.on_gpu else (_made(pathlib.Path(folder)), 2, 20)
        own = [f"dataset={data}", "env=none", f"seeds={seeds}", f"steps={steps}", f"device={bench.device}"]
        command = [sys.executable, "-m", "surefoot", "train", "algo=iql", *own, f"out={out}"]
        with (bench.out / "hopper.txt").open("w") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
            try:
                code = process.wait(max(1.0, bench.seconds - CLOSING))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                code = 0 if process.wait(CLOSING) is not None else 1
        texts = [path.read_text().splitlines() for path in sorted(out.rglob("metrics.jsonl"))]
        last = [json.loads(lines[-1]) for lines in texts if lines]
        taken = max((row.get("step", 0) for row in last), default=0)
        if code != 0 or taken == 0:
            said = (bench.out / "hopper.txt").read_text()[-500:]
            bench.error("steps", f"the run ended with {code} after {taken} steps: {said}")
        else:
            bench.row("steps", taken, "steps in the time", seconds=bench.seconds, rows=last[:2])


def _made(folder: pathlib.Path) -> pathlib.Path:
    """A file of made transitions."""
    from surefoot.data import save
    from surefoot.tools.generate import generate

    path = folder / "made.hdf5"
    save(generate("native/double-integrator", 0, 2000, "mixed"), path)
    return path
