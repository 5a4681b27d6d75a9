"""What a step of `gantry-pick` takes, and how often its scripted expert solves each variant.

Milliseconds of CPU time a step and row, physics, pictures and resets included, in one process; episodes of the expert
with the noise of demonstrations, from seed 0 on.

    python benchmarks/gantry.py                            # two minutes
    python benchmarks/gantry.py --quick -o /tmp/q.json     # a few seconds
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np
from machine import load, record, sentence

from surefoot.envs import make_vec
from surefoot.envs.gantry.expert import NOISE, Expert
from surefoot.envs.names import GANTRY, STATE

ROWS, EPISODES = 10, 200
RESULTS = pathlib.Path(__file__).parent / "results" / "gantry.json"


def measure(name: str, episodes: int) -> dict[str, Any]:
    """Steps by the expert until so many episodes have ended."""
    env: Any = make_vec(name, ROWS)
    env.reset(seed=0)
    expert = Expert(env.gantry, ROWS, NOISE, np.random.default_rng(0))
    lengths: list[int] = []
    solved, elapsed, seconds, steps = 0, np.zeros(ROWS, int), 0.0, 0
    while len(lengths) < episodes:
        actions = expert.actions(env.sim)
        began = time.process_time()
        _, _, terminations, truncations, info = env.step(actions)
        seconds += time.process_time() - began
        steps, elapsed = steps + ROWS, elapsed + 1
        for row in np.flatnonzero(terminations | truncations):
            lengths.append(int(elapsed[row]))
            solved += bool(info["success"][row])
            elapsed[row] = 0
    env.close()
    return {
        "environment": name,
        "milliseconds": 1e3 * seconds / steps,
        "episodes": len(lengths),
        "solved": solved,
        "steps_mean": float(np.mean(lengths)),
        "steps_longest": max(lengths),
    }


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    before = load()
    names = [name + ending for name in GANTRY for ending in ("", STATE)]
    rows = [measure(name, 10 if arguments.quick else EPISODES) for name in names]
    machine = record([before, load()])
    arguments.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    lines = ["# gantry-pick: a step, and its expert", "", sentence(machine), ""]
    lines += ["| environment | ms a step | solved | mean steps | longest |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| `{row['environment']}` | {row['milliseconds']:.2f} | {row['solved']} of {row['episodes']} | "
            f"{row['steps_mean']:.1f} | {row['steps_longest']} |"
        )
    text = "\n".join(lines) + "\n"
    arguments.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
