"""Runs whose collectors are killed: do they still learn, and what does a death cost beside time?

    python benchmarks/collectors_killed.py             # computes what is missing in results/collectors_killed.jsonl
    python benchmarks/collectors_killed.py --quick     # one small cell, for CI
    python benchmarks/collectors_killed.py --table

Two collectors act for one learner, in processes of their own or as actors of Ray (extra `ray`). Four times a run one of
them, in turn, gets SIGKILL within a twentieth of a second of the learner's beginning to wait for its answer, that is,
mostly while it acts; the moments are spread evenly over the run's blocks, so that they don't depend on how busy the
machine is. `learn` cells are PPO and SAC on the tasks, and by the settings, of online_checks.py. `same` cells train a
second time undisturbed, on an environment that can give its state, and compare all that was learned to the bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from cells import Results
from commands import work_here
from study import Cell, entry, git_commit, study_main

from surefoot.core.base import checkpoint
from surefoot.core.base.files import read_json
from surefoot.runs import start as training
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.processes import collectors
from surefoot.runs.run import Run

WORKERS, KILLS = 2, 4


class Doom:
    """When collectors are killed; `waits` counts those of a run's learner for any of its collectors."""

    waits = 0
    moments: frozenset[int] = frozenset()
    draw = random.Random(0)

    @classmethod
    def strike(cls, process: int) -> None:
        """Kill this process if its time has come."""
        cls.waits += 1
        if cls.waits in cls.moments:
            time.sleep(cls.draw.random() / 20)
            os.kill(process, signal.SIGKILL)


class DoomedProcess(collectors.ProcessConnection):
    """A collector in a process that is killed at its time."""

    def receive(self, patience: float | None) -> bytes:
        """As its parent."""
        Doom.strike(self.process.pid)
        return super().receive(patience)


class DoomedActor(collectors.RayConnection):
    """An actor of Ray whose process is killed at its time; Ray begins none in its place, the learner does."""

    def __init__(self, ray: Any, actor: Any) -> None:
        """Begin it, and ask where it is."""
        super().__init__(ray, actor)
        self.process = ray.get(self.actor.__ray_call__.remote(lambda _: os.getpid()))

    def receive(self, patience: float | None) -> bytes:
        """As its parent."""
        Doom.strike(self.process)
        return super().receive(patience)


@contextlib.contextmanager
def killed_at(moments: frozenset[int]) -> Iterator[None]:
    """Runs train in this process, and collectors die at these of the learner's waits."""
    before = training.work, collectors.ProcessConnection, collectors.RayConnection
    Doom.waits, Doom.moments, Doom.draw = 0, moments, random.Random(0)
    training.work = work_here
    collectors.ProcessConnection, collectors.RayConnection = DoomedProcess, DoomedActor  # type: ignore[misc]
    try:
        yield
    finally:
        training.work, collectors.ProcessConnection, collectors.RayConnection = before  # type: ignore[misc]


def trained(
    algorithm: str,
    options: dict[str, Any],
    environment: str,
    seed: int,
    steps: int,
    kind: str,
    kills: int,
    folder: pathlib.Path,
) -> tuple[Run, dict[str, Any]]:
    """A run whose collectors were killed, and what it says."""
    torch.set_num_threads(1)
    config = agent_class(algorithm).configure(**options)
    waits = WORKERS * (steps // config.rows if hasattr(config, "rows") else steps // (config.num_envs * 32))
    # one more wait a kill, since the learner waits again; an odd distance, so that the collectors take turns
    apart = max(3, waits // (kills + 1)) | 1
    plan = Plan(
        algorithm=algorithm,
        config=dataclasses.asdict(config),
        environment=environment,
        steps=steps,
        seeds=(seed,),
        episodes=20,
        evaluate_every=steps // 2,
        evaluate_episodes=1,
        collectors=kind,
        workers=WORKERS,
    )
    start = time.perf_counter()
    with killed_at(frozenset(apart * number for number in range(1, kills + 1))):
        run = training.train(plan, folder)
    result = read_json(run.seed_folder(seed) / "result.json")
    return run, {**result, "wall": time.perf_counter() - start}


def learned(run: Run, seed: int) -> dict[str, torch.Tensor]:
    """Parameters, optimisers and statistics at a run's end."""
    tensors, _ = checkpoint.load(run.checkpoint_path(seed), kind="checkpoint")
    return {name: value for name, value in tensors.items() if name.startswith(("agent/", "adam/", "rewards/"))}


def cell(
    algorithm: str,
    options: dict[str, Any],
    environment: str,
    seed: int,
    steps: int,
    kind: str,
    compare: bool,
    kills: int = KILLS,
) -> dict[str, Any]:
    """One run that is disturbed, and perhaps one that is not."""
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        run, found = trained(algorithm, options, environment, seed, steps, kind, kills, root / "killed")
        facts: dict[str, Any] = {
            "algorithm": algorithm,
            "environment": environment,
            "seed": seed,
            "steps": steps,
            "collectors": kind,
            "kills": kills,
            "restarts": found["collectors"]["restarts"],
            "returns": [round(value, 3) for value in found["evaluation"]["returns"]],
            "seconds": round(found["wall"], 1),
            "git": git_commit(),
        }
        if compare:
            other, whole = trained(algorithm, options, environment, seed, steps, kind, 0, root / "whole")
            one, two = learned(run, seed), learned(other, seed)
            facts |= {
                "same_bits": one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one),
                "same_returns": found["evaluation"]["returns"] == whole["evaluation"]["returns"],
                "seconds_undisturbed": round(whole["wall"], 1),
            }
    return facts


RATES = {f"{name}_learning_rate": 1e-3 for name in ("actor", "critic")}
LEARN = {
    "ppo-CartPole-v1": ("ppo", {"preset": "zoo-cartpole", "schedule": "linear"}, "CartPole-v1", 100_000, 475),
    "sac-Pendulum-v1": ("sac", {**RATES, "num_envs": 2}, "Pendulum-v1", 20_000, -200),
}
SAME = {
    "ppo-quadrotor-2d": ("ppo", {"num_envs": 8}, "native/quadrotor-2d", 60_000),
    "sac-pendulum": ("sac", {"num_envs": 2, "hidden": (64, 64)}, "native/pendulum", 4_000),
}
SEEDS = 3
NAMES = {"processes": "", "ray": "ray "}
"""Kind of collectors -> what the names of its cells begin with."""
CELLS = [
    one
    for kind, prefix in NAMES.items()
    for one in (
        *(
            Cell(f"{prefix}same {name}", functools.partial(cell, *settings[:3], 0, settings[3], kind, True))
            for name, settings in SAME.items()
        ),
        *(
            Cell(
                f"{prefix}learn {name}-s{seed}", functools.partial(cell, *settings[:3], seed, settings[3], kind, False)
            )
            for seed in range(SEEDS)
            for name, settings in LEARN.items()
        ),
    )
]


def table(found: Results) -> list[str]:
    """The page."""
    lines = [
        "# Collectors that are killed",
        "",
        f"{WORKERS} collectors, in processes or as actors of Ray, of which one gets SIGKILL {KILLS} times a run,",
        "mostly while it acts. Written by `python benchmarks/collectors_killed.py`, which says when. Two cores, shared",
        "with much other work: a new collector takes longer to begin there than it acts in these small runs.",
        "",
        "## Beside the undisturbed run",
        "",
        "| run | collectors | steps | restarts | what was learned | returns | seconds, undisturbed |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, name in itertools.product(NAMES, SAME):
        one = found.get(f"{NAMES[kind]}same {name}")
        if one is None:
            lines.append(f"| {name} | {kind} | missing | | | | |")
        else:
            bits = "equal to the bit" if one["same_bits"] else "DIFFERS"
            returns = "equal" if one["same_returns"] else "DIFFER"
            seconds = f"{one['seconds']:.0f}, {one['seconds_undisturbed']:.0f}"
            lines.append(f"| {name} | {kind} | {one['steps']:,} | {one['restarts']} | {bits} | {returns} | {seconds} |")
    lines += [
        "",
        "## Learning",
        "",
        "Environments of Gymnasium's that can't give their state: a collector that is restarted begins new episodes.",
        "",
        "| run | collectors | steps | restarts | return, 20 episodes a seed | each seed | wanted | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, (name, (*_, steps, wanted)) in itertools.product(NAMES, LEARN.items()):
        names = [f"{NAMES[kind]}learn {name}-s{seed}" for seed in range(SEEDS)]
        cells = [found[one] for one in names if one in found]
        returns = [np.asarray(one["returns"]) for one in cells]
        means = [float(one.mean()) for one in returns]
        reached = "missing" if len(cells) < SEEDS else "yes" if np.mean(means) >= wanted else "NO"
        row = [name, kind, f"{steps:,}", ", ".join(str(one["restarts"]) for one in cells), entry(returns, SEEDS)]
        row += [", ".join(f"{mean:.0f}" for mean in means), f"mean >= {wanted}", reached]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def quick() -> dict[str, Any]:
    """A few blocks and a death."""
    return cell("ppo", {"num_envs": 2, "horizon": 64}, "native/pendulum", 0, 1_024, "processes", True, 1)


if __name__ == "__main__":
    study_main(__doc__, "collectors_killed", CELLS, table, Cell("quick", quick))
