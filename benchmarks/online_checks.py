"""Do the online algorithms reach what others have measured on small tasks?

Thresholds are what reference code reaches, or ours where there is none.

python benchmarks/online_checks.py              # compute what is missing, then write the table
python benchmarks/online_checks.py --table      # only the table
python benchmarks/online_checks.py --quick      # one small cell, for CI
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, entry, study_main, training_cell

EPISODES = 20


class Check(NamedTuple):
    """One algorithm on one small task, and the return that it must reach."""

    name: str
    algorithm: str
    environment: str
    steps: int
    options: dict[str, Any]
    threshold: float
    over: str = "mean"  # of the seeds: mean or median
    seeds: int = 3
    ours: bool = False  # the threshold is ours: no reference code has a result here
    tag: str = ""  # in the names of its cells, where the algorithm has several checks on the task
    batch_size: int = 256


REDQ = {"critic_steps": 4, "initial_steps": 500}
CHECKS = (
    Check("PPO", "ppo", "CartPole-v1", 100_000, {"preset": "zoo-cartpole", "schedule": "linear"}, 475),
    Check("A2C", "a2c", "CartPole-v1", 200_000, {"num_envs": 8}, 450),
    Check("REINFORCE", "reinforce", "CartPole-v1", 200_000, {}, 400),
    Check("PPO", "ppo", "Pendulum-v1", 100_000, {"preset": "zoo-pendulum"}, -250, "median", 5),
    Check("PPO, gSDE", "ppo", "Pendulum-v1", 100_000, {"preset": "zoo-pendulum-gsde"}, -250, seeds=5, tag="-gsde"),
    Check("SAC", "sac", "Pendulum-v1", 20_000, {f"{n}_learning_rate": 1e-3 for n in ("actor", "critic")}, -200),
    Check("TD3", "td3", "Pendulum-v1", 20_000, {"preset": "zoo-pendulum"}, -200),
    Check("REDQ", "redq", "Pendulum-v1", 5_000, REDQ, -250),
    Check("DroQ", "droq", "Pendulum-v1", 5_000, REDQ, -250, ours=True),
    Check("DQN", "dqn", "CartPole-v1", 50_000, {"preset": "zoo-cartpole"}, 475, batch_size=64),
    Check("TRPO", "trpo", "CartPole-v1", 100_000, {}, 450, ours=True),
    Check("MDPO", "mdpo", "CartPole-v1", 100_000, {}, 450, ours=True),
    Check("MDPO, off-policy", "mdpo_off", "Pendulum-v1", 20_000, {}, -250, ours=True),
    Check("AVG", "avg", "Pendulum-v1", 60_000, {}, -300, ours=True),
)


def cell(check: Check, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed."""
    problem = (check.algorithm, check.options, None, check.environment)
    return training_cell(*problem, seed, check.steps, EPISODES, batch_size=check.batch_size)


def cell_name(check: Check, seed: int) -> str:
    """Of an algorithm, task and seed."""
    return f"{check.algorithm}{check.tag}-{check.environment}-s{seed}"


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next."""
    return [
        Cell(cell_name(check, seed), functools.partial(cell, check, seed))
        for seed in range(5)
        for check in CHECKS
        if seed < check.seeds
    ]


def table(found: Results) -> list[str]:
    """The Markdown table of the cells that are there."""
    lines = [
        "# Online algorithms on small tasks",
        "",
        f"Mean return of {EPISODES} episodes a seed with the last policy's mean action (most probable choice), with "
        "its 95 % interval over seeds and initial states. Written by `python benchmarks/online_checks.py`.",
        "",
        "| algorithm | environment | steps | return | each seed | wanted | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for check in CHECKS:
        names = [cell_name(check, seed) for seed in range(check.seeds)]
        returns = [np.asarray(found[name]["returns"]) for name in names if name in found]
        means = [float(one.mean()) for one in returns]
        reached = "missing"
        if len(means) == check.seeds:
            reached = "yes" if getattr(np, check.over)(means) >= check.threshold else "NO"
        row = [check.name, check.environment, f"{check.steps:,}", entry(returns, check.seeds)]
        row += [
            ", ".join(f"{mean:.0f}" for mean in means),
            f"{check.over} >= {check.threshold:.0f}{' (ours)' if check.ours else ''}",
            reached,
        ]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", f"{len(found)} of {len(cells())} cells are there."]
    return lines


def quick_cell() -> dict[str, Any]:
    """A few blocks of PPO."""
    return training_cell("ppo", {"preset": "zoo-cartpole"}, None, "CartPole-v1", 0, 512, 2)


def main() -> None:
    """The command line."""
    study_main(__doc__, "online_checks", cells(), table, Cell("quick", quick_cell))


if __name__ == "__main__":
    main()
