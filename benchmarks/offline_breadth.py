"""Every algorithm that learns returns from data alone and without a model, on six real files, one setting each.

python benchmarks/offline_breadth.py              # compute what is missing, then write the table
python benchmarks/offline_breadth.py --table      # only the table
python benchmarks/offline_breadth.py --quick      # one small cell, for CI

AlignDiff, which learns to do as much of an attribute as is asked for, is left out: a mean return says nothing of it.
All see normalised observations. The defaults otherwise, but that flows and diffusions have layers of 256, so that a
cell stays below 40 minutes on one core. BC, TD3+BC, IQL and RIQL on the first two files are offline_table.py's cells.
"""

from __future__ import annotations

import functools
from typing import Any

import h5py
import numpy as np
from cells import Results, read_cells
from study import SHARED, Cell, results, shared, study_main, training_cell

from surefoot.data import Dataset, normalized_score, reference_scores
from surefoot.evaluation import hierarchical_interval

UPDATES, EPISODES, SEEDS = 30_000, 50, 3
FILES = {
    "hopper-v5-medium-sb3": "Hopper-v5",
    "walker2d-v5-mixed-sb3": "Walker2d-v5",
    "halfcheetah-v5-mixed-sb3": "HalfCheetah-v5",
    "adroit-door-expert-dapg": "AdroitHandDoor-v1",
    "adroit-pen-expert-dapg": "AdroitHandPen-v1",
    "pointmaze-medium-waypoint": "PointMaze_Medium-v3",
}
NORMALISED = {"normalization": "observations"}
FLOW = {**NORMALISED, "hidden": (256, 256, 256, 256)}
QAM = {**NORMALISED, "hidden": (256, 256), "critics": 2}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {}),
    "bc10": ("bc", {"preset": "ten_percent"}),
    "td3bc": ("td3bc", {}),
    "iql": ("iql", {"preset": "corl"}),
    "riql": ("riql", {}),
    "rebrac": ("rebrac", {**NORMALISED, "learning_rate": 3e-4}),
    "awac": ("awac", {}),
    "xql": ("xql", NORMALISED),
    "dvl": ("dvl", NORMALISED),
    "edac": ("edac", NORMALISED),
    "sac_n": ("sac_n", NORMALISED),
    "msg": ("msg", NORMALISED),
    "mcq": ("mcq", NORMALISED),
    "cql": ("cql", NORMALISED),
    "famo2o": ("famo2o", {**NORMALISED, "rewards": "none"}),
    "recoil": ("recoil", NORMALISED),
    "calql": ("calql", NORMALISED),
    "famo2o_cql": ("famo2o_cql", NORMALISED),
    "bisim_iql": ("bisim_iql", {}),
    "rcsl": ("rcsl", {}),
    "dt": ("dt", {"preset": "small"}),
    "flow_bc": ("flow_bc", FLOW),
    "diffusion_bc": ("diffusion_bc", {**NORMALISED, "hidden": (256, 256, 256)}),
    "awr_flow": ("awr_flow", NORMALISED),
    "fql": ("fql", FLOW),
    "ifql": ("ifql", FLOW),
    "idql": ("idql", NORMALISED),
    "qc": ("qc", FLOW),
    "qam": ("qam", QAM),
    "qam_f": ("qam_f", QAM),
    "qam_e": ("qam_e", QAM),
    "raft_flow": ("raft_flow", NORMALISED),
    "qc_fql": ("qc_fql", FLOW),
}
MAZE = "pointmaze-medium-waypoint"
"""Its goals stand beside its observations; the environment's have them within: position, velocity, position, goal."""
BEFORE = ("bc", "td3bc", "iql", "riql")
"""Of offline_table.py, at the same settings."""


def before(algorithm: str, file: str) -> bool:
    """Whether this cell is one of offline_table.py."""
    return algorithm in BEFORE and file in list(FILES)[:2]


def data(file: str) -> Dataset:
    """A file as its environment gives observations."""
    found = shared(file)
    if file != MAZE:
        return found
    with h5py.File(SHARED / f"{file}.hdf5") as stored:
        goals = stored["infos/goal"][:]
    assert len(goals) == len(found)
    here, after = (np.concatenate([x, x[:, :2], goals], 1) for x in (found.observations, found.next_observations))
    return found.replace(observations=here, next_observations=after)


def cells() -> list[Cell]:
    """One seed of everything before the next."""
    return [
        Cell(
            f"{label}-{file}-s{seed}",
            functools.partial(
                training_cell, name, options, functools.partial(data, file), environment, seed, UPDATES, EPISODES
            ),
        )
        for seed in range(SEEDS)
        for file, environment in FILES.items()
        for label, (name, options) in ALGORITHMS.items()
        if not before(label, file)
    ]


def table(found: Results) -> list[str]:
    """A row an algorithm, a column a file."""
    every = {**read_cells(results("offline_table")), **found}
    names = [(label, file) for label in ALGORITHMS for file in FILES]
    have = {pair: [every[n] for s in range(SEEDS) if (n := f"{pair[0]}-{pair[1]}-s{s}") in every] for pair in names}
    lines = [
        "# Offline algorithms on six real files",
        "",
        f"{UPDATES:,} updates, {SEEDS} seeds, {EPISODES} episodes a seed with the mean action, last checkpoint, "
        "normalised observations, one setting an algorithm. Mean return with its 95 % interval over seeds and initial "
        "states, in brackets D4RL's score where the task has reference returns. By `python "
        "benchmarks/offline_breadth.py` on one core of an x86 server CPU; BC, TD3+BC, IQL and RIQL on the first two "
        "files are the cells of `offline_table.py`. AlignDiff is left out, which learns to do as much of an attribute "
        "as is asked for, whatever it returns.",
        "",
        f"| algorithm | {' | '.join(FILES)} |",
        f"|---|{'---|' * len(FILES)}",
    ]
    for label in ALGORITHMS:
        lines.append(f"| {label} | {' | '.join(_entry(have[label, file], FILES[file]) for file in FILES)} |")
    done = sum(map(len, have.values()))
    return [*lines, "", f"{done} of {len(names) * SEEDS} cells are there."]


def _entry(rows: list[dict[str, Any]], environment: str) -> str:
    if not rows:
        return "missing"
    interval = hierarchical_interval([np.asarray(row["returns"]) for row in rows])
    digits, reference = (2 if abs(interval.estimate) < 10 else 0), reference_scores(environment)
    text = f"{interval.estimate:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    if reference is not None:
        text += f" ({normalized_score(interval.estimate, reference):.1f})"
    return text if len(rows) == SEEDS else f"{text} ({len(rows)} of {SEEDS} seeds)"


if __name__ == "__main__":
    pendulum = functools.partial(shared, "pendulum-mixed-sb3")
    quick = Cell("quick", functools.partial(training_cell, "awac", {}, pendulum, "Pendulum-v1", 0, 100, 2))
    study_main(__doc__, "offline_breadth", cells(), table, quick)
