"""Safe sets learned by FISOR's feasible value from 200,000 mixed transitions, against the systems' exact ones.

    python benchmarks/safe_sets.py              # all cells that are missing, then results/safe_sets.md
    python benchmarks/safe_sets.py --quick      # one short cell, for CI
    python benchmarks/safe_sets.py --only dubins-obstacles-s0

A cell trains V_h and Q_h alone (FISOR's two updates of the constraint, nothing else of it) on `mixed` data of a native
system with its signed margin, and compares {max(V_h, h of the state) <= 0} with the true undiscounted set: of the
double integrator its closed form, of the Dubins car the grid solution of `surefoot reach`. Compared on a grid over the
box that the data visit. IoU: of the two sets; false safe: states held safe that are not, over the size of the true
set. tau and discount stand in every row.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import numpy as np
import torch
from cells import Results
from study import Cell, study_main
from torch import Tensor

from surefoot.core.engine.agent import Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.native import kernels
from surefoot.data.store import store_from_dataset
from surefoot.envs.systems import system
from surefoot.runs.embedded import generate
from surefoot.safe.fisor import FISOR
from surefoot.safe.reachability.measures import compare
from surefoot.safety.reach import reach

TRANSITIONS, SEEDS = 200_000, (0, 1, 2)


class SafeSet(FISOR):
    """FISOR's feasible value and critics alone."""

    def updates(self) -> list[Update]:
        """The last two: reward and policy are left as they are."""
        return super().updates()[3:]


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a safe set is learned."""

    tau: float
    discount: float
    steps: int
    batch_size: int = 256
    signal: str = "margin"
    learning_rate: float = 1e-3  # falls to 0 along a cosine
    seeds: tuple[int, ...] = SEEDS


SETTINGS = {
    "double-integrator": {
        "tuned": Setting(0.99, 0.995, 20_000),
        "fisor": Setting(0.9, 0.99, 20_000, seeds=(0,)),
        "published": Setting(0.9, 0.99, 20_000, signal="published", seeds=(0,)),
    },
    "dubins-obstacles": {
        "tuned": Setting(0.99, 0.99, 20_000),
        "fisor": Setting(0.9, 0.99, 20_000, seeds=(0,)),
        "published": Setting(0.9, 0.99, 20_000, signal="published", seeds=(0,)),
    },
}


@functools.cache
def problem(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """(N, S) states, (N,) h of each and (N,) its true value, safe where <= 0."""
    known = system(f"native/{name}")
    if name == "double-integrator":
        places, speeds = np.linspace(-0.99, 0.99, 23), np.linspace(-1.0, 1.0, 17)  # all keep the constraint now
        axes = np.meshgrid(places, places, speeds, speeds, indexing="ij")
        states = torch.from_numpy(np.stack(axes, -1).reshape(-1, 4))
        h = states[:, :2].abs().amax(-1) - 1
        return states, h, -known.safe_value(states, parameters(name, len(states)))  # type: ignore[attr-defined]
    solved = reach(f"native/{name}").solution
    states = solved.grid.states()
    visited = (states[:, 0] >= -3.5) & (states[:, 0] <= 2.5) & (states[:, 1].abs() <= 2)
    return states[visited], solved.h.reshape(-1)[visited].double(), solved.values.reshape(-1)[visited].double()


def parameters(name: str, rows: int) -> Tensor:
    """(rows, P) defaults of a system."""
    defaults = torch.tensor([p.default for p in system(f"native/{name}").parameters], dtype=torch.float64)
    return defaults.expand(rows, -1)


def compared(agent: FISOR, name: str) -> dict[str, float]:
    """The learned set against the true one."""
    states, h, truth = problem(name)
    seen = system(f"native/{name}").observe(states, parameters(name, len(states))).float()
    values = torch.cat([agent.feasible_value(part) for part in seen.split(1 << 14)]).double()
    found = compare(torch.maximum(values, h), truth)
    return {key: getattr(found, key) for key in ("iou", "false_safe", "false_unsafe", "true_share")}


def cell(name: str, setting: Setting, seed: int, transitions: int = TRANSITIONS) -> dict[str, Any]:
    """Train and compare."""
    torch.set_num_threads(1)
    kernels.keep_memory()
    dataset = generate(f"native/{name}", seed=seed, transitions=transitions, behaviour="mixed")
    torch.manual_seed(seed)
    agent = SafeSet(
        dataset,
        signal=setting.signal,
        cost_expectile=setting.tau,
        discount=setting.discount,
        learning_rate=setting.learning_rate,
    )
    store = store_from_dataset(agent.prepare(dataset), agent.required_columns)
    learner = Learner(
        [agent],
        [seed],
        Uniform(store),
        batch_size=setting.batch_size,
        planned_steps=setting.steps,
        kernels=True,
    )
    began, curve = time.process_time(), []
    for _ in range(5):
        learner.run(setting.steps // 5)
        curve.append({"step": learner.step, **compared(learner.extract(0), name)})  # type: ignore[arg-type]
    return {
        "system": name,
        "seed": seed,
        "transitions": len(dataset),
        "violating_steps": float((dataset.costs > 0).mean()),
        "setting": dataclasses.asdict(setting),
        "curve": curve,
        **compared(learner.extract(0), name),  # type: ignore[arg-type]
        "cpu_seconds": time.process_time() - began,
    }


def cells() -> list[Cell]:
    """All of them."""
    made = []
    for name, settings in SETTINGS.items():
        for label, setting in settings.items():
            for seed in setting.seeds:
                made.append(Cell(f"{name}-{label}-s{seed}", functools.partial(cell, name, setting, seed)))
    return made


def table(found: Results) -> list[str]:
    """One row per system and setting: means over the seeds, worst in brackets."""
    lines = [
        "# Safe sets learned from data",
        "",
        f"The feasible value of FISOR `small` from {TRANSITIONS:,} transitions of `mixed` behaviour, beside the closed "
        "form (double integrator) or the undiscounted grid solution (Dubins car); grid and measures as in "
        "benchmarks/safe_sets.py. Means over the seeds, the worst seed in brackets.",
        "",
        "| system | h | tau | discount | steps | seeds | IoU | false safe | false unsafe |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, settings in SETTINGS.items():
        for label, s in settings.items():
            cells_of = [found[n] for n in (f"{name}-{label}-s{seed}" for seed in s.seeds) if n in found]
            start = f"| {name} | {s.signal} | {s.tau} | {s.discount} | {s.steps:,} "
            if not cells_of:
                lines.append(start + "| missing | | | |")
                continue
            columns = {key: [one[key] for one in cells_of] for key in ("iou", "false_safe", "false_unsafe")}
            means = {key: sum(values) / len(values) for key, values in columns.items()}
            lines.append(
                start + f"| {len(cells_of)} "
                f"| {means['iou']:.3f} ({min(columns['iou']):.3f}) "
                f"| {means['false_safe']:.3f} ({max(columns['false_safe']):.3f}) | {means['false_unsafe']:.3f} |"
            )
    return [*lines, "", f"{len(found)} of {len(cells())} cells are there."]


if __name__ == "__main__":
    quick = Cell("quick", lambda: cell("double-integrator", Setting(0.9, 0.99, 200), 0, 5000))
    study_main(__doc__, "safe_sets", cells(), table, quick)
