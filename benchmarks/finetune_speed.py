"""Seconds of an iteration of ReinFlow and of DPPO on Hopper: collect a block in 40 environments, and learn from it.

    python benchmarks/finetune_speed.py               # medians of 3, in turn, writes results/finetune_speed.*
    python benchmarks/finetune_speed.py --quick       # one short iteration of each, for CI

Networks of 512-512-512, chunks of 4 actions, 125 decisions in each of 40 environments a block, four minibatches, five
epochs, as published but for blocks of a quarter of the length. ReinFlow takes 4 steps; DPPO 20, of which the last 10
are trained. Ours takes one step of each chain in an epoch; the published code goes over all ten, which ten times as
many epochs stand for. Each measurement is a process of its own with one thread; the first block, in which training
steps are recorded, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

from study import RESULTS, git_commit

from surefoot.core.base.files import write_json

NUM_ENVS, HORIZON, CHUNK, EPOCHS, MINIBATCHES = 40, 125, 4, 5, 4
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ReinFlow, 4 steps": (
        "reinflow",
        {"network": "embedded", "velocity_hidden": (512, 512, 512), "flow_steps": 4, "critic_warmup": 0},
    ),
    "DPPO, one step of each chain an epoch": ("dppo", {"network": "embedded", "noise_hidden": (512, 512, 512)}),
    "DPPO, all ten": ("dppo", {"network": "embedded", "noise_hidden": (512, 512, 512), "epochs": 10 * EPOCHS}),
}
WANTED = 5.0


def measure(name: str, horizon: int) -> dict[str, float]:
    """Seconds of one block after the first, on this process's clock and on its processor."""
    import torch

    from surefoot.core.nn.native import kernels
    from surefoot.envs import make_vec
    from surefoot.online import ALGORITHMS, spec_of
    from surefoot.online.loops.on_policy import OnPolicyLoop

    torch.set_num_threads(1)
    kernels.keep_memory()
    algorithm, options = CASES[name]
    env = make_vec("Hopper-v5", NUM_ENVS)
    shared = {"num_envs": NUM_ENVS, "horizon": horizon, "chunk": CHUNK, "epochs": EPOCHS, "minibatches": MINIBATCHES}
    kind: Any = ALGORITHMS[algorithm]
    agent = kind(spec_of(env), **{**shared, "target_kl": None, **options}).fresh(0)
    loop = OnPolicyLoop([agent], [0], env, planned_steps=10 * NUM_ENVS * horizon * CHUNK, kernels=True)
    loop.run(1)
    taken, wall, cpu = loop.step, time.perf_counter(), time.process_time()
    loop.run(1)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "steps": loop.step - taken,
    }


def table(found: dict[str, list[dict[str, float]]], horizon: int) -> list[str]:
    """The page of results."""
    cpu = {name: statistics.median(one["cpu_seconds"] for one in runs) for name, runs in found.items()}
    first = cpu[next(iter(CASES))]
    lines = [
        "# An iteration of ReinFlow and of DPPO on Hopper",
        "",
        f"{NUM_ENVS} environments, {horizon} decisions of {CHUNK} actions in each, {EPOCHS} epochs of {MINIBATCHES} "
        "minibatches, networks of 512-512-512, one thread; medians of "
        f"{len(next(iter(found.values())))} in turn. `python benchmarks/finetune_speed.py`.",
        "",
        "| method | CPU seconds | seconds | environment steps | times ReinFlow's CPU seconds |",
        "|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        wall = statistics.median(one["seconds"] for one in runs)
        steps = statistics.median(one["steps"] for one in runs)
        lines.append(f"| {name} | {cpu[name]:.2f} | {wall:.2f} | {steps:,.0f} | {cpu[name] / first:.2f} |")
    like, ours = cpu["DPPO, all ten"] / first, cpu["DPPO, one step of each chain an epoch"] / first
    lines += [
        "",
        f"Published, with the authors' code: 11.7 seconds and 99.0, 8.5 times. At least {WANTED:g} times was wanted of "
        f"our own DPPO: {'met' if ours >= WANTED else 'NOT met'} by the one that takes one step of each chain "
        f"({ours:.2f}), {'met' if like >= WANTED else 'NOT met'} by the one that goes over all of them ({like:.2f}).",
    ]
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child[0], int(given.child[1]))))
        return
    horizon, repeats = (4, 1) if given.quick else (HORIZON, given.repeats)
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, runs in found.items():
            line = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", name, str(horizon)]
            done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **single})
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
    lines = table(found, horizon)
    if not given.quick:
        record = {"machine": platform.machine(), "git": git_commit(), "runs": found}
        write_json(RESULTS / "finetune_speed.json", record)
        (RESULTS / "finetune_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
