"""PPO's steps per second in a system written in python beside the same native one, as runs make and step them.

The python system is registered and made by its id, as `surefoot train env=my_robot:python/my_robot-v0` does; "one at a
time" steps the single environments of that id. All on one thread, by turns; `compile` is what the first block of a
process takes more, once.

usage: python benchmarks/own_system_speed.py [--quick] [--rounds N]
Results: benchmarks/results/own_system_speed.{json,md}; with --quick they go to build/.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any

import gymnasium
import torch

from surefoot.core.base.files import write_json
from surefoot.envs.acting import spec_of
from surefoot.envs.adapters import adapt
from surefoot.envs.training import make_training
from surefoot.online import PPO
from surefoot.online.loops.loop import make_loop

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "envs"))
import python_twins

RESULTS = pathlib.Path(__file__).parent / "results" / "own_system_speed.json"
ENVS = 64
STEPS = {"native": 200_000, "python": 200_000, "one at a time": 16_384}
"""Way -> environment steps of a round."""


def made(way: str, name: str) -> Any:
    """The environment of a way of stepping it."""
    if way == "native":
        return make_training(f"native/{name}", ENVS)
    env_id = getattr(python_twins, name)().register()
    if way == "python":
        return make_training(env_id, ENVS)
    return adapt([lambda: gymnasium.make(env_id)] * ENVS)


def learning(env: Any, steps: int) -> Any:
    """PPO's loop in an environment."""
    agent = PPO(spec_of(env), PPO.Config(num_envs=ENVS)).fresh(0)
    device = torch.device("cpu")
    return make_loop([agent], [0], env, planned_steps=100 * steps, batch_size=256, device=device, kernels=True)


def seconds(loop: Any, steps: int) -> float:
    """Wall time and CPU time agree on an idle machine; this is the CPU's, which other jobs disturb little."""
    began = time.process_time()
    loop.run(steps)
    return time.process_time() - began


def measure(name: str, rounds: int, share: float) -> dict[str, Any]:
    """Medians over the rounds."""
    loops = {way: learning(made(way, name), steps) for way, steps in STEPS.items()}
    first = {way: seconds(loop, 1) for way, loop in loops.items()}
    rates: dict[str, list[float]] = {way: [] for way in STEPS}
    for _ in range(rounds):
        for way, loop in loops.items():
            before = loop.step
            taken = seconds(loop, int(STEPS[way] * share))
            rates[way].append((loop.step - before) / taken)
    row: dict[str, Any] = {"system": name} | {f"{way}, steps/s": statistics.median(rates[way]) for way in STEPS}
    row["python / native"] = row["python, steps/s"] / row["native, steps/s"]
    return row | {"compile, s": first["python"] - first["native"]}


def main() -> None:
    """Run, write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: does it run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, share = (1, 0.05) if options.quick else (options.rounds, 1.0)
    rows = [measure(name, rounds, share) for name in ("pendulum", "cartpole_balance")]
    lines = [
        "# PPO in a system written in python",
        "",
        f"Environment steps per second of CPU time of one thread, learning included, {ENVS} environments: medians of "
        f"{rounds} rounds by turns. Written by `python benchmarks/own_system_speed.py`.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
    ]
    for row in rows:
        cells = [f"{value:,.3g}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"
                 if isinstance(value, float) else str(value) for value in row.values()]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    out = RESULTS.parents[2] / "build" / RESULTS.name if options.quick else RESULTS
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    write_json(out, {"rounds": rounds, "envs": ENVS, "machine": machine, "rows": rows})
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
