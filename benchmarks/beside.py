"""Updates of ours beside a peer's, in turn, each in a process of its own: what the speed benchmarks share."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from machine import first_core, load, record, sentence

from surefoot.core.files import write_json
from surefoot.core.learner import Learner

RESULTS = pathlib.Path(__file__).parent / "results"


def timed(learner: Learner, updates: int, warm: int) -> dict[str, Any]:
    """Seconds, of the clock and of the CPU, of `updates` training steps after `warm` others."""
    learner.run(warm)
    start, cpu_start = time.perf_counter(), time.process_time()
    learner.run(updates)
    return {
        "updates": updates,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "eager": learner.eager_because(),
    }


def speed_parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments of a benchmark that calls itself for ours: one knob more or less is its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ours", action="store_true", help="measure ours in this process")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def random_rows(count: int, seed: int) -> dict[str, np.ndarray]:
    """Columns of transitions with 17 numbers observed and 6 of an action."""
    source = np.random.default_rng(seed)
    return {
        "observations": source.standard_normal((count, 17), dtype=np.float32),
        "actions": source.uniform(-0.99, 0.99, (count, 6)).astype(np.float32),
        "rewards": source.standard_normal(count, dtype=np.float32),
        "terminations": np.arange(count) % 2000 == 999,
        "next_observations": source.standard_normal((count, 17), dtype=np.float32),
    }


def peer_python(environment: str, advice: str) -> str:
    """The interpreter of a peer's environment; ends the benchmark where there is none."""
    python = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python}: no such file; {advice}")
    return str(python)


def line_of(command: Sequence[str]) -> dict[str, Any]:
    """The JSON line of one process, pinned to a core where there is `taskset`."""
    pin = ["taskset", "-c", str(first_core())] if shutil.which("taskset") else []
    done = subprocess.run([*pin, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


def compare(
    file: str,
    title: str,
    command: str,
    repeats: int,
    rows: Mapping[str, Callable[[int], Mapping[str, Sequence[str]]]],
    unit: str = "Updates",
    peer: str = "",
) -> None:
    """Run ours and theirs in turn, `repeats` times each, and write results/FILE.json and .md.

    Args:
        file: of the results, without an ending.
        title: of the page, and what is counted.
        command: by which the page is made.
        repeats: of each row.
        rows: name -> for a seed, our command and the peer's by their names.
        unit: of what is counted under "updates".
        peer: a sentence on what stands beside ours.
    """
    lines: dict[str, dict[str, list[dict[str, Any]]]] = {}
    loads = [load()]
    for row, commands in rows.items():
        for seed in range(repeats):
            loads.append(load())
            for name, words in commands(seed).items():
                lines.setdefault(row, {}).setdefault(name, []).append(line_of(words))
                print(row, name, lines[row][name][-1], flush=True)
    machine = record(loads)
    write_json(RESULTS / f"{file}.json", {"machine": machine, "measurements": lines})
    names = list(next(iter(lines.values())))
    ratios = ["ratio of medians"] if len(names) == 2 else [f"times {name}" for name in names[1:]]
    text = [
        f"# {title}",
        "",
        f"{unit} per second of CPU time, one thread on one core, in turn; medians (lowest to highest) of "
        f"{repeats} repeats. {f'{peer} ' if peer else ''}{sentence(machine)} `{command}`.",
        "",
        f"| update | {' | '.join([*names, *ratios])} |",
        "|---" * (1 + len(names) + len(ratios)) + "|",
    ]
    for row, both in lines.items():
        rates = [[one["updates"] / one["cpu_seconds"] for one in both[name]] for name in names]
        medians = [statistics.median(values) for values in rates]
        shown = [f"{m:.2f} ({min(r):.2f} to {max(r):.2f})" for m, r in zip(medians, rates, strict=True)]
        shown += [f"{medians[0] / peer_median:.2f}" for peer_median in medians[1:]]
        text.append(f"| {row} | {' | '.join(shown)} |")
    path = RESULTS / f"{file}.md"
    path.write_text("\n".join([*text, ""]), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
