"""FISOR's training steps per second beside its official JAX code, in turn, in one run, one thread on one core.

    python benchmarks/fisor_speed.py --checkout DIR     # DIR: a checkout of ZhengYinan-AIR/FISOR, which is not fetched
    python benchmarks/fisor_speed.py --quick            # ours alone, a few steps, for CI

The peer's environment is $SUREFOOT_PEERS/fisor (benchmarks/peers/setup.sh says where): jax, flax, optax, gymnasium. Two
sizes: the official one (two updates of a residual noise network on 1,024 rows each, critics on 256), and a small one
(two updates of a 2 x 256 noise network on 256 rows each) in both. Rates are per second of CPU time, medians over
the repeats, so that a busy machine changes them less. Writes results/fisor_speed.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from surefoot.core.files import write_json
from surefoot.core.sources import Uniform

HERE = pathlib.Path(__file__).parent
UPDATES = {"official": 8, "small": 150}
OPTIONS: dict[str, dict[str, Any]] = {"official": {"preset": "official"}, "small": {"actor_updates": 2}}


def ours(size: str, updates: int, seed: int) -> dict[str, Any]:
    """Steps of a worker of `surefoot train` on random rows, as many as the peer has."""
    import numpy as np
    import torch

    from surefoot.core import kernels
    from surefoot.core.agent import Spec
    from surefoot.core.learner import Learner
    from surefoot.data.store import Store
    from surefoot.safe.fisor import FISOR

    torch.set_num_threads(1)
    kernels.keep_memory()
    rows, source = 200_000, np.random.default_rng(seed)
    rewards = source.standard_normal(rows, dtype=np.float32)
    store = Store.pack(
        {
            "observations": source.standard_normal((rows, 17), dtype=np.float32),
            "actions": source.uniform(-0.99, 0.99, (rows, 6)).astype(np.float32),
            "rewards": rewards,
            "signals": np.where(rewards > 1, 25, -1).astype(np.float32),
            "terminations": np.arange(rows) % 2000 == 999,
            "next_observations": source.standard_normal((rows, 17), dtype=np.float32),
        }
    )
    torch.manual_seed(seed)
    agent = FISOR(Spec(17, 6, (-1.0,) * 6, (1.0,) * 6), **OPTIONS[size])
    learner = Learner([agent], [seed], Uniform(store.gather, rows), planned_steps=1_000_000, kernels=True)
    learner.run(5)
    start, cpu_start = time.perf_counter(), time.process_time()
    learner.run(updates)
    return {
        "peer": f"surefoot, {size}",
        "updates": updates,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
    }


def commands(size: str, seed: int, checkout: pathlib.Path) -> dict[str, list[str]]:
    """Ours and theirs, each pinned to one core where there is `taskset`."""
    pin = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    python = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "fisor" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python}: no such file; make that environment with jax, flax, optax and gymnasium")
    common = ["--size", size, "--updates", str(UPDATES[size]), "--seed", str(seed)]
    peer = HERE / "peers" / "fisor_official.py"
    return {
        "surefoot": [*pin, sys.executable, __file__, "--ours", *common],
        "official JAX": [*pin, str(python), str(peer), "--checkout", str(checkout), *common],
    }


def measure(command: list[str]) -> dict[str, Any]:
    """The JSON line of one process."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


def main() -> None:
    """Measure in turn, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ours", action="store_true", help="measure ours in this process")
    parser.add_argument("--size", choices=sorted(UPDATES), default="small")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.ours or given.quick:
        print(json.dumps(ours(given.size, given.updates, given.seed)))
        return
    if given.checkout is None:
        raise SystemExit("--checkout: name a checkout of ZhengYinan-AIR/FISOR")
    lines: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for size in UPDATES:
        for repeat in range(given.repeats):
            for name, command in commands(size, repeat, given.checkout).items():
                lines.setdefault(size, {}).setdefault(name, []).append(measure(command))
                print(lines[size][name][-1], flush=True)
    write_json(HERE / "results" / "fisor_speed.json", lines)
    text = [
        "# FISOR's speed",
        "",
        "Training steps per second of CPU time, one thread on one core, in turn; medians (lowest to highest) of "
        f"{given.repeats} repeats. `python benchmarks/fisor_speed.py --checkout DIR`.",
        "",
        "| size | surefoot | official JAX | ratio of medians |",
        "|---|---|---|---|",
    ]
    for size, both in lines.items():
        rates = {name: [one["updates"] / one["cpu_seconds"] for one in found] for name, found in both.items()}
        medians = {name: statistics.median(values) for name, values in rates.items()}
        shown = [f"{medians[n]:.2f} ({min(rates[n]):.2f} to {max(rates[n]):.2f})" for n in rates]
        text.append(f"| {size} | {' | '.join(shown)} | {medians['surefoot'] / medians['official JAX']:.2f} |")
    path = HERE / "results" / "fisor_speed.md"
    path.write_text("\n".join([*text, ""]))
    print(path.read_text())


if __name__ == "__main__":
    main()
