"""A training step of DroQ with its dropout masks inside the native networks and outside, beside REDQ and the limit.

    python benchmarks/dropout_speed.py            # writes results/dropout_speed.md and .json
    python benchmarks/dropout_speed.py --quick    # a step of each, for CI

DroQ's step is 20 critic steps of 256 rows, two critics of 256-256 with dropout and layer norms, and one step of its
actor, on 200,000 random rows of HalfCheetah's sizes. Outside is as before the masks were the native module's: its
products, with masks and layer norms of torch between them. REDQ has as many critics with layer norms, and no dropout.
All in one process on one core, by turns; milliseconds are of CPU time, medians over the repeats.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from typing import Any

import torch
from engine_speed import best_limit, learner, measure_limit, of_the_limit
from machine import load, record, sentence
from online_speed import flops_of_update

from surefoot.core import kernels
from surefoot.core.files import write_json
from surefoot.core.learner import Learner

RESULTS = pathlib.Path(__file__).parent / "results"
CRITIC_STEPS = 20
TWO: dict[str, Any] = {"critics": 2, "subset": 2, "critic_steps": CRITIC_STEPS}
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "DroQ, masks inside": ("droq", TWO, True),
    "DroQ, masks outside": ("droq", TWO, False),
    "REDQ with two critics and layer norm": ("redq", {**TWO, "layer_norm_critic": True}, True),
}
"""Name -> algorithm, options, whether masks are the native networks'."""


def made(algorithm: str, options: dict[str, Any], inside: bool) -> Learner:
    """A learner that has recorded its step."""
    found: Learner = learner(algorithm, options, 0)
    assert found.slots is not None, found.eager_because()
    found.slots.masks_inside = inside
    found.run(3)
    return found


def milliseconds(of: Learner, steps: int) -> float:
    """Of CPU time, of one training step."""
    start = time.process_time()
    of.run(steps)
    return 1e3 * (time.process_time() - start) / steps


def main() -> None:
    """Measure by turns, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    repeats, steps = (1, 1) if given.quick else (given.repeats, given.steps)
    torch.set_num_threads(1)
    kernels.keep_memory()
    learners = {name: made(*case) for name, case in CASES.items()}
    times: dict[str, list[float]] = {name: [] for name in CASES}
    limits, loads = [], [load()]
    for _ in range(repeats):
        for name, one in learners.items():
            times[name].append(milliseconds(one, steps))
            loads.append(load())
        limits.append(measure_limit())
    flops, limit, machine = flops_of_update(CRITIC_STEPS), best_limit(limits), record(loads)
    medians = {name: statistics.median(values) for name, values in times.items()}
    text = [
        "# Dropout masks inside the native networks",
        "",
        f"Milliseconds of CPU time of a training step of {CRITIC_STEPS} critic steps of 256 rows, one thread on one "
        f"core, by turns; medians (lowest to highest) of {repeats} repeats. {sentence(machine)} "
        "`python benchmarks/dropout_speed.py`.",
        "",
        "| step | ms |",
        "|---|---|",
    ]
    for name, values in times.items():
        text.append(f"| {name} | {medians[name]:.1f} ({min(values):.1f} to {max(values):.1f}) |")
    text += ["", of_the_limit(limit, flops, {name: 1e3 / middle for name, middle in medians.items()}, "steps")]
    print("\n".join(text))
    if not given.quick:
        write_json(
            RESULTS / "dropout_speed.json", {"machine": machine, "milliseconds": times, "limit": limit, "flops": flops}
        )
        (RESULTS / "dropout_speed.md").write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
