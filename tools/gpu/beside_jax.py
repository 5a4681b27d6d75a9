"""Stage 2, the comparison: rollouts and IQL in JAX on the same machine, each in a process of its own."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from measuring import ROOT, Bench

PRECISIONS = ("default", "highest")
"""Of matrix products: TF32 where the GPU has it, and float32."""
SIZES = ((4096, 500), (65_536, 200), (1_048_576, 50))
"""Environments and steps of a rollout."""
SEEDS = (1, 4, 16, 64)


def _run(bench: Bench, program: str, *arguments: str) -> list[dict[str, Any]]:
    """What a program beside this file prints.

    Raises:
        RuntimeError: it failed.
    """
    platform = "cuda" if bench.on_gpu else "cpu"
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": platform}
    command = [sys.executable, str(ROOT / "tools/gpu" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=bench.seconds)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _lacks_jax(bench: Bench) -> bool:
    if bench.on_gpu or importlib.util.find_spec("jax") is not None:
        return False
    bench.row("comparison with JAX", None, "needs jax, which is not installed here", skipped=True)
    return True


def rollouts(bench: Bench) -> None:
    """The same cart-pole under the same sizes of policy as a lean scan."""
    if _lacks_jax(bench):
        return
    for precision in PRECISIONS:
        bench.attempt(f"rollouts {precision}", functools.partial(_rollouts, bench, precision))


def _rollouts(bench: Bench, precision: str) -> None:
    sizes = SIZES if bench.on_gpu else ((64, 5),)
    for found in _run(bench, "jax_rollout.py", precision, json.dumps(sizes)):
        bench.row(f"cart-pole {found['envs']} {precision}", found["rate"], "steps/s")


def learners(bench: Bench) -> None:
    """IQL: jit of vmap of scan over the seeds, rows gathered inside."""
    if _lacks_jax(bench):
        return
    for precision in PRECISIONS:
        bench.attempt(f"iql {precision}", functools.partial(_learners, bench, precision))


def _learners(bench: Bench, precision: str) -> None:
    counts, least = (SEEDS, "1.5") if bench.on_gpu else ((1,), "0")
    for found in _run(bench, "jax_iql.py", precision, json.dumps(counts), least):
        seeds, rate = found["seeds"], found["rate"]
        bench.row(f"iql x{seeds} {precision}", rate, "updates/s", seed_updates=rate * seeds)
