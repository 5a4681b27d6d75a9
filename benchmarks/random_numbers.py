"""Random numbers by counting beside numpy's generator, on one core: nanoseconds a number.

    python benchmarks/random_numbers.py           # medians of 9, by turns; writes results/random_numbers.*
    python benchmarks/random_numbers.py --quick   # once, few numbers, for CI; writes nothing

Blocks of as many numbers as 32 training steps of 256 rows with 6 noises a row take, of one seed; and a block so small
that a call's own cost counts, an action's. numpy draws by its Philox generator, made anew for each block, as streams by
seed, purpose and block have it; "without native code" is what a machine without a compiled module runs.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from machine import load, record, sentence

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.files import write_json
from surefoot.core.base.random import generator

RESULTS = pathlib.Path(__file__).parent / "results"
CPU, BLOCK, ACTION = torch.device("cpu"), 32 * 256 * 6, 6
KINDS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    "normal": (
        lambda source, count: source.standard_normal(count),
        lambda source, count: source.standard_normal(count, dtype=np.float32),
    ),
    "exponential": (
        lambda source, count: source.standard_exponential(count),
        lambda source, count: source.standard_exponential(count, dtype=np.float32),
    ),
    "uniform, float32": (
        lambda source, count: source.random(count, np.float32),
        lambda source, count: source.random(count, dtype=np.float32),
    ),
    "uniform, float64": (lambda source, count: source.random(count), lambda source, count: source.random(count)),
    "whole numbers below 10^6": (
        lambda source, count: source.integers(0, 10**6, count),
        lambda source, count: source.integers(0, 10**6, count),
    ),
    "permutation": (
        lambda source, count: source.permutation(count),
        lambda source, count: source.permutation(count),
    ),
}
"""Kind -> how ours and numpy's draw so many."""
WAYS = ("ours", "numpy", "ours without native code")


def source_of(way: str, block: int) -> Any:
    """A stream at its beginning."""
    if way == "numpy":
        return generator(0, "bench", block)
    made = CounterGenerator([0], "bench", block, CPU)
    if way == "ours without native code":
        made._native = None
    return made


def nanoseconds(way: str, kind: str, count: int, calls: int) -> float:
    """Of CPU time, a number, with the stream that is made for a call."""
    draw = KINDS[kind][way == "numpy"]
    start = time.process_time()
    for block in range(calls):
        draw(source_of(way, block), count)
    return 1e9 * (time.process_time() - start) / (calls * count)


def main() -> None:
    """Measure by turns, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    repeats, calls = (1, {BLOCK: 1, ACTION: 20}) if given.quick else (given.repeats, {BLOCK: 20, ACTION: 2000})
    torch.set_num_threads(1)
    cases = [(kind, count) for count in (BLOCK, ACTION) for kind in KINDS]
    times: dict[str, list[float]] = {}
    loads = [load()]
    for _ in range(repeats):
        for kind, count in cases:
            for way in WAYS:
                times.setdefault(f"{kind}, {count}, {way}", []).append(nanoseconds(way, kind, count, calls[count]))
        loads.append(load())
    machine = record(loads)
    text = [
        "# Random numbers by counting",
        "",
        f"Nanoseconds of CPU time a number, one seed, one core, by turns; medians of {repeats}. A block is {BLOCK:,} "
        f"numbers, an action's noise {ACTION}. {sentence(machine)} `python benchmarks/random_numbers.py`.",
        "",
        f"| numbers | at once | {' | '.join(WAYS)} | numpy's by ours |",
        "|---" * 6 + "|",
    ]
    for kind, count in cases:
        found = [statistics.median(times[f"{kind}, {count}, {way}"]) for way in WAYS]
        text.append(f"| {kind} | {count:,} | {' | '.join(f'{one:.2f}' for one in found)} | {found[1] / found[0]:.2f} |")
    print("\n".join(text))
    if not given.quick:
        write_json(RESULTS / "random_numbers.json", {"machine": machine, "nanoseconds": times})
        (RESULTS / "random_numbers.md").write_text("\n".join([*text, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
