"""Suites: named, versioned lists of tasks, seeds and settings, and the leaderboard of what was trained on one.

A suite fixes everything but the algorithm and its options. Its seeds are test seeds: options that were tuned on one of
them are refused. A change that moves a score makes a new version, so that lines of one version may be compared.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.files import read_json, written_aside
from surefoot.core.base.schema import Many, Number, Plain, Record, Table, Text, check
from surefoot.core.base.settings import parse_settings, read_settings
from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation.one_look import permutation_p, too_few
from surefoot.evaluation.runs import SUMMARY
from surefoot.runs.run import CONFIG, Run
from surefoot.studies.compare import dataset_hash

FORMAT = 1
"""Version of the format of a line of a leaderboard."""
BOARD, ENTRY, RUNS = "leaderboard.jsonl", "entry.json", "entries"
LEVEL = 0.05
"""Of wrong answers among all pairs of a task."""
MACHINE = Record({"versions": Table(Text())}, others=True)
SUITE = Record(
    {
        "version": Number(1, whole=True),
        "what": Text(1000),
        "seeds": Many(Number(0, whole=True), 4),
        "run": Plain(finite=True),
        "tasks": Plain(finite=True),
        "algorithms": Many(Text(100), 1),
    }
)
"""What a suite's file holds."""
LABEL = Record(
    {
        "suite": Text(100),
        "version": Number(1, whole=True),
        "overrides": Many(Text(10_000)),
        "tuning_runs": Number(0, whole=True),
        "command": Text(10_000),
    }
)
"""What an entry's entry.json holds."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """What is the same for all algorithms."""

    name: str
    version: int
    what: str
    seeds: tuple[int, ...]
    run: Mapping[str, Any]
    """Fields of a run, such as steps."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Task -> its own fields: dataset, env."""
    algorithms: tuple[str, ...]
    """That are trained where none is named."""

    @property
    def label(self) -> str:
        """Name and version, fit for a folder."""
        return f"{self.name}-v{self.version}"

    def overrides(self, task: str) -> list[str]:
        """Of the runs of a task, as after `surefoot train`."""
        fields = {**self.run, **self.tasks[task]}
        words = {None: "null", True: "true", False: "false"}
        given = {
            key: words[value] if value is None or isinstance(value, bool) else value for key, value in fields.items()
        }
        return [*(f"{key}={value}" for key, value in given.items()), f"seeds=[{','.join(map(str, self.seeds))}]"]


def names() -> list[str]:
    """All suites."""
    folder = importlib.resources.files("surefoot") / "conf" / "suite"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def suite(name: str) -> Suite:
    """The suite of this name, or of a YAML file of the user's own.

    Raises:
        ConfigError: there is none, or the file is not a suite.
    """
    own = pathlib.Path(name)
    if name in names():
        file: Any = importlib.resources.files("surefoot") / "conf" / "suite" / f"{name}.yaml"
        value = parse_settings(file.read_bytes(), file)
    elif own.suffix == ".yaml" and own.exists():
        file, name = own, own.stem
        value = read_settings(file)
    else:
        raise ConfigError(f"no suite is called {name!r}: {nearest(name, names())}; or give a .yaml file of your own")
    check(value, SUITE, file, ConfigError)
    tasks: Any = value["tasks"]
    if not tasks or not isinstance(tasks, dict) or not all(isinstance(task, dict) for task in tasks.values()):
        raise ConfigError(f"{file}: tasks: name at least one, as in pendulum: {{dataset: native/pendulum-mixed}}")
    if not isinstance(value["run"], dict):
        raise ConfigError(f"{file}: run: give fields of all runs, as in {{steps: 20000}}, or {{}} where there are none")
    fixed = {str(key): item for key, item in value.items()}
    return Suite(name, **{**fixed, "seeds": tuple(fixed["seeds"]), "algorithms": tuple(fixed["algorithms"])})


def refuse_tuned_on(suite: Suite, study: pathlib.Path, seeds: Sequence[int]) -> None:
    """Raise ConfigError where options were tuned on seeds that the suite tests on."""
    both = sorted(set(seeds) & set(suite.seeds))
    if both:
        raise ConfigError(
            f"{study}: tuned on seeds {both}, which {suite.label} tests on; a score on seeds that chose the options is "
            "too high: tune on other seeds"
        )


def lines(suite: Suite, folder: pathlib.Path) -> list[dict[str, Any]]:
    """The leaderboard of a folder: a line for each finished run, ranked within its task."""
    found: dict[str, list[dict[str, Any]]] = {task: [] for task in suite.tasks}
    for entry in sorted((folder / RUNS).glob(f"*/{ENTRY}")):
        facts = read_json(entry, LABEL)
        for task in suite.tasks:
            place = entry.parent / task
            if (place / "summary.json").is_file():
                found[task].append(_line(suite, task, entry.parent.name, facts, Run.open(place)))
    for entries in found.values():
        rank(entries)
    return [line for task in suite.tasks for line in sorted(found[task], key=lambda one: -one["mean"])]


def _line(suite: Suite, task: str, entry: str, facts: Mapping[str, Any], run: Run) -> dict[str, Any]:
    summary = read_json(run.folder / "summary.json", SUMMARY)
    steps = {**suite.run, **suite.tasks[task]}.get("steps", run.plan.steps)
    if tuple(run.plan.seeds) != suite.seeds or run.plan.steps != int(steps):
        raise ConfigError(
            f"{run.folder}: not a run of {suite.label}: other seeds or steps; give another folder with -o"
        )
    scores = [float(score) for score in summary["per_seed_returns"] or ()]
    reference = reference_scores(run.plan.environment or summary["dataset"] or "")
    normalised = None if reference is None else [float(normalized_score(score, reference)) for score in scores]
    machine = read_json(run.folder / "environment.json", MACHINE)
    if summary["returns"] is None:
        raise ConfigError(f"{run.folder}: has no returns, of which a leaderboard is made; train it in a simulator")
    return {
        "format": FORMAT,
        "suite": suite.name,
        "version": suite.version,
        "task": task,
        "entry": entry,
        "algorithm": run.plan.algorithm,
        "options": read_json(run.folder / "config.json", CONFIG)["plan"]["config"],
        "environment": summary["environment"],
        "dataset": summary["dataset"],
        "dataset_sha256": dataset_hash(run),
        "steps": run.plan.steps,
        "seeds": list(run.plan.seeds),
        "split": "test",
        "episodes": summary["episodes"],
        "policy": "last",
        "scores": scores,
        **{bound: summary["returns"][bound] for bound in ("mean", "low", "high")},
        "normaliser": None if reference is None else list(reference),
        "normalised": normalised,
        "tuning_runs": facts["tuning_runs"],
        "versions": machine["versions"],
        "git": machine.get("git"),
        "command": facts["command"],
        "date": summary["date"],
    }


def rank(entries: Sequence[dict[str, Any]]) -> None:
    """Give the lines of one task their verdicts and ranks.

    A rank is a range: one below the number of entries that are better, to the number of those that are not worse. All
    pairs of the task share the level, by Bonferroni's bound; each is one look at the seeds, which the suite fixed.
    """
    pairs = list(itertools.combinations(range(len(entries)), 2))
    for line in entries:
        line["verdicts"] = {}
    for a, b in pairs:
        x, y = (np.array(entries[k]["scores"]) for k in (a, b))
        level = LEVEL / len(pairs)
        if too_few(min(len(x), len(y)), level) is not None:
            answers = ("undecidable", "undecidable")
        elif permutation_p(x, y, level=level) > level:
            answers = ("not separated", "not separated")
        else:
            answers = ("larger", "smaller") if x.mean() > y.mean() else ("smaller", "larger")
        entries[a]["verdicts"][entries[b]["entry"]], entries[b]["verdicts"][entries[a]["entry"]] = answers
    for line in entries:
        given = list(line["verdicts"].values())
        line["rank"] = [1 + given.count("smaller"), len(entries) - given.count("larger")]


def write(board: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Write a leaderboard as JSON lines, whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text("".join(json.dumps(line) + "\n" for line in board), encoding="utf-8")
