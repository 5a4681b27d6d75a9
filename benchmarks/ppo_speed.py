"""PPO on cart-pole swing-up until a return is reached: ours, stable-baselines3's and one in JAX, tuned alike.

    python benchmarks/ppo_speed.py            # all cells that are missing, then the table; 25 minutes of one core
    python benchmarks/ppo_speed.py --quick    # a few blocks of ours alone, for CI: does it run, is it taped
    benchmarks/peers/setup.sh sb3 jax         # installs the peers (SUREFOOT_PEERS says where)

All three learn tanh networks of 2 x 64 on one thread. Ours and stable-baselines3's act in the same native system, which
the latter gets as one batched `VecEnv`; the JAX one (peers/jax_ppo.py, ours to answer for) has the system's equations
in jitted code, which it checks against steps of the native system before it starts.

Each tries the same six settings once, on a seed that no reported run has, until it reaches the return or has used
`TUNING_CAP` seconds of CPU time. Its choice is the setting that reached the return in the least CPU time; where none
did, the one with the highest last return. That setting then runs on other seeds, until it reaches the return or has
used `CAP` seconds. Evaluations (64 deterministic episodes) and JAX's compilation are not counted. Runs are a process
each, one at a time, the three in turn. On a shared machine compare CPU seconds: wall time counts the neighbours too.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cells import Results, read_cells
from machine import first_core, load, record, sentence
from study import Cell, results, study_main

HERE = pathlib.Path(__file__).parent
NAME, SYSTEM, EPISODES = "ppo_speed", "native/cartpole-swingup", 64
TARGET, STEPS = 400.0, 3_000_000
"""Mean return of an episode of 500 steps; where the rate has fallen to 0."""
TUNING_CAP, CAP = 75.0, 200.0
TUNING_EVERY, EVERY = 65_536, 16_384
"""Steps between evaluations."""
TUNING_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
SHAPES: dict[str, dict[str, int]] = {
    "16 x 256": {"num_envs": 16, "horizon": 256, "minibatches": 16, "epochs": 10},
    "64 x 128": {"num_envs": 64, "horizon": 128, "minibatches": 16, "epochs": 10},
    "256 x 64": {"num_envs": 256, "horizon": 64, "minibatches": 16, "epochs": 4},
}
"""Environments x steps of a block, and how often it is learned from."""
RATES = (3e-4, 1e-3)
GRID: dict[str, dict[str, Any]] = {
    f"{shape}, {rate:g}": {**sizes, "learning_rate": rate} for shape, sizes in SHAPES.items() for rate in RATES
}
"""Name of a setting -> what all three libraries are given."""
OURS, SB3, JAX = "surefoot", "stable-baselines3", "plain JAX"
LIBRARIES = (OURS, JAX, SB3)


def wanted(setting: str, seed: int, cap: float, every: int) -> dict[str, Any]:
    """What a run is given, as JSON values."""
    common = {"system": SYSTEM, "seed": seed, "steps": STEPS, "every": every, "episodes": EPISODES}
    return {**common, "target": TARGET, "cap": cap, **GRID[setting]}


def ours(s: Mapping[str, Any]) -> None:
    """Train in this process; print steps, CPU and wall seconds and the evaluated return after each part."""
    import torch

    from surefoot.core import kernels
    from surefoot.envs import make_vec
    from surefoot.envs.episodes import run_episodes
    from surefoot.online import PPO, spec_of
    from surefoot.online.on_policy import OnPolicyLoop

    torch.set_num_threads(1)
    kernels.keep_memory()
    config = PPO.configure(**{name: s[name] for name in next(iter(GRID.values()))})
    env = make_vec(s["system"], config.num_envs)
    agent = PPO(spec_of(env), config).fresh(s["seed"])
    loop = OnPolicyLoop([agent], [s["seed"]], env, planned_steps=s["steps"], kernels=True)
    cpu = wall = found = 0.0
    while loop.step < s["steps"] and cpu < s["cap"] and found < s["target"]:
        began, used = time.perf_counter(), time.process_time()
        loop.run(s["every"])
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - used
        policy = loop.learner.extract(0).policy()
        starts = np.arange(10_000, 10_000 + s["episodes"])
        found = float(run_episodes(policy, s["system"], starts, threads=1).returns.mean())
        print(json.dumps({"steps": loop.step, "cpu": cpu, "wall": wall, "return": found}), flush=True)
    if loop.learner.eager_because():
        raise SystemExit(f"training steps are not taped: {loop.learner.eager_because()}")


def trace() -> dict[str, Any]:
    """64 steps of the system from places all over it, which equations written elsewhere have to give again."""
    import torch

    from surefoot.envs.systems.cartpole_swingup import CartPoleSwingUp

    system, source = CartPoleSwingUp(), torch.Generator().manual_seed(0)
    reach = torch.tensor([2.6, 4.0, 4.0, 6.0], dtype=torch.float64)
    states = (2 * torch.rand(64, 4, generator=source, dtype=torch.float64) - 1) * reach
    forces = 20 * torch.rand(64, 1, generator=source, dtype=torch.float64) - 10
    parameters = torch.tensor([[one.default for one in system.parameters]], dtype=torch.float64).expand(64, -1)
    new, rewards, _, terminated = system.step(states, forces, parameters, torch.zeros(64, 1, dtype=torch.float64))
    steps = {"states": states, "forces": forces[:, 0], "next": new, "rewards": rewards, "terminated": terminated}
    return {name: value.double().tolist() for name, value in steps.items()}


def command(library: str, settings: dict[str, Any]) -> list[str]:
    """The command line of a run."""
    if library == OURS:
        return [sys.executable, str(HERE / "ppo_speed.py"), "--ours", json.dumps(settings)]
    kind = {SB3: "sb3", JAX: "jax"}[library]
    python = pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / kind / "bin" / "python"
    if not python.is_file():
        raise SystemExit(f"{python} is not there: make it with benchmarks/peers/setup.sh {kind}")
    script = [str(python), str(HERE / "peers" / f"{kind}_ppo.py")]
    if library == SB3:
        return [*script, sysconfig.get_paths()["purelib"], json.dumps(settings)]
    return [*script, json.dumps({**settings, "trace": trace()})]


def carried_out(library: str, setting: str, seed: int, cap: float, every: int) -> dict[str, Any]:
    """A run in a process of its own on one core."""
    before, settings = load(), wanted(setting, seed, cap, every)
    pin = ["taskset", "-c", str(first_core())] if shutil.which("taskset") else []
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [*pin, *command(library, settings)], capture_output=True, text=True, env={**os.environ, **single}, check=False
    )
    points = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not points:
        raise SystemExit(f"{library}, {setting}: the run failed:\n{done.stderr[-2000:]}")
    points = [{name: round(value, 3) for name, value in point.items()} for point in points]
    return {
        "library": library, "setting": setting, "seed": seed, "cap": cap, "settings": GRID[setting],
        "points": points, "machine": record([before, load()]),
    }  # fmt: skip


def tuning_name(library: str, setting: str) -> str:
    """Name of the cell of a setting's trial."""
    return f"{library}-tuning-{setting}"


def chosen(found: Results, library: str) -> str:
    """The setting that a library's trials choose: the first to reach the return in CPU time, else the highest.

    Raises:
        SystemExit: a trial is missing.
    """
    ends = {}
    for setting in GRID:
        if tuning_name(library, setting) not in found:
            raise SystemExit(f"{library} has no trial of {setting} yet: run the script without --only")
        ends[setting] = found[tuning_name(library, setting)]["points"][-1]
    reached = {setting: end["cpu"] for setting, end in ends.items() if end["return"] >= TARGET}
    return min(reached, key=reached.__getitem__) if reached else max(ends, key=lambda one: ends[one]["return"])


def trial(library: str, setting: str) -> dict[str, Any]:
    """A run that only chooses."""
    return carried_out(library, setting, TUNING_SEED, TUNING_CAP, TUNING_EVERY)


def final(library: str, seed: int) -> dict[str, Any]:
    """A reported run, of the setting that the trials in the study's file choose."""
    return carried_out(library, chosen(read_cells(results(NAME)), library), seed, CAP, EVERY)


CELLS = [
    *(
        Cell(tuning_name(library, setting), functools.partial(trial, library, setting))
        for setting in GRID
        for library in LIBRARIES
    ),
    *(
        Cell(f"{library}-s{seed}", functools.partial(final, library, seed))
        for seed in SEEDS
        for library in LIBRARIES
    ),
]  # fmt: skip


def final_row(library: str, runs: Sequence[dict[str, Any]], first: float) -> str:
    """A library's line: medians over its seeds, and each seed."""
    ends = [run["points"][-1] for run in runs]
    reached = sum(end["return"] >= TARGET for end in ends)
    median = {key: float(np.median([end[key] for end in ends])) for key in ("cpu", "wall", "steps")}
    rate = float(np.median([end["steps"] / end["cpu"] for end in ends]))
    each = ", ".join(f"{end['cpu']:.1f}{'' if end['return'] >= TARGET else '+'}" for end in ends)
    return (
        f"| {library} | {runs[0]['setting']} | {reached} of {len(ends)} | {median['cpu']:.1f} | {each} | "
        f"{median['cpu'] / first:.1f} | {median['wall']:.1f} | {median['steps']:,.0f} | {rate:,.0f} |"
    )


def table(found: Results) -> list[str]:
    """The page of what is there."""
    runs = {name: [found[f"{name}-s{seed}"] for seed in SEEDS if f"{name}-s{seed}" in found] for name in LIBRARIES}
    loads = [one for cell in found.values() for one in cell["machine"]["load"]]
    places = sorted({cell["machine"]["processor"] for cell in found.values()})
    compiled = [run["points"][-1]["compile_cpu"] for run in runs[JAX]]
    first = float(np.median([run["points"][-1]["cpu"] for run in runs[OURS]])) if runs[OURS] else float("nan")
    lines = [
        f"# PPO on {SYSTEM} to a return of {TARGET:g}",
        "",
        "Seconds of CPU time of one thread on one core until 64 deterministic episodes, which follow every "
        f"{EVERY:,} steps ({TUNING_EVERY:,} in trials), return as much on average. Each "
        f"library tried the same {len(GRID)} settings once, on seed {TUNING_SEED}, for at most {TUNING_CAP:g} s each; "
        "the setting that arrived first, or else had the highest return, then ran on seeds "
        f"{', '.join(map(str, SEEDS))} for at most {CAP:g} s: + marks a run that did not arrive, so that medians with "
        "it are lower bounds. A setting is environments x steps of a block and the learning rate, which falls to 0 "
        f"over {STEPS:,} steps; 16 minibatches, 10 epochs (4 at 256 x 64). Evaluations are not counted, nor is JAX's "
        f"compilation{f' ({np.median(compiled):.1f} s)' if compiled else ''}. Plain JAX is a program of ours, all of "
        f"it jitted, the environment too. {' '.join(sentence({'processor': p, 'load': loads}) for p in places)} "
        "`python benchmarks/ppo_speed.py`.",
        "",
        "| library | setting | arrived | CPU s, median | each seed | times ours | wall s | steps | steps / CPU s |",
        "|---" * 9 + "|",
        *(final_row(name, own, first) for name, own in runs.items() if own),
        "",
        f"Trials on seed {TUNING_SEED}: CPU s to the return, or the return when {TUNING_CAP:g} s were used "
        f"or {STEPS:,} steps taken:",
        "",
        f"| setting | {' | '.join(LIBRARIES)} |",
        "|---" * (1 + len(LIBRARIES)) + "|",
    ]
    for setting in GRID:
        entries = []
        for library in LIBRARIES:
            cell = found.get(tuning_name(library, setting))
            end = None if cell is None else cell["points"][-1]
            arrived = end is not None and end["return"] >= TARGET
            text = "missing" if end is None else f"{end['cpu']:.1f} s" if arrived else f"return {end['return']:.0f}"
            entries.append(text)
        lines.append(f"| {setting} | {' | '.join(entries)} |")
    if len(found) < len(CELLS):
        lines += ["", f"{len(found)} of {len(CELLS)} runs are there."]
    return lines


def quick() -> dict[str, Any]:
    """Two blocks of ours."""
    settings = {**wanted("256 x 64, 0.001", 0, CAP, EVERY), "steps": 65_536, "every": 32_768, "target": 1e9}
    done = subprocess.run(command(OURS, settings), capture_output=True, text=True, check=True)
    return {"points": [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        ours(json.loads(sys.argv[2]))
        sys.exit()
    os.environ["SUREFOOT_CORES"] = "1"  # one run at a time: their times are the result
    study_main(__doc__, NAME, CELLS, table, Cell("quick", quick))
