"""Hopper-v5 from medium data: a flow clones them in chunks, ReinFlow fine-tunes the clone, PPO begins from nothing.

    python benchmarks/finetune_hopper.py                 # compute what is missing, then write the table
    python benchmarks/finetune_hopper.py --only s0
    python benchmarks/finetune_hopper.py --table
    python benchmarks/finetune_hopper.py --quick         # one small cell, for CI

Published fine-tuning of Hopper takes 80 million steps in 40 environments. 300,000 steps are what a laptop acts in
minutes, so that blocks are smaller here: 8 environments, 64 decisions of four actions. PPO decides on single actions,
with its own defaults. Both are given the same steps in the environment; the clone beside them has taken none.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any

import numpy as np
from cells import Results
from study import Cell, entry, shared, study_main, training_cell

DATA, ENVIRONMENT = "hopper-v5-medium-sb3", "Hopper-v5"
STEPS, CLONING, EPISODES, SEEDS = 300_000, 30_000, 50, (0, 1)
CLONE: dict[str, Any] = {"chunk": 4, "flow_steps": 4, "hidden": (256, 256, 256)}
REINFLOW: dict[str, Any] = {
    "preset": "hopper",
    "clip_each": True,
    "critic_warmup": 2,
    "num_envs": 8,
    "horizon": 64,
    "minibatches": 4,
    "epochs": 5,
    "learning_rate": 1e-4,
    "value_learning_rate": 1e-3,
}
CLONES = pathlib.Path(__file__).resolve().parents[1] / "build" / "finetune_hopper"
"""Runs of the clones, which two cells share."""


def clone(seed: int, steps: int, episodes: int, out: pathlib.Path) -> dict[str, Any]:
    """The clone of one seed; its run stays in `out`."""
    return training_cell(
        "flow_bc", CLONE, functools.partial(shared, DATA), ENVIRONMENT, seed, steps, episodes, out=str(out)
    )


def reinflow(
    seed: int, steps: int = STEPS, cloning: int = CLONING, episodes: int = EPISODES, folder: pathlib.Path = CLONES
) -> dict[str, Any]:
    """ReinFlow from the clone of the same seed."""
    out = folder / f"clone-s{seed}"
    clone(seed, cloning, episodes, out)
    return training_cell("reinflow", REINFLOW, None, ENVIRONMENT, seed, steps, episodes, evaluations=6, init=str(out))


def ppo(seed: int) -> dict[str, Any]:
    """PPO from nothing."""
    return training_cell("ppo", {}, None, ENVIRONMENT, seed, STEPS, EPISODES, evaluations=6)


def quick() -> dict[str, Any]:
    """A few updates of the clone and of ReinFlow."""
    with tempfile.TemporaryDirectory() as folder:
        return reinflow(0, 8192, 50, 1, pathlib.Path(folder))


METHODS = {
    "clone": ("flow BC, chunks of 4", lambda seed: clone(seed, CLONING, EPISODES, CLONES / f"clone-s{seed}")),
    "reinflow": ("ReinFlow from it", reinflow),
    "ppo": ("PPO from nothing", ppo),
}
CELLS = [
    Cell(f"{name}-s{seed}", functools.partial(compute, seed))
    for seed in SEEDS
    for name, (_, compute) in METHODS.items()
]


def table(found: Results) -> list[str]:
    """Returns of the last policies."""
    lines = [
        "# Hopper-v5: a clone, and what 300,000 steps add",
        "",
        f"`{DATA}`, {CLONING:,} updates of cloning; {STEPS:,} steps in the environment; {EPISODES} episodes a seed at "
        "the end. Mean return with its 95 % interval over seeds and episodes; two seeds show a direction. Minutes are "
        "those of one core that other work shared. ReinFlow clips each step of its flow here (`clip_each=true`), as "
        "its authors' code does and the clone does not: so at 0k it plays another policy than the clone.",
        "",
        "| method | return | of seeds | minutes | while it trained: steps and mean return of 5 episodes |",
        "|---|---|---|---|---|",
    ]
    for name, (title, _) in METHODS.items():
        there = [found[f"{name}-s{seed}"] for seed in SEEDS if f"{name}-s{seed}" in found]
        returns = [np.array(one["returns"]) for one in there]
        each = ", ".join(f"{np.mean(one['returns']):.0f}" for one in there)
        minutes = f"{np.mean([one['seconds'] for one in there]) / 60:.0f}" if there else ""
        curve = "; ".join(", ".join(f"{step // 1000}k {mean:.0f}" for step, mean in one["curve"]) for one in there)
        lines.append(f"| {title} | {entry(returns, len(SEEDS))} | {each} | {minutes} | {curve} |")
    return [*lines, "", f"{len(found)} of {len(CELLS)} cells are there."]


if __name__ == "__main__":
    study_main(__doc__, "finetune_hopper", CELLS, table, Cell("quick", quick))
