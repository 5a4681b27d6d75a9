"""Whole episodes of a policy on native systems: by the native loop, as `evaluate` runs them, and stepped from python.

Both run on one thread, by turns, from the same initial states, and are timed by the CPU's clock; the policies are fresh
ones of SAC and PPO with their usual networks. "largest difference" is that of an episode's return, relative to the mean
size of the returns.

usage: python benchmarks/evaluation_speed.py [--quick] [--rounds N]
Results: benchmarks/results/evaluation_speed.{json,md}; with --quick they go to build/.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import statistics
import time
from typing import Any

import numpy as np
import torch

from surefoot.core.base.files import write_json
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.online import PPO, SAC, spec_of

RESULTS = pathlib.Path(__file__).parent / "results" / "evaluation_speed.json"
SYSTEMS = {"native/pendulum": 200, "native/cartpole-swingup": 500, "native/quadrotor-2d": 500}
"""Id -> the steps after which an episode ends by itself; given as an argument, they make `evaluate` step."""
EPISODES = 50


def measure(env_id: str, kind: type[Any], rounds: int, episodes: int) -> dict[str, Any]:
    """Medians of seconds, and how far the returns are from each other."""
    policy = kind(spec_of(make_vec(env_id, 1))).fresh(0).policy()
    ways = {"native": {}, "steps": {"max_episode_steps": SYSTEMS[env_id]}}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found = {}
    for turn in range(rounds + 1):  # the first warms up
        for way, arguments in ways.items():
            began = time.process_time()
            (found[way],) = evaluate([policy], env_id, episodes, seed=1, env_kwargs=arguments)
            if turn:
                seconds[way].append(time.process_time() - began)
            if found[way].loop != way:
                raise SystemExit(f"{env_id}: was to run by {way}, and ran by {found[way].loop}")
    returns = found["native"].returns, found["steps"].returns
    row: dict[str, Any] = {"environment": env_id, "policy": kind.__name__}
    row["mean length"] = float(found["steps"].lengths.mean())
    row |= {f"{way}, ms": 1e3 * statistics.median(values) for way, values in seconds.items()}
    row["steps / native"] = row["steps, ms"] / row["native, ms"]
    row["largest difference"] = float(np.abs(returns[0] - returns[1]).max() / np.abs(returns[1]).mean())
    row["equal lengths and costs"] = all(
        np.array_equal(getattr(found["native"], name), getattr(found["steps"], name)) for name in ("lengths", "costs")
    )
    return row


def main() -> None:
    """Run, write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few episodes: does it run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, episodes = (1, 5) if options.quick else (options.rounds, EPISODES)
    rows = [measure(env_id, kind, rounds, episodes) for env_id in SYSTEMS for kind in (SAC, PPO)]
    lines = [
        f"# {episodes} episodes of a policy: the native loop beside stepping",
        "",
        f"Medians of {rounds} rounds by turns, CPU time of one thread. Written by "
        "`python benchmarks/evaluation_speed.py`.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
    ]
    for row in rows:
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    out = RESULTS.parents[2] / "build" / RESULTS.name if options.quick else RESULTS
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    write_json(out, {"rounds": rounds, "episodes": episodes, "machine": machine, "rows": rows})
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
