"""Steps per second of complete MuJoCo environments: gymnasium's SyncVectorEnv, ours, and EnvPool.

64 environments, random actions, observation, reward, end, automatic reset and `info` included; the contestants
step in turn, each in a process of its own, in many short rounds. A rate is per second of CPU time of the process
(all its threads; median of the rounds) and per second of wall-clock (the best round of each: on a machine with
other work, the least disturbed one; the median is in the JSON).

    python benchmarks/mujoco_speed.py                           # ten minutes
    python benchmarks/mujoco_speed.py --tasks Ant-v5            # this task; the others' figures stay
    python benchmarks/mujoco_speed.py --quick -o /tmp/q.json    # a few seconds
    python benchmarks/mujoco_speed.py --envpool /tmp/envpool-venv/bin/python

EnvPool 1.2.5 brings its own MuJoCo (3.6.0) and 0.75 GB of assets, so it lives in an environment of its own:
`python -m venv V && V/bin/pip install envpool==1.2.5`; without --envpool its rows say "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import load, record, sentence

ROWS = 64
TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
CONTESTANTS = ("sync", "ours, 1 thread", "ours, 2 threads", "envpool, 1 thread", "envpool, 2 threads")
BARS = {"ours, 1 thread": ("per_cpu_second", 1.35), "ours, 2 threads": ("best_per_second", 2.4)}
BAR_TASKS = ("HalfCheetah-v5", "Hopper-v5")
RESULTS = pathlib.Path(__file__).parent / "results" / "mujoco_speed.json"


def contestant(name: str, env_id: str) -> tuple[Callable[[np.ndarray], Any], np.ndarray]:
    """A function that makes one step of all environments, and 100 sets of random actions for it."""
    threads = 2 if name.endswith("2 threads") else 1
    if name.startswith("envpool"):
        import envpool

        env = envpool.make_gymnasium(env_id, num_envs=ROWS, batch_size=ROWS, num_threads=threads, seed=0)
        space = env.action_space
    elif name == "sync":
        import gymnasium
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        make = [lambda: gymnasium.make(env_id, disable_env_checker=True)] * ROWS
        env = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
        space = env.single_action_space
    else:
        from surefoot.envs.vector import make_vec

        env = make_vec(env_id, ROWS, threads=threads)
        space = env.single_action_space
    env.reset()
    actions = np.random.default_rng(0).uniform(space.low, space.high, (100, ROWS, *space.shape))
    dtype = np.float64 if name.startswith("envpool") else np.float32
    return env.step, actions.astype(dtype)


def serve(name: str, env_id: str) -> None:
    """A competitor's process: a line with a number of steps in, one with CPU and wall seconds out."""
    step, actions = contestant(name, env_id)
    for t in range(30):
        step(actions[t])
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        wall, cpu = time.perf_counter(), time.process_time()
        for t in range(count):
            step(actions[t % 100])
        print(time.process_time() - cpu, time.perf_counter() - wall, flush=True)


def start(name: str, env_id: str, envpool: str | None) -> subprocess.Popen[str] | None:
    """The competitor's process, or None where it can't run."""
    python = envpool if name.startswith("envpool") else sys.executable
    if python is None:
        return None
    process = subprocess.Popen(
        [python, __file__, "--serve", name, "--task", env_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and line.strip() != "ready":  # what libraries print at start
        line = process.stdout.readline()
    return process if line else None


def measure(env_id: str, rounds: int, steps: int, envpool: str | None) -> dict[str, dict[str, float] | None]:
    """Competitor -> environment steps per CPU second and per second, medians of the rounds; None: not run."""
    processes = {name: start(name, env_id, envpool) for name in CONTESTANTS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, process in processes.items():
            if process is None:
                continue
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
            cpu, wall = map(float, process.stdout.readline().split())
            times[name].append((ROWS * steps / cpu, ROWS * steps / wall))
    for process in processes.values():
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
    return {name: _rates(found, times["sync"]) if found else None for name, found in times.items()}


def _rates(found: list[tuple[float, float]], sync: list[tuple[float, float]]) -> dict[str, float]:
    """Rates, and quartiles of the ratio per CPU second to SyncVectorEnv's of the same round."""
    low, middle, high = np.quantile([own[0] / one[0] for own, one in zip(found, sync, strict=True)], (0.25, 0.5, 0.75))
    return {
        "per_cpu_second": statistics.median(rate for rate, _ in found),
        "per_second": statistics.median(rate for _, rate in found),
        "best_per_second": max(rate for _, rate in found),
        "ratio": float(middle),
        "ratio_low": float(low),
        "ratio_high": float(high),
    }


def table(
    tasks: dict[str, dict[str, dict[str, float] | None]], rounds: dict[str, int], machines: dict[str, Any]
) -> str:
    """The results as Markdown."""
    loads = [one for machine in machines.values() for one in machine["load"]]
    where = " and ".join(
        sentence({"processor": name, "load": loads}) for name in sorted({one["processor"] for one in machines.values()})
    )
    lines = [
        "# MuJoCo environment steps per second",
        "",
        f"{ROWS} complete environments, random actions; {min(rounds.values())} rounds or more, taken in turn.",
        "CPU seconds: median of the rounds. Wall-clock: the best round of each, as other work shared the machine.",
        "x: ratio to SyncVectorEnv; per CPU second to its rate in the same round, median (and quartiles).",
        "`python benchmarks/mujoco_speed.py`; versions are in the JSON beside this.",
        "EnvPool brings its own MuJoCo (3.6.0).",
        where,
        "",
        "| task | environment | per CPU second | x | per second, best | x |",
        "|---|---|---|---|---|---|",
    ]
    for env_id, rows in tasks.items():
        sync = rows["sync"]
        assert sync is not None
        for name, rates in rows.items():
            if rates is None:
                lines.append(f"| {env_id} | {name} | not run | | | |")
                continue
            ratio = f"{rates['ratio']:.2f} ({rates['ratio_low']:.2f} to {rates['ratio_high']:.2f})"
            best = rates["best_per_second"]
            cells = [f"{rates['per_cpu_second']:,.0f}", ratio, f"{best:,.0f}", f"{best / sync['best_per_second']:.2f}"]
            lines.append(f"| {env_id} | {name} | {' | '.join(cells)} |")
    lines += ["", "Goals, HalfCheetah and Hopper:", ""]
    for env_id in [env_id for env_id in BAR_TASKS if env_id in tasks]:
        for name, (key, bar) in BARS.items():
            ours, sync = tasks[env_id][name], tasks[env_id]["sync"]
            assert ours is not None
            assert sync is not None
            ratio = ours["ratio"] if key == "per_cpu_second" else ours[key] / sync[key]
            verdict = "met" if ratio >= bar else "missed"
            lines.append(f"- {env_id}, {name}, {key.replace('_', ' ')}: {ratio:.2f}, at least {bar}: {verdict}")
    return "\n".join(lines) + "\n"


def kept(path: pathlib.Path, tasks: list[str]) -> tuple[dict[str, Any], dict[str, int], dict[str, Any]]:
    """Rates, rounds and machines of the tasks that an earlier run measured and this one does not."""
    if not path.exists():
        return {}, {}, {}
    earlier = json.loads(path.read_text())
    others = [env_id for env_id in earlier["rounds"] if env_id not in tasks]
    rates, rounds, machines = (
        {key: earlier[part][key] for key in others} for part in ("steps_per_second", "rounds", "machines")
    )
    return rates, rounds, machines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two tasks, few steps")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--steps", type=int, default=8, help="steps of all environments a round")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--envpool", metavar="PYTHON", help="interpreter of an environment with envpool")
    parser.add_argument("-o", "--out", type=pathlib.Path, help="default: the committed file, or with --quick build/")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    place = RESULTS.parents[2] / "build" / RESULTS.name if options.quick else RESULTS  # a few steps are no result
    options.out = options.out or place
    if options.serve:
        serve(options.serve, options.task)
        return
    tasks, rounds, steps = options.tasks, options.rounds, options.steps
    if options.quick:
        tasks, rounds, steps = [task for task in tasks if task in BAR_TASKS], 2, 20
    found, rounds_of, machines = kept(options.out, tasks)
    for env_id in tasks:
        before = load()
        found[env_id], rounds_of[env_id] = measure(env_id, rounds, steps, options.envpool), rounds
        machines[env_id] = record([before, load()])
    text = table(found, rounds_of, machines)
    print(text)
    import gymnasium
    import mujoco

    report = {
        "environments": ROWS,
        "rounds": rounds_of,
        "steps_a_round": steps,
        "quick": options.quick,
        "steps_per_second": found,
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
        "numpy": np.__version__,
        "machines": machines,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for path, content in ((options.out, json.dumps(report, indent=1) + "\n"), (options.out.with_suffix(".md"), text)):
        aside = path.with_name(path.name + ".tmp")
        try:
            aside.write_text(content)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
