"""BC, TD3+BC, IQL and RIQL on three real datasets, and IQL and TD3+BC beside CORL on the same files.

    python benchmarks/offline_table.py              # computes what is missing, then writes the table
    python benchmarks/offline_table.py --table      # only writes the table
    python benchmarks/offline_table.py --quick      # one small cell, for CI

All algorithms see normalised observations here (IQL with its `corl` preset), so the comparison is of the
algorithms; the peer's cells come from benchmarks/peers/corl_train.py.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import tempfile
from typing import Any

import numpy as np
from study import RESULTS, Cell, carry_out, read_cells, shared, training_cell, write_table

from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation import difference_interval, hierarchical_interval

STEPS, EPISODES, SEEDS = 30_000, 50, (0, 1, 2)
DATASETS = {
    "hopper-v5-medium-sb3": "Hopper-v5",
    "walker2d-v5-mixed-sb3": "Walker2d-v5",
    "pendulum-mixed-sb3": "Pendulum-v1",
}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {}),
    "td3bc": ("td3bc", {}),
    "iql": ("iql", {"preset": "corl"}),
    "riql": ("riql", {}),
}
PEERS = [("iql", dataset) for dataset in DATASETS] + [("td3bc", "hopper-v5-medium-sb3")]
PEER_FILES = {"iql": "iql", "td3bc": "td3bc"}


def cells() -> list[Cell]:
    """All cells, one seed of everything before the next seed."""
    return [
        Cell(
            f"{algorithm}-{dataset}-s{seed}",
            functools.partial(
                training_cell, name, options, functools.partial(shared, dataset), environment, seed, STEPS, EPISODES
            ),
        )
        for seed in SEEDS
        for dataset, environment in DATASETS.items()
        for algorithm, (name, options) in ALGORITHMS.items()
    ]


def returns_of(found: dict[str, dict[str, Any]], algorithm: str, dataset: str) -> list[np.ndarray]:
    """Per-episode returns of each seed that is there."""
    names = [f"{algorithm}-{dataset}-s{seed}" for seed in SEEDS]
    return [np.asarray(found[name]["returns"]) for name in names if name in found]


def table(folder: pathlib.Path) -> list[str]:
    """The Markdown table of the cells that are there."""
    found = read_cells([cell.name for cell in cells()], folder)
    peers = read_cells([f"{PEER_FILES[a]}-{d}-s{s}" for a, d in PEERS for s in SEEDS], RESULTS / "peers")
    lines = [
        "# Offline algorithms on three real datasets",
        "",
        f"{STEPS:,} updates, {len(SEEDS)} seeds, {EPISODES} episodes a seed with the mean action, last checkpoint. "
        "Mean return with its 95 % interval over seeds and initial states; in brackets the D4RL-normalised mean. "
        "Written by `python benchmarks/offline_table.py` on 2 cores of an x86 server CPU.",
        "",
        "| dataset | behaviour | BC | TD3+BC | IQL | RIQL |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, environment in DATASETS.items():
        reference = reference_scores(environment)
        behaviour = shared(dataset).episode_returns.mean()
        entries = [f"{behaviour:.0f}"]
        for algorithm in ALGORITHMS:
            entries.append(entry(returns_of(found, algorithm, dataset), reference))
        lines.append(f"| {dataset} | " + " | ".join(entries) + " |")
    lines += ["", "## Beside CORL", ""]
    lines += ["CORL's own scripts, trained by us on the same files for the same steps with the same settings.", ""]
    lines += [
        "| algorithm | dataset | ours | CORL | ours - CORL, 95 % interval | half-width |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm, dataset in PEERS:
        ours, theirs = returns_of(found, algorithm, dataset), returns_of(peers, PEER_FILES[algorithm], dataset)
        difference = "missing", "missing"
        if len(ours) > 1 and len(theirs) > 1:
            interval = difference_interval(ours, theirs, shared_episodes=False)
            difference = (
                f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]",
                f"{(interval.high - interval.low) / 2:.0f}",
            )
        cells_of = " | ".join([entry(ours, None), entry(theirs, None), *difference])
        lines.append(f"| {algorithm} | {dataset} | {cells_of} |")
    done = len(found) + len(peers)
    lines += ["", f"{done} of {len(cells()) + len(PEERS) * len(SEEDS)} cells are there."]
    return lines


def entry(returns: list[np.ndarray], reference: tuple[float, float] | None) -> str:
    """Mean with interval and, where seeds are missing, how many there are."""
    if not returns:
        return "missing"
    interval = hierarchical_interval(returns)
    text = f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
    if reference is not None:
        text += f" ({normalized_score(interval.estimate, reference):.1f})"
    return text if len(returns) == len(SEEDS) else f"{text} ({len(returns)} of {len(SEEDS)} seeds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one cell of 300 steps in a temporary folder")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--jobs", type=int, default=None, help="cells at once (default: one a core)")
    arguments = parser.parse_args()
    if arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            data = functools.partial(shared, "pendulum-mixed-sb3")
            cell = Cell("quick", functools.partial(training_cell, "iql", {}, data, "Pendulum-v1", 0, 300, 2))
            carry_out([cell], pathlib.Path(folder))
            print(read_cells(["quick"], pathlib.Path(folder)))
        return
    folder = RESULTS / "offline_table"
    if not arguments.table:
        carry_out(cells(), folder, arguments.jobs)
    write_table(RESULTS / "offline_table.md", table(folder))


if __name__ == "__main__":
    main()
