"""Studies as grids of cells: a line of JSON a cell, cells already done are skipped, resumable on any day.

A cell is a name and a function that returns JSON values. Its line is written when it is done (benchmarks/cells.py), so
a study may be killed at any moment.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cells import Results, append_cell, read_cells

from surefoot.core.base.files import read_json
from surefoot.data import load
from surefoot.data.dataset import Dataset
from surefoot.evaluation import difference_interval, hierarchical_interval
from surefoot.evaluation.curves import CurvePoint
from surefoot.runs.machine import cores
from surefoot.runs.plan import Plan, agent_class
from surefoot.runs.run import Run
from surefoot.runs.start import resume, train

RESULTS = pathlib.Path(__file__).parent / "results"
SHARED = pathlib.Path(
    os.environ.get("SUREFOOT_SHARED_DATA", pathlib.Path(__file__).resolve().parents[2] / "shared" / "data")
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of a study."""

    name: str
    compute: Callable[[], dict[str, Any]]


def carry_out(cells: Sequence[Cell], file: pathlib.Path, jobs: int | None = None) -> None:
    """Compute the cells that are not in the file yet, `jobs` at a time (default: one a core), in the order given.

    Each has one core: runs of several seeds, such as those of algo=auto, train them one after another.
    """
    jobs = jobs or cores()
    done = read_cells(file)
    missing = [cell for cell in cells if cell.name not in done]
    print(f"{len(cells) - len(missing)} of {len(cells)} cells are done; computing {len(missing)}", flush=True)

    def one(cell: Cell) -> str:
        if cell.name not in read_cells(file):  # another process may have computed it by now
            append_cell(file, cell.name, cell.compute())
        return cell.name

    before = os.environ.get("SUREFOOT_CORES")
    os.environ["SUREFOOT_CORES"] = "1"
    try:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for finished in concurrent.futures.as_completed([pool.submit(one, cell) for cell in missing]):
                print(f"done: {finished.result()}", flush=True)
    finally:
        os.environ.pop("SUREFOOT_CORES")
        if before is not None:
            os.environ["SUREFOOT_CORES"] = before


def study_main(
    description: str | None,
    name: str,
    cells: Sequence[Cell],
    table: Callable[[Results], list[str]],
    quick: Cell,
    page: pathlib.Path | None = None,
) -> None:
    """The command line of a study: compute what is missing, then write results/NAME.md or `page` from the cells.

    `table` gets the results of those of `cells` that are there, in the order of `cells`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small cell in a temporary folder, for CI")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--check", action="store_true", help="only say whether the table is that of the cells")
    parser.add_argument("--jobs", type=int, default=None, help="cells at once, each on one core (default: one a core)")
    parser.add_argument("--only", default="", help="only the cells whose name contains this")
    arguments = parser.parse_args()
    if arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            carry_out([quick], pathlib.Path(folder) / "quick.jsonl")
            print(read_cells(pathlib.Path(folder) / "quick.jsonl"))
        return
    if not (arguments.table or arguments.check):
        wanted = [cell for cell in cells if arguments.only in cell.name]
        if not wanted:
            sys.exit(
                f"--only {arguments.only}: no cell's name contains this; they are {', '.join(c.name for c in cells)}"
            )
        carry_out(wanted, results(name), arguments.jobs)
    found, path = read_cells(results(name)), page or RESULTS / f"{name}.md"
    lines = table({cell.name: found[cell.name] for cell in cells if cell.name in found})
    if not arguments.check:
        write_table(path, lines)
    elif path.read_text(encoding="utf-8") != "\n".join(lines) + "\n":
        sys.exit(f"{path} is not the table of {results(name)}: write it again with --table")


def results(name: str) -> pathlib.Path:
    """The file of a study's cells."""
    return RESULTS / f"{name}.jsonl"


def training_cell(
    algorithm: str,
    options: dict[str, Any],
    dataset: Dataset | Callable[[], Dataset] | None,
    environment: str,
    seed: int,
    steps: int,
    episodes: int,
    gap: str | None = None,
    evaluations: int = 3,
    init: str | None = None,
    out: str | None = None,
    batch_size: int = 256,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train one seed, started from the run `init`, and return its score and settings as JSON values.

    The run folder is temporary unless it is named with `out`; a run that is there already is resumed. `settings` are
    further ones of the plan.

    Agents that act need no dataset, and act in the environment altered by `gap`. `curve` holds (step, mean return of
    5 episodes) of each of the `evaluations` during training; `last` the metrics that were logged last.
    """
    data = dataset() if callable(dataset) else dataset
    kind = agent_class(algorithm)
    config = dataclasses.asdict(kind.configure(**options))
    plan = Plan(
        algorithm=algorithm,
        config=config,
        dataset=None if data is None else "<memory>",
        environment=environment,
        gap=gap,
        steps=steps,
        batch_size=batch_size,
        seeds=(seed,),
        episodes=episodes,
        evaluate_every=max(1, steps // evaluations),
        evaluate_episodes=5,
        init=init,
        **(settings or {}),
    )
    with tempfile.TemporaryDirectory(prefix="surefoot-study-", ignore_cleanup_errors=True) as temporary:
        run = carried_out(plan, pathlib.Path(out or f"{temporary}/run"), data)
        result = read_json(run.seed_folder(seed) / "result.json")
        environment_facts = read_json(run.folder / "environment.json")
    return {
        "algorithm": algorithm,
        "config": config,
        "dataset": None if data is None else data.name,
        "environment": environment,
        "gap": gap,
        "seed": seed,
        "steps": steps,
        "episodes": episodes,
        "returns": [round(value, 3) for value in result["evaluation"]["returns"]],
        "lengths": result["evaluation"]["lengths"],
        "costs": result["evaluation"]["costs"],
        "successes": result["evaluation"].get("successes"),
        "curve": [
            (line["step"], round(line["values"]["return_mean"], 3))
            for line in result["metrics"]
            if line["kind"] == "eval"
        ],
        "last": last_metrics(result["metrics"]),
        "rings": result.get("alarm", {}).get("rings", []),
        "seconds": round(result["seconds"], 1),
        "updates_per_second": round(result["updates_per_second"], 1),
        "versions": environment_facts["versions"],
        "git": git_commit(),
        "package_git": environment_facts["git"],  # None where surefoot is an installed wheel
    }


def carried_out(plan: Plan, folder: pathlib.Path, dataset: Dataset | None) -> Run:
    """The run of a plan in this folder: started, resumed, or finished already."""
    if not (folder / "config.json").is_file():
        return train(plan, folder, dataset=dataset)
    started, wanted = Run.open(folder).plan.to_json(), plan.to_json()
    usual = dataclasses.asdict(agent_class(plan.algorithm).configure())
    started["config"] = usual | started["config"]  # which may be older than an option
    other = [name for name in wanted if json.dumps(started.get(name)) != json.dumps(wanted[name])]
    if other:
        sys.exit(f"{folder} is a run of other settings than this cell's ({', '.join(other)}): remove it")
    return resume(folder, trust=True)  # the study itself began it


def last_metrics(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Metric -> its value at the last step at which metrics of training were logged."""
    logged = [line["values"] for line in lines if line["kind"] == "train"]
    return {name: float(f"{value:.4g}") for name, value in logged[-1].items()} if logged else {}


def shared(name: str) -> Dataset:
    """A dataset of ../shared/data, named by its file's stem (so that results don't depend on the folder)."""
    path = SHARED / f"{name}.hdf5"
    if not path.is_file():
        sys.exit(f"{path} is not there; set SUREFOOT_SHARED_DATA to the folder of the real datasets")
    return load(path).replace(name=name)


def entry(returns: Sequence[np.ndarray], seeds: int) -> str:
    """Mean return with its interval, from per-episode returns of each seed, and how many of `seeds` are there."""
    if not returns:
        return "missing"
    interval = hierarchical_interval(returns)
    text = f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
    return text if len(returns) == seeds else f"{text} ({len(returns)} of {seeds} seeds)"


def difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray], shared_episodes: bool = True) -> str:
    """Interval of the difference of the mean returns."""
    if len(first) < 2 or len(second) < 2:
        return "missing"
    interval = difference_interval(first, second, shared_episodes=shared_episodes)
    return f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]"


def curve_points(curves: Sequence[Sequence[tuple[int, float]]]) -> list[CurvePoint]:
    """Points of a learning curve, from (step, mean return) of each seed at the same steps; intervals over seeds."""
    points = []
    for column in zip(*curves, strict=False):
        interval = hierarchical_interval([np.asarray([value]) for _, value in column], shared_episodes=False)
        points.append(CurvePoint(column[0][0], interval.estimate, interval.low, interval.high))
    return points


def write_table(path: pathlib.Path, lines: Sequence[str]) -> None:
    """Write a Markdown table and print it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    path.write_text(text, encoding="utf-8")
    print(text)


def git_commit() -> str:
    """Commit of the checkout that this study runs from, with + where it was changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    return subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True).stdout.strip()
