"""SAC on one core: ours beside stable-baselines3 and SBX (JAX), updates alone and whole steps with acting.

    python benchmarks/online_speed.py               # all that is installed, medians of 5, writes results/online_speed.*
    python benchmarks/online_speed.py --quick       # ours alone, a few updates, for CI
    bash benchmarks/peers/setup.sh sb3 sbx          # installs the peers, each in an environment of its own

Batch 256, hidden 256-256, observation 17, action 6. `update`: training steps on 200,000 random rows, sampling
included. `loop`: HalfCheetah-v5, one action, one stored transition and one update a step. Each measurement is a
process of its own on one core; rates are per second of that process's CPU time, wall-clock rates beside them. The
limit is a core's peak in multiply-adds (`native.peak`).
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

from engine_speed import ACTION, BATCH, OBSERVATION, best_limit, measure_limit, of_the_limit
from machine import first_core, load, record, sentence

from surefoot.core.files import write_json

HERE = pathlib.Path(__file__).parent
OURS, SB3, SBX, SBX_MANY = "surefoot", "stable-baselines3", "SBX", "SBX, 64 updates a call"
BARS = {SB3: 2.0, SBX: 1.0}
"""Peer -> what ours must reach of its rate."""
MEASURES = ("update", "loop")


def flops_of_update(critic_steps: int = 1) -> float:
    """Floating-point operations of one SAC update: products only, none of them twice."""

    def forward(inputs: int, outputs: int) -> float:
        return 2.0 * BATCH * (inputs * 256 + 256 * 256 + 256 * outputs)

    pair = OBSERVATION + ACTION
    below = 2.0 * BATCH * (256 * 256 + 256)  # gradients of the hidden layers' inputs
    critic_step = 2 * (forward(pair, 1) + forward(pair, 1) + below)
    target = 2 * forward(pair, 1) + forward(OBSERVATION, 2 * ACTION)
    through_critics = 2 * (forward(pair, 1) + below + 2.0 * BATCH * pair * 256)
    actor = 2 * forward(OBSERVATION, 2 * ACTION) + 2.0 * BATCH * (256 * 256 + 256 * 2 * ACTION)
    return critic_steps * (critic_step + target) + through_critics + actor


def measure_ours(what: str, updates: int, seed: int) -> dict[str, Any]:
    """Run `updates` updates in this process."""
    import torch

    from surefoot.core import kernels

    torch.set_num_threads(1)
    kernels.keep_memory()
    if what == "update":
        from engine_speed import learner

        trained = learner("surefoot.online:SAC", {}, seed)
        run, eager = trained.run, trained.eager_because
    else:
        from surefoot.core.agent import Spec
        from surefoot.envs.vector import make_vec
        from surefoot.online import SAC
        from surefoot.online.off_policy import OffPolicyLoop

        env: Any = make_vec("HalfCheetah-v5", 1)
        agent = SAC(Spec(OBSERVATION, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)).fresh(seed)
        loop = OffPolicyLoop([agent], [seed], env, planned_steps=1_000_000, batch_size=BATCH, kernels=True)
        run, eager = loop.run, loop.learner.eager_because
    run(150)
    wall, cpu = time.perf_counter(), time.process_time()
    run(updates)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"updates": updates, "seconds": wall, "cpu_seconds": cpu, "eager": eager()}


def commands(what: str, updates: int, core: int, quick: bool) -> dict[str, list[str]]:
    """Implementation -> the command that measures it; peers that are not installed are left out with a message."""
    pin = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
    found = {OURS: [*pin, sys.executable, str(HERE / "online_speed.py"), "--child", what, str(updates)]}
    if quick:
        return found
    root = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers"))
    peers: list[tuple[str, str, list[str]]] = [(SB3, "sb3", []), (SBX, "sbx", [])]
    if what == "update":
        peers.append((SBX_MANY, "sbx", ["--steps-per-call", "64"]))
    for name, library, more in peers:
        if not (root / library / ".complete-for").exists():
            print(f"{name} is left out: run benchmarks/peers/setup.sh {library}")
            continue
        script = [str(root / library / "bin" / "python"), str(HERE / "peers" / "sb3_speed.py")]
        found[name] = [*pin, *script, "--library", library, "--measure", what, "--updates", str(updates), *more]
    return found


def run(command: list[str]) -> dict[str, Any]:
    """The JSON on the last line of what a command prints."""
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **single}, check=False)
    if found.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
    lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
    value: dict[str, Any] = json.loads(lines[-1])
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="SAC updates and steps per second on one core.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, default=first_core())
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure_ours(arguments.child[0], int(arguments.child[1]), 0)))
        return
    updates, repeats = (50, 1) if arguments.quick else (arguments.updates, arguments.repeats)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {what: {} for what in MEASURES}
    loads, limits = [load()], []
    for _ in range(repeats):
        for what in MEASURES:
            for name, command in commands(what, updates, arguments.core, arguments.quick).items():
                runs[what].setdefault(name, []).append(run(command))
                loads.append(load())
        limits.append(measure_limit())
    limit, machine = best_limit(limits), record(loads)
    rates = {
        what: {name: statistics.median(i["updates"] / i["cpu_seconds"] for i in items) for name, items in found.items()}
        for what, found in runs.items()
    }
    wall = {
        what: {name: statistics.median(i["updates"] / i["seconds"] for i in items) for name, items in found.items()}
        for what, found in runs.items()
    }
    lines = table(rates, wall, limit, machine, updates, repeats)
    eager = {what: found[OURS][0]["eager"] for what, found in runs.items()}
    if any(eager.values()):
        lines += ["", f"NOT from the tape: {eager}"]
    if not arguments.quick:
        result = {"machine": machine, "repeats": repeats, "updates": updates, "rates": rates, "wall": wall}
        write_json(HERE / "results" / "online_speed.json", {**result, "limit": limit, "runs": runs})
        (HERE / "results" / "online_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def table(
    rates: Any, wall: Any, limit: dict[str, float | None], machine: dict[str, Any], updates: int, repeats: int
) -> list[str]:
    """The page of results."""
    lines = [
        "# SAC per second on one core",
        "",
        f"Batch {BATCH}, hidden 256-256, {OBSERVATION}/{ACTION} dimensions; medians of {repeats} measurements of "
        f"{updates} updates, in turn. `update`: sampling and one update; `loop`: acting in HalfCheetah-v5 too. "
        f"{sentence(machine)} `python benchmarks/online_speed.py`.",
        "",
        "| measured | implementation | per CPU second | per second | ours / this |",
        "|---|---|---|---|---|",
    ]
    for what, found in rates.items():
        for name, rate in found.items():
            lines.append(f"| {what} | {name} | {rate:.0f} | {wall[what][name]:.0f} | {found[OURS] / rate:.2f} |")
    reached = {OURS: rates["update"][OURS], f"{OURS} with acting": rates["loop"][OURS]}
    lines += ["", of_the_limit(limit, flops_of_update(), reached), ""]
    for what, found in rates.items():
        for name, bar in BARS.items():
            if name in found:
                ratio = found[OURS] / found[name]
                met = "met" if ratio >= bar else "NOT met"
                lines.append(f"- {what}, {name}: {ratio:.2f} times, at least {bar:.1f} wanted: {met}")
    return lines


if __name__ == "__main__":
    main()
