"""Plans per second in a learned ensemble: whole candidates at once beside steps one by one in plain PyTorch.

    python benchmarks/ensemble_plans.py             # both, medians of 3
    python benchmarks/ensemble_plans.py --quick     # both once, a few plans, writes nothing, for CI

CEM in an ensemble of five members, with member and noise of each future its own (TSinf), as `surefoot plan RUN` and
PETS have it, for one state a call and for ten. `small` is 5 futures of 100 candidates of 12 steps, three iterations,
networks of 2 x 64; `pets` the settings of PETS on a cart-pole: 20 futures of 350 candidates of 15 steps, five
iterations, networks of 3 x 200. Rates are per second of CPU time. Writes results/ensemble_plans.md and .json.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from typing import Any

import torch
from beside import compare, line_of

from surefoot.core.nn.native import kernels
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners import CEM

SIZES: dict[str, tuple[CEM, int, tuple[int, ...]]] = {
    "small": (CEM(horizon=12, samples=100, iterations=3, sampling="truncated"), 5, (64, 64)),
    "pets": (CEM(horizon=15, samples=350, iterations=5, sampling="truncated"), 20, (200, 200, 200)),
}
STATE, ACTION = 4, 1
WAYS = ("at once", "step by step")


def measure(size: str, way: str, rows: int, calls: int) -> dict[str, Any]:
    """Plans for `rows` states a call."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kernels.keep_memory()
    planner, futures, hidden = SIZES[size]
    model = GaussianEnsemble(STATE, ACTION, members=5, hidden=hidden, decays=(), normalize_targets=True)
    if way == "step by step":
        model.sums_of = lambda *_: None  # type: ignore[method-assign]
    objective, states, memory = Objective(futures), torch.randn(rows, STATE), planner.begin(rows, ACTION)
    with torch.no_grad():
        planner.plan(model, states, memory, objective)
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            _, memory = planner.plan(model, states, memory, objective)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"peer": way, "updates": calls * rows, "seconds": seconds, "cpu_seconds": cpu}


def commands(size: str, rows: int, calls: int, seed: int = 0) -> dict[str, list[str]]:
    """Both ways."""
    return {way: [sys.executable, __file__, "--one", f"{size}|{way}|{rows}|{calls}"] for way in WAYS}


def main() -> None:
    """Measure in turn, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        size, way, rows, calls = arguments.one.split("|")
        print(json.dumps(measure(size, way, int(rows), int(calls))))
    elif arguments.quick:
        for command in commands("small", 1, 2).values():
            print(line_of(command))
    else:
        title = "Plans in a learned ensemble of five: all steps of the candidates at once beside steps in plain PyTorch"
        rows = {
            f"{size}, {count} state{'s' if count > 1 else ''}": functools.partial(commands, size, count, calls)
            for size, count, calls in (("small", 1, 100), ("small", 10, 20), ("pets", 1, 3), ("pets", 10, 1))
        }
        compare("ensemble_plans", title, "python benchmarks/ensemble_plans.py", arguments.repeats, rows, "Plans")


if __name__ == "__main__":
    main()
