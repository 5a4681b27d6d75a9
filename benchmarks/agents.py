"""Several agents: PPO by each, MAPPO, VDN and QMIX on one cooperative task, and the speed of rows that are agents.

    python benchmarks/agents.py              # compute what is missing, then write the table
    python benchmarks/agents.py --table      # only the table
    python benchmarks/agents.py --quick      # one small cell, for CI

The task is `team:spread`: three agents that are to cover three places without touching, all earning the same. Each
algorithm has the same number of decisions of agents. The speed cells train PPO on 48 rows of an environment that costs
nothing: 48 environments of one agent, and 16 of three.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from cells import Results
from study import Cell, difference, entry, study_main, training_cell

from surefoot.envs.acting import spec_of
from surefoot.envs.agents import AgentRows, Outcome, RowView, Scene, Teams
from surefoot.online import PPO
from surefoot.online.loops.loop import make_loop

TASK, STEPS, EPISODES, SEEDS, ENVS = "team:spread", 90_000, 50, (0, 1, 2), 16
SHARED: dict[str, Any] = {"num_envs": ENVS, "discount": 0.9}
GRADIENTS = {**SHARED, "learning_rate": 1e-3, "schedule": "constant", "value_clip": None}
VALUES = {**SHARED, "updates_per_step": 0.03, "epsilon_steps": 45_000, "learning_rate": 1e-3, "hidden": (64, 64)}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "IPPO": ("ppo", GRADIENTS),
    "MAPPO": ("mappo", {**GRADIENTS, "entropy_coefficient": 0.0}),
    "VDN": ("vdn", VALUES),
    "QMIX": ("qmix", VALUES),
}
"""Name -> algorithm and options."""
ROWS, BLOCKS, REPEATS = 48, 8, 3
SPEEDS = {"one agent": 1, "three agents": 3}
"""Name -> agents of each environment of the speed cells."""


class Free(Teams):
    """Agents that observe the same random numbers at each step, and earn 1: what rows cost beside the simulator."""

    def __init__(self, num_teams: int, agents: int) -> None:
        names = [str(number) for number in range(agents)]
        own = 18 if agents == 1 else 15  # the one-hot number makes them as wide
        super().__init__(names, num_teams, own, gymnasium.spaces.Discrete(5), max_episode_steps=25)
        self.seen = np.random.default_rng(0).normal(size=(num_teams, agents, own)).astype(np.float32)

    def begin(self, teams: np.ndarray[Any, Any], seeds: Sequence[int | None]) -> Scene:
        """As `Teams.begin`."""
        return Scene(self.seen[teams], np.ones((len(teams), self.agents), np.bool_))

    def move(self, teams: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> Outcome:
        """As `Teams.move`."""
        shape = (len(teams), self.agents)
        never = np.zeros(shape, np.bool_)
        return Outcome(self.begin(teams, []), np.ones(shape), never, never)


def speed(agents: int) -> dict[str, Any]:
    """Decisions of agents that PPO takes and learns from in a second of one core, the median of some repetitions."""
    torch.set_num_threads(1)
    env = AgentRows(Free(ROWS // agents, agents), RowView())
    agent = PPO(spec_of(env), num_envs=ROWS, horizon=32, minibatches=8).fresh(0)
    block = ROWS * 32
    loop = make_loop([agent], [0], env, planned_steps=block * (BLOCKS * REPEATS + 1), kernels=True)
    loop.run(block)
    rates = []
    for _ in range(REPEATS):
        started = time.process_time()
        loop.run(block * BLOCKS)
        rates.append(block * BLOCKS / (time.process_time() - started))
    return {"agents": agents, "rows": ROWS, "steps_per_core_second": sorted(round(rate) for rate in rates)}


def train_one(side: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed."""
    algorithm, options = SIDES[side]
    return training_cell(algorithm, options, None, TASK, seed, STEPS, EPISODES, evaluations=4)


def cell_name(side: str, seed: int) -> str:
    """Of a side and seed."""
    return f"{side}-s{seed}"


def cells() -> list[Cell]:
    """All cells: speed, then a seed of each algorithm after another."""
    quick = [Cell(f"speed-{name}", functools.partial(speed, agents)) for name, agents in SPEEDS.items()]
    sides = [Cell(cell_name(side, seed), functools.partial(train_one, side, seed)) for seed in SEEDS for side in SIDES]
    return quick + sides


def of_seeds(found: Results, side: str) -> list[dict[str, Any]]:
    """The cells of each seed that are there."""
    return [found[name] for name in (cell_name(side, seed) for seed in SEEDS) if name in found]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    returns = {side: [np.asarray(one["returns"]) for one in of_seeds(found, side)] for side in SIDES}
    lines = [
        "# Several agents",
        "",
        f"`{TASK}`: three agents, three places, 25 steps, one reward. Mean return of {EPISODES} episodes a seed with "
        f"the likeliest or best choices, {len(SEEDS)} seeds, with its 95 % interval over seeds and initial states, "
        f"after {STEPS:,} decisions of agents ({STEPS // 3:,} steps of environments, {ENVS} of them side by side). "
        "IPPO is `algo=ppo`. All discount by 0.9; settings are at the top of benchmarks/agents.py and were not tuned "
        "further. Seconds of training are of a shared, noisy core. Written by `python benchmarks/agents.py`.",
        "",
        "| algorithm | mean return | less IPPO's | training steps | s |",
        "|---|---|---|---|---|",
    ]
    for side in SIDES:
        there = of_seeds(found, side)
        less = "" if side == "IPPO" else difference(returns[side], returns["IPPO"])
        seconds = f"{np.median([one['seconds'] for one in there]):.0f}" if there else "missing"
        count = f"{np.median([one['seconds'] * one['updates_per_second'] for one in there]):,.0f}" if there else ""
        lines.append(f"| {side} | {entry(returns[side], len(SEEDS))} | {less} | {count} | {seconds} |")
    lines += [
        "",
        f"Speed of PPO on {ROWS} rows of an environment that costs nothing, in decisions of agents for each second of "
        f"one core, acting and learning; median of {REPEATS}, and the least and greatest:",
        "",
        "| rows | decisions a core second |",
        "|---|---|",
    ]
    for name, agents in SPEEDS.items():
        cell = found.get(f"speed-{name}")
        rates = cell["steps_per_core_second"] if cell else []
        words = f"{rates[len(rates) // 2]:,} ({rates[0]:,} to {rates[-1]:,})" if rates else "missing"
        lines.append(f"| {ROWS // agents} environments of {name} | {words} |")
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


def quick_cell() -> dict[str, Any]:
    """A few steps of QMIX."""
    small = {"num_envs": 2, "hidden": (8,), "initial_steps": 60, "updates_per_step": 0.05, "mixing_hidden": 8}
    return training_cell("qmix", small, None, TASK, 0, 240, 2, evaluations=1)


def main() -> None:
    """The command line."""
    study_main(__doc__, "agents", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
