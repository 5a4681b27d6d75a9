"""All runs below some folders as two tables: one row for each number that was logged, and one for each run.

CSV and JSON lines by the standard library, Parquet by pyarrow (extra `parquet`). Floats are written so that they are
read back bit for bit.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError, MissingExtraError, SurefootError
from surefoot.core.base.files import read_json, read_regular, written_aside
from surefoot.core.base.schema import MOST_BYTES, Many, Number, Record
from surefoot.evaluation.names import labels, setting_key
from surefoot.evaluation.rollout import EPISODES
from surefoot.evaluation.runs import RunData

NUMBERS = (
    "run", "algorithm", "preset", "dataset", "environment", "seed", "split", "step", "metric", "episode", "value",
)  # fmt: skip
"""Columns of the long table."""
RUNS = (
    "run", "algorithm", "preset", "dataset", "dataset_sha256", "environment", "steps", "steps_of", "seeds", "split",
    "options", "versions", "git", "date", "updates_per_second",
)  # fmt: skip
"""Columns of the table of runs; seeds, options and versions as JSON."""
WHOLE = ("seed", "step", "episode", "steps")
REAL = ("value", "updates_per_second")
TUNING = "tune.json"
"""In the folder of a tuning study: runs below its `trials` are of tuning seeds, below `test` of test seeds."""
TUNING_SEEDS = Record(
    {"seeds": Many(Number(0, whole=True), 1), "test_seeds": Many(Number(0, whole=True), 1)}, others=True
)
AUTO_FILE, AUTO_RUNS = "auto.json", "portfolio"
"""In the folder of `algo=auto`: what it was asked, and the runs that it chose among, by their algorithms."""
_NO_RUNS = {"seeds", "policy", "tensorboard", "wandb", "mlruns", "__pycache__"}
_EPISODES = {"returns": "return", "successes": "success", "costs": "cost"}
"""What is known of each episode of an evaluation -> the metric of its rows."""
_MACHINE = Record({}, others=True)
_RESULT = Record({}, {"evaluation": EPISODES}, others=True)

SPLITS = {"none": "", "tune": ", tuning seeds", "test": ", test seeds"}
"""Split -> what it adds to the label of a setting."""

Row = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Results:
    """What was found."""

    runs: tuple[RunData, ...]
    names: tuple[str, ...]
    """Of the runs: their folders, as they were given."""
    numbers: list[Row]
    table: list[Row]
    left_out: dict[str, str]
    """Folder -> why it is in no table."""
    copies: dict[str, str] = dataclasses.field(default_factory=dict)
    """Folder -> the one that it is a copy of, which is in the tables in its place."""


def collect(roots: Sequence[str | os.PathLike[str]], episodes: bool = False, best: bool = False) -> Results:
    """Read all finished runs below `roots`; one that is damaged or unfinished is named and left out.

    Args:
        roots: run folders, or folders that hold such at any depth.
        episodes: also a row for every episode of every evaluation.
        best: score runs by their best policies, and leave out those that kept none; `numbers` has both in any case.

    Raises:
        ConfigError: a root that is no folder.
    """
    runs: list[RunData] = []
    names: list[str] = []
    numbers: list[Row] = []
    table: list[Row] = []
    left_out: dict[str, str] = {}
    splits: dict[pathlib.Path, str] = {}
    copies: dict[str, str] = {}
    seen: dict[bytes, str] = {}
    for folder in run_folders(roots):
        name = str(folder)
        try:
            run = RunData.load(folder)
            if (first := seen.setdefault(identity(folder), name)) != name:
                copies[name] = first
                continue
            split = _split(folder, splits)
            rows = list(_numbers(name, run, split, folder if episodes else None))
            row = _run_row(name, run, split, folder)
            run = run.of_best() if best else run
        except SurefootError as error:
            left_out[name] = str(error)
            continue
        runs.append(run)
        names.append(name)
        numbers += rows
        table.append(row)
    return Results(tuple(runs), tuple(names), numbers, table, left_out, copies)


def identity(folder: str | os.PathLike[str]) -> bytes:
    """The same of a finished run and its copies, and of no other run: what its configuration and its summary say.

    A summary has the run's speed to all its digits, which no two runs share. A folder that has neither is itself alone.
    """
    files = [path for name in ("config.json", "summary.json") if (path := pathlib.Path(folder, name)).is_file()]
    digest = hashlib.sha256(b"" if files else os.fsencode(os.path.realpath(folder)))
    for path in files:
        digest.update(read_regular(path, MOST_BYTES))
    return digest.digest()


def without_copies(runs: Sequence[RunData]) -> tuple[list[RunData], list[str]]:
    """Runs that were loaded, without copies of those before them, and a sentence for each copy."""
    kept: dict[bytes, RunData] = {}
    reported = []
    for run in runs:
        assert run.folder is not None
        first = kept.setdefault(identity(run.folder), run)
        if first is not run:
            reported.append(copied(str(run.folder), str(first.folder)))
    return list(kept.values()), reported


def copied(folder: str, first: str) -> str:
    """What is to be reported of a copy."""
    return f"{folder} is a copy of the run {first}: counted once"


def run_folders(roots: Sequence[str | os.PathLike[str]]) -> Iterator[pathlib.Path]:
    """Folders with a config.json or summary.json below the roots, in the order of their names, each once."""
    seen: set[str] = set()
    for root in roots:
        if not os.path.isdir(root):
            raise ConfigError(f"{root}: is not a folder; give run folders, or a folder that holds some")
        for place, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _NO_RUNS and not name.startswith("."))
            if os.path.basename(place) == AUTO_RUNS and (chosen := _handed_over(os.path.dirname(place))) in folders:
                folders.remove(chosen)  # it stands above too, as the run of the choice
            if "config.json" in files or "summary.json" in files:
                real = os.path.realpath(place)
                if real not in seen:
                    seen.add(real)
                    yield pathlib.Path(place)


def _handed_over(folder: str) -> str | None:
    """Algorithm of the run that `algo=auto` handed over, a copy of which a folder holds; None in other folders."""
    place = pathlib.Path(folder)
    if not (place / AUTO_FILE).is_file() or not (place / "config.json").is_file():
        return None
    return str(read_json(place / "config.json", _MACHINE).get("plan", {}).get("algorithm"))


def _split(folder: pathlib.Path, known: dict[pathlib.Path, str]) -> str:
    """tune or test for a run of a tuning study, else none."""
    parent = folder.resolve().parent  # which has a name, wherever one stands
    if parent not in known:
        known[parent] = "none"
        for above in (parent, parent.parent):
            if (above.parent / TUNING).is_file() and above.name in ("trials", "test"):
                read_json(above.parent / TUNING, TUNING_SEEDS)
                known[parent] = "tune" if above.name == "trials" else "test"
    return known[parent]


def _numbers(name: str, run: RunData, split: str, folder: pathlib.Path | None) -> Iterator[Row]:
    head = (name, run.algorithm, run.preset, run.dataset, run.environment)
    for line in run.metrics:
        seed, step, kind = line["seed"], line["step"], line["kind"]
        for key, value in line["values"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield (*head, seed, split, step, f"{kind}/{key}", None, float(value))
            elif folder is not None and isinstance(value, list) and key in _EPISODES:
                metric = f"{kind}/{_EPISODES[key]}"
                for episode, one in enumerate(value):
                    yield (*head, seed, split, step, metric, episode, float(one))
    finals = {"return": run.per_seed_returns, "success": run.per_seed_success, "cost": run.per_seed_costs}
    finals["pass_k"] = run.per_seed_pass_k
    for metric, values in finals.items():
        for seed, value in zip(run.seeds, values, strict=False):
            yield (*head, seed, split, run.steps, f"final/{metric}", None, float(value))
    if run.best is not None:
        steps = run.best["per_seed_steps"]
        for metric, key in (
            ("return", "per_seed_returns"),
            ("success", "per_seed_success"),
            ("cost", "per_seed_costs"),
        ):
            for seed, step, value in zip(run.seeds, steps, run.best.get(key, ()), strict=False):
                yield (*head, seed, split, step, f"best/{metric}", None, float(value))
    if folder is not None:
        yield from _final_episodes(head, run, split, folder)


def _final_episodes(head: Row, run: RunData, split: str, folder: pathlib.Path) -> Iterator[Row]:
    for seed in run.seeds:
        found = last_evaluation(folder, seed) if run.environment else None
        for key, metric in _EPISODES.items():
            for episode, value in enumerate((found or {}).get(key) or ()):
                yield (*head, seed, split, run.steps, f"final/{metric}", episode, float(value))


def last_evaluation(folder: pathlib.Path, seed: int) -> dict[str, Any] | None:
    """What `Episodes.to_json` gave of a seed's last policy; None where its result says nothing of it.

    Raises:
        CheckpointError: the result is damaged.
    """
    path = folder / "seeds" / str(seed) / "result.json"
    found: dict[str, Any] | None = read_json(path, _RESULT).get("evaluation") if path.is_file() else None
    return found


def _run_row(name: str, run: RunData, split: str, folder: pathlib.Path) -> Row:
    plan = run.config.get("plan")
    options = plan.get("config") if isinstance(plan, Mapping) else None
    data = run.config.get("dataset")
    sha = data.get("sha256") if isinstance(data, Mapping) else None
    machine = folder / "environment.json"
    git = read_json(machine, _MACHINE).get("git") if machine.is_file() else None
    return (
        name, run.algorithm, run.preset, run.dataset, sha, run.environment, run.steps, run.steps_of,
        json.dumps(list(run.seeds)), split, json.dumps(options, sort_keys=True),
        json.dumps(dict(run.versions), sort_keys=True), git, run.date, run.updates_per_second,
    )  # fmt: skip


def write(results: Results, path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Write both tables, the runs into STEM-runs beside the numbers; the two paths.

    Raises:
        ConfigError: an ending that names no format.
        MissingExtraError: Parquet without pyarrow.
    """
    first = pathlib.Path(path)
    if first.suffix not in WRITERS:
        raise ConfigError(f"{first}: its ending names no format; tables are written to {', '.join(WRITERS)}")
    second = first.with_name(f"{first.stem}-runs{first.suffix}")
    writer = WRITERS[first.suffix]
    writer(NUMBERS, results.numbers, first)
    writer(RUNS, results.table, second)
    return first, second


def write_csv(columns: Sequence[str], rows: Iterable[Row], path: pathlib.Path) -> None:
    """Comma-separated, a heading first, nothing where a value is missing."""
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


def write_jsonl(columns: Sequence[str], rows: Iterable[Row], path: pathlib.Path) -> None:
    """A JSON object a line; a number that is not finite is null."""
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        for row in rows:
            values = (None if isinstance(one, float) and one - one != 0 else one for one in row)
            file.write(json.dumps(dict(zip(columns, values, strict=True)), allow_nan=False) + "\n")


def write_parquet(columns: Sequence[str], rows: Sequence[Row], path: pathlib.Path) -> None:
    """Parquet with zstd; texts as dictionaries."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", f"writing {path.name}") from error
    kinds = {name: pa.int64() if name in WHOLE else pa.float64() if name in REAL else pa.string() for name in columns}
    listed = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = []
    for name, values in zip(columns, listed, strict=True):
        array = pa.array(values, kinds[name])
        arrays.append(array.dictionary_encode() if kinds[name] == pa.string() else array)
    with written_aside(path) as aside:
        pq.write_table(pa.table(arrays, names=list(columns)), str(aside), compression="zstd")


WRITERS: dict[str, Callable[[Sequence[str], list[Row], pathlib.Path], None]] = {
    ".csv": write_csv,
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}
"""Ending -> what writes it."""


def groups(results: Results) -> dict[str, dict[str, list[RunData]]]:
    """Task -> label -> runs that differ in nothing but their seeds; labels name the options that tell groups apart.

    Files of one name that hold other data are tasks of their own. Tuning seeds, which chose the options, are not pooled
    with test seeds.
    """
    tasks: dict[tuple[str, str], dict[str, dict[str, list[RunData]]]] = {}
    for run, row in zip(results.runs, results.table, strict=True):
        about = dict(zip(RUNS, row, strict=True))
        splits = tasks.setdefault((run.task, _data(run, about["dataset_sha256"])), {})
        splits.setdefault(about["split"], {}).setdefault(setting_key(run), []).append(run)
    counts = Counter(name for name, _ in tasks)
    named = {}
    for (task, data), splits in tasks.items():
        mine: dict[str, list[RunData]] = {}
        for split, found in splits.items():
            given = labels([runs[0] for runs in found.values()])
            mine |= {f"{label}{SPLITS[split]}": runs for label, runs in zip(given, found.values(), strict=True)}
        named[task if counts[task] == 1 else f"{task} ({data})"] = mine
    return named


def _data(run: RunData, sha256: str | None) -> str:
    """What tells a dataset from another of its name: a file's first digits of SHA-256, where they are known."""
    of_file = run.dataset is not None and pathlib.Path(run.dataset).suffix
    return f"SHA-256 {sha256[:12]}" if of_file and sha256 else str(run.dataset)
