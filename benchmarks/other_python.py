"""What a step costs in another python (`other:`), beyond the environment's own work, beside gymnasium's AsyncVectorEnv.

The environment does nothing but count, so that nearly all of a step is the way there and back. The other python is the
one that runs this script. Ways take turns; a number is the median of all steps of a way.

usage: python benchmarks/other_python.py [--quick]
Results: benchmarks/results/other_python.{json,md}; with --quick they go to build/.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import sys
import time
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.files import write_json
from surefoot.envs.other.client import make

RESULTS = pathlib.Path(__file__).parent / "results" / "other_python.json"
ROWS = (1, 8)
MODULE = pathlib.Path(__file__).stem
WANTED = 60.0
"""Microseconds a step of one row, on an idle core."""


class Counter(gymnasium.Env[Any, Any]):
    """17 numbers that count the steps of an episode of 1,000."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seen, self.steps = np.zeros(17, np.float32), 0
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.seen[0] = self.steps
        return self.seen, 1.0, False, self.steps >= 1000, {}


def ways(rows: int) -> dict[str, Any]:
    """Way of stepping -> its environments."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return {
        "in this process": gymnasium.vector.SyncVectorEnv([Counter] * rows, autoreset_mode=mode),
        "other:": make(f"{sys.executable}:{MODULE}:Counter", rows),
        "AsyncVectorEnv": gymnasium.vector.AsyncVectorEnv([Counter] * rows, autoreset_mode=mode),
    }


def measure(rows: int, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Way -> microseconds a step: median, and the lowest tenth."""
    envs, taken = ways(rows), {}
    actions = np.zeros((rows, 6), np.float32)
    for name, env in envs.items():
        env.reset(seed=0)
        taken[name] = np.zeros(0)
    for _ in range(rounds):
        for name, env in envs.items():
            found = np.zeros(steps)
            for step in range(steps):
                began = time.perf_counter()
                env.step(actions)
                found[step] = time.perf_counter() - began
            taken[name] = np.concatenate([taken[name], found])
    for env in envs.values():
        env.close()
    return {
        name: {"median": 1e6 * float(np.median(found)), "lowest tenth": 1e6 * float(np.quantile(found, 0.1))}
        for name, found in taken.items()
    }


def page(found: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# A step in another python",
        "",
        f"Microseconds a step: median (lowest tenth). {found['machine']}, {found['cores']} cores; "
        "`python benchmarks/other_python.py`.",
        "",
        "| rows | " + " | ".join(next(iter(found["rows"].values()))) + " | other: beyond the environment's own |",
        "|---" * (len(next(iter(found["rows"].values()))) + 2) + "|",
    ]
    for rows, measured in found["rows"].items():
        cells = [f"{one['median']:.0f} ({one['lowest tenth']:.0f})" for one in measured.values()]
        beyond = measured["other:"]["median"] - measured["in this process"]["median"]
        lines.append(f"| {rows} | " + " | ".join(cells) + f" | {beyond:.0f} |")
    lines += ["", f"Wanted: {WANTED:.0f} for one row on an idle core."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    os.chdir(pathlib.Path(__file__).parent)  # the other python finds this file there
    steps, rounds = (200, 1) if quick else (2_000, 5)
    found = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "rows": {str(rows): measure(rows, steps, rounds) for rows in ROWS},
    }
    text = page(found)
    out = RESULTS if not quick else pathlib.Path(__file__).resolve().parents[1] / "build" / RESULTS.name
    out.parent.mkdir(exist_ok=True)
    write_json(out, found)
    out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
