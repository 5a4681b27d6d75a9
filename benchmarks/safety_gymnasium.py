"""Safe algorithms on three tasks of Safety-Gymnasium, which runs in an older python of its own.

    python3.10 -m venv /tmp/py310; /tmp/py310/bin/pip install safety-gymnasium   # once; see SUREFOOT_SAFETY_PYTHON
    python benchmarks/safety_gymnasium.py                  # compute what is missing, then write the table
    python benchmarks/safety_gymnasium.py --only circle    # only these cells
    python benchmarks/safety_gymnasium.py --table          # only the table
    python benchmarks/safety_gymnasium.py --quick          # one small cell in a system of ours, for CI

Online: PPO-Lag and CPO, 1,000,000 steps, limit 25. Offline: data are recorded from PPO-Lag, trained for 100,000 steps
at each of several limits, as `surefoot datasets record` does; then BC-Safe, CPQ, CDT and FISOR learn from them for each
of DSRL's three limits. Returns are normalised by the least and greatest return of the data's episodes and costs by the
limit (Liu et al., 2024, "Datasets and Benchmarks for Offline Safe Reinforcement Learning"), 20 episodes. Runs
and data are kept under build/safety_gymnasium, and an interrupted run is resumed. A million steps take about an hour:
MuJoCo compiles the model anew at each reset, a second each. Published figures are OmniSafe's after 1e7 steps (its
benchmarks/on-policy/README.md).
"""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
from cells import Results
from study import Cell, study_main, training_cell

from surefoot.data import load, save
from surefoot.data.dataset import Dataset
from surefoot.evaluation import cost_interval, hierarchical_interval
from surefoot.evaluation.tables import format_bounds
from surefoot.play.actors import actor, drawing
from surefoot.play.record import record

PYTHON = os.environ.get("SUREFOOT_SAFETY_PYTHON", "/tmp/py310/bin/python")
KEPT = pathlib.Path(__file__).parent.parent / "build" / "safety_gymnasium"
SEEDS, EPISODES = (0, 1), 20
STEPS, ONLINE, LIMIT = 1_000_000, ("ppo_lag", "cpo"), 25.0
BEHAVIOUR_LIMITS, BEHAVIOUR_STEPS, RECORDED = (10.0, 25.0, 50.0, 100.0), 100_000, 40
UPDATES, LIMITS = 30_000, (20.0, 40.0, 80.0)


class Task(NamedTuple):
    """An id of Safety-Gymnasium, and OmniSafe's mean return and cost of its two algorithms."""

    id: str
    published: dict[str, str]


TASKS = {
    "circle": Task("SafetyPointCircle1-v0", {}),
    "goal": Task("SafetyPointGoal1-v0", {"ppo_lag": "13.0 / 25.8", "cpo": "20.5 / 28.8"}),
    "button": Task("SafetyPointButton1-v0", {"ppo_lag": "4.6 / 20.8", "cpo": "4.0 / 40.0"}),
}
OFFLINE: dict[str, dict[str, Any]] = {
    "bc_safe": {},
    "fisor": {"preset": "small"},
    "cpq": {"preset": "small"},
    "cdt": {"preset": "small"},
}
"""Algorithm -> options. FISOR asks for no violation at all, whatever the limit is."""
BATCHES = {"cdt": 64}


def environment(task: str) -> str:
    """Its name here."""
    return f"other:{PYTHON}:safety_gymnasium:{TASKS[task].id}"


def acted(task: str, algorithm: str, seed: int, limit: float, name: str) -> dict[str, Any]:
    """An online run, started or continued."""
    options, out = {"cost_limit": limit}, str(KEPT / name)
    return training_cell(algorithm, options, None, environment(task), seed, STEPS, EPISODES, evaluations=10, out=out)


def behaved(task: str, limit: float, name: str) -> dict[str, Any]:
    """A run whose policy is recorded; resets take a second there, so that it is evaluated little."""
    options, out = {"cost_limit": limit}, str(KEPT / name)
    return training_cell("ppo_lag", options, None, environment(task), 0, BEHAVIOUR_STEPS, 2, evaluations=1, out=out)


def data_of(task: str) -> Dataset:
    """Episodes of PPO-Lag at several limits, recorded at first use.

    Raises:
        SystemExit: not all of its policies are trained yet.
    """
    path = KEPT / f"{task}.hdf5"
    if not path.is_file():
        runs = [KEPT / f"{task}-behaviour-{limit:g}" for limit in BEHAVIOUR_LIMITS]
        missing = [run.name for run in runs if not (run / "summary.json").is_file()]
        if missing:
            raise SystemExit(f"the data of {task} need {', '.join(missing)}: run --only {task}-behaviour first")
        acting = [drawing(actor(run, None, environment(task), trust=True)) for run in runs]
        save(record(acting, RECORDED, seed=7), path)
    return load(path)


def described(task: str) -> dict[str, Any]:
    """What was recorded."""
    data = data_of(task)
    assert data.costs is not None
    returns, costs = (np.bincount(data.episode_ids, column) for column in (data.rewards, data.costs))
    kept = {name: [round(float(one), 3) for one in values] for name, values in (("returns", returns), ("costs", costs))}
    return {"transitions": len(data), **kept}


def learned(task: str, algorithm: str, limit: float, seed: int) -> dict[str, Any]:
    """A run from the recorded data."""
    options = dict(OFFLINE[algorithm])
    if algorithm != "fisor":
        options["cost_limit"] = limit
    where, data = environment(task), functools.partial(data_of, task)
    size = BATCHES.get(algorithm, 256)
    return training_cell(algorithm, options, data, where, seed, UPDATES, EPISODES, batch_size=size)


def offline_name(task: str, algorithm: str, limit: float, seed: int) -> str:
    """Of a cell; FISOR's run serves all limits."""
    return f"{task}-{algorithm}-s{seed}" if algorithm == "fisor" else f"{task}-{algorithm}-{limit:g}-s{seed}"


def cells() -> list[Cell]:
    """What decides first: data of all tasks, then the middle limit and online runs, one seed, then the rest."""
    found = []
    for task in TASKS:
        for limit in BEHAVIOUR_LIMITS:
            name = f"{task}-behaviour-{limit:g}"
            found.append(Cell(name, functools.partial(behaved, task, limit, name)))
        found.append(Cell(f"{task}-data", functools.partial(described, task)))
    for seed in SEEDS:
        for limit in sorted(LIMITS, key=lambda one: abs(one - LIMITS[1])):
            offline: dict[str, Cell] = {}
            for algorithm in OFFLINE:
                for task in TASKS:
                    name = offline_name(task, algorithm, limit, seed)
                    offline[name] = Cell(name, functools.partial(learned, task, algorithm, limit, seed))
            known = {cell.name for cell in found}  # FISOR has one run for all limits
            found += [cell for name, cell in offline.items() if name not in known]
            if limit == LIMITS[1]:
                for algorithm in ONLINE:
                    for task in TASKS:
                        name = f"{task}-{algorithm}-s{seed}"
                        found.append(Cell(name, functools.partial(acted, task, algorithm, seed, LIMIT, name)))
    return found


def bounds(found: list[dict[str, Any]], key: str, low: float = 0.0, size: float = 1.0) -> str:
    """Mean and interval over seeds and episodes of (x - low) / size."""
    values = [(np.asarray(one[key]) - low) / size for one in found]
    return format_bounds((cost_interval if key == "costs" else hierarchical_interval)(values).to_json())


def table(found: Results) -> list[str]:
    """Two tables, and how many cells are missing."""
    lines = [
        "# Safe algorithms on Safety-Gymnasium",
        "",
        f"{EPISODES} episodes a seed, seeds {', '.join(map(str, SEEDS))}, intervals of 95 % over seeds and initial "
        "states. Written by `python benchmarks/safety_gymnasium.py`, which says what was trained how long.",
        "",
        f"## Online learning, {STEPS:,} steps, limit {LIMIT:g}",
        "",
        "| task | algorithm | seeds | return [95 %] | cost [95 %] | OmniSafe, 1e7 steps: return / cost |",
        "|---|---|---|---|---|---|",
    ]
    for task, facts in TASKS.items():
        for algorithm in ONLINE:
            own = [found[n] for n in (f"{task}-{algorithm}-s{seed}" for seed in SEEDS) if n in found]
            if not own:
                continue
            shown = [bounds(own, "returns"), bounds(own, "costs")]
            published = facts.published.get(algorithm, "not published")
            lines.append(f"| {facts.id} | {algorithm} | {len(own)} | {' | '.join(shown)} | {published} |")
    lines += [
        "",
        f"## Learning from data of PPO-Lag at limits {', '.join(f'{limit:g}' for limit in BEHAVIOUR_LIMITS)}",
        "",
        "Normalised returns and costs; a cost of at most 1 is within the limit.",
        "",
        "| task | algorithm | limit | seeds | normalised return [95 %] | normalised cost [95 %] |",
        "|---|---|---|---|---|---|",
    ]
    for task, facts in TASKS.items():
        data = found.get(f"{task}-data")
        for algorithm in OFFLINE:
            for limit in LIMITS:
                names = [offline_name(task, algorithm, limit, seed) for seed in SEEDS]
                own = [found[name] for name in names if name in found]
                if not own or data is None:
                    continue
                low, high = min(data["returns"]), max(data["returns"])
                shown = [bounds(own, "returns", low, high - low), bounds(own, "costs", size=limit)]
                lines.append(f"| {facts.id} | {algorithm} | {limit:g} | {len(own)} | {' | '.join(shown)} |")
        if data is not None:
            returns, costs = np.asarray(data["returns"]), np.asarray(data["costs"])
            shown = [
                f"{returns.mean():.1f} ({returns.min():.1f} to {returns.max():.1f})",
                f"{costs.mean():.1f} ({costs.min():.0f} to {costs.max():.0f})",
            ]
            lines.append(f"| {facts.id} | the data, not normalised: mean (range) | | | {' | '.join(shown)} |")
    lines += ["", "Rows without a cell are left out. Cells that are there:", ""]
    for task in TASKS:
        own_cells = [cell.name for cell in cells() if cell.name.startswith(f"{task}-")]
        missing = [name for name in own_cells if name not in found]
        some = f"; missing: {', '.join(missing)}" if 0 < len(missing) < len(own_cells) else ""
        lines.append(f"- {TASKS[task].id}: {len(own_cells) - len(missing)} of {len(own_cells)}{some}.")
    return lines


def quick_cell() -> dict[str, Any]:
    """The chain in a system of ours: a few steps of PPO-Lag, its recorded episodes, a few updates of BC-Safe."""
    import tempfile

    small = {"num_envs": 2, "horizon": 64, "minibatches": 2, "epochs": 2, "hidden": (16, 16)}
    where = "native/dubins-obstacles"
    with tempfile.TemporaryDirectory() as folder:
        training_cell("ppo_lag", small, None, where, 0, 256, 2, evaluations=2, out=f"{folder}/run")
        data = record([drawing(actor(f"{folder}/run", None, where))], 4)
    return training_cell("bc_safe", {"cost_limit": 1e6, "hidden": (16, 16)}, data, where, 0, 20, 2)


if __name__ == "__main__":
    study_main(__doc__, "safety_gymnasium", cells(), table, Cell("quick", quick_cell))
