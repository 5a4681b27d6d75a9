"""Comparing the runs of two or more algorithms, with seeds added until the question is answered.

A comparison has a folder. Its `comparison.json` is written before the first look and fixes everything that could be
chosen by the scores: which seeds, when they are looked at, the level, the metric. Runs of added seeds lie beside it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import glob
import itertools
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Maybe, Number, Record, Text
from surefoot.envs.names import short_name
from surefoot.evaluation.deciding import LOOK_PLAN, Look, LookPlan, anytime_looks, looks
from surefoot.evaluation.results import identity
from surefoot.evaluation.runs import ANY_CONFIG, SUMMARY
from surefoot.evaluation.statistics import Array
from surefoot.runs.folders import claim_new
from surefoot.runs.inputs import dataset_of
from surefoot.runs.plan import Plan
from surefoot.runs.progress_events import Listener
from surefoot.runs.run import CONFIG, IN_MEMORY, Run, is_imported, names_in
from surefoot.runs.start import resume, train
from surefoot.runs.trust import require_trust

METRICS = {"return": "per_seed_returns", "success": "per_seed_success", "cost": "per_seed_costs"}
"""Word of the command line -> key of summary.json: of the last policy's episodes."""
FILE, ANSWER = "comparison.json", "answer.json"
RULES = ("group-sequential", "anytime")
COMPARISON = Record(
    {
        "format": Number(1, 1, whole=True),
        "rule": Text(among=RULES),
        "looks": LOOK_PLAN,
        "metric": Text(among=tuple(METRICS)),
        "written": Text(),
        "arms": Many(
            Record(
                {
                    "label": Text(),
                    "seeds": Many(Number(0, whole=True), 1),
                    "had": Number(0, whole=True),
                    "run": Record({}, others=True),
                    "sha256": Maybe(Text(64)),
                }
            ),
            2,
        ),
    }
)
"""What comparison.json holds."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """The finished runs of one algorithm with one set of options."""

    label: str
    runs: tuple[Run, ...]
    sha256: str | None
    """Of the dataset."""

    @property
    def plan(self) -> Plan:
        """Of its first run; the others differ in their seeds alone."""
        return self.runs[0].plan

    @property
    def imported(self) -> bool:
        """Whether its runs are of another library's logs."""
        return is_imported(self.runs[0].folder)

    @property
    def judged(self) -> str:
        """In words, which episodes its scores are of."""
        if self.imported:
            return str(read_json(self.runs[0].folder / "config.json", ANY_CONFIG).get("judged", "not known"))
        return f"mean of {self.plan.episodes} episodes of the last policy"

    def scores(self, metric: str) -> dict[int, float]:
        """Seed -> score; a seed that several runs have counts once, as in the first of them."""
        found: dict[int, float] = {}
        for run in self.runs:
            for seed, score in scores_of(run, metric).items():
                found.setdefault(seed, score)
        return found


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What is fixed before the first look."""

    rule: str
    plan: LookPlan
    metric: str
    seeds: Mapping[str, tuple[int, ...]]
    """Label -> seeds in the order in which they are looked at."""
    had: Mapping[str, int]
    """Label -> how many of them were trained when the plan was written."""
    written: str

    def sentence(self) -> str:
        """The plan in words."""
        if self.rule == "group-sequential":
            return self.plan.sentence()
        return (
            f"after every seed of each algorithm, at most {self.plan.seeds} times, evidence of "
            f"{1 / self.plan.pair_level:g} against equality decides (t e-process). Without a difference at most "
            f"{100 * self.plan.level:g} % of such comparisons ever say larger or smaller, whenever they stop"
        )

    def looks(self, first: Array, second: Array) -> list[Look]:
        """All looks at one pair that its scores allow."""
        if self.rule == "group-sequential":
            return looks(first, second, self.plan)
        return anytime_looks(first, second, self.plan.seeds, self.plan.pair_level)


def scores_of(run: Run, metric: str) -> dict[int, float]:
    """Seed -> score of a finished run.

    Raises:
        ConfigError: it has no such score.
    """
    summary = read_json(run.folder / "summary.json", SUMMARY)
    scores = summary.get(METRICS[metric]) or []
    if len(scores) != len(summary["seeds"]):
        known = [name for name, key in METRICS.items() if len(summary.get(key) or []) == len(summary["seeds"])]
        have = f"it has {' and '.join(known)}" if known else "it was trained without a simulator"
        raise ConfigError(f"{run.folder}: has no {metric} of its seeds; {have}")
    return dict(zip(summary["seeds"], map(float, scores), strict=True))


def find(pattern: str) -> list[pathlib.Path]:
    """The run folders that a pattern matches, in the order of their names."""
    return [pathlib.Path(name) for name in sorted(glob.glob(pattern)) if (pathlib.Path(name) / "config.json").is_file()]


def arms_of(patterns: Sequence[str]) -> tuple[list[Arm], list[pathlib.Path]]:
    """The arms that patterns of run folders name, and the folders among them that are not finished.

    Raises:
        ConfigError: fewer than two patterns, one that matches nothing, runs within one that differ in more than their
            seeds, or runs that two share.
    """
    if len(patterns) < 2:
        raise ConfigError("a comparison takes two or more patterns, as in surefoot compare 'runs/iql-*' 'runs/bc-*'")
    found: list[Arm] = []
    unfinished: list[pathlib.Path] = []
    taken: dict[bytes, str] = {}
    for pattern in patterns:
        folders = find(pattern)
        runs = [Run.open_scores(folder) for folder in folders]
        unfinished += [run.folder for run in runs if not run.complete]
        runs = [run for run in runs if run.complete]
        if not runs:
            raise ConfigError(f"{pattern}: matches no finished run folder; give the folders of runs, in quotes")
        for run in runs:
            which = identity(run.folder)  # also of a copy, whose path is another one
            if taken.get(which, pattern) != pattern:
                raise ConfigError(f"{run.folder}: is matched by {taken[which]!r} and {pattern!r}; nothing is compared "
                                  "with itself, nor with its copy")  # fmt: skip
            taken[which] = pattern
        found.append(Arm(_label(pattern, runs[0], [arm.label for arm in found]), tuple(runs), _same(runs)))
    _same_task(found)
    return found, unfinished


def _label(pattern: str, run: Run, others: Sequence[str]) -> str:
    """The pattern's fixed part, or else the algorithm; with a number where another arm has it."""
    name = re.sub(r"\[[^\]]*\]|[*?]", "", pathlib.Path(pattern).name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-_.") or run.plan.algorithm.rpartition(":")[2]
    return next(name if n == 1 else f"{name}-{n}" for n in itertools.count(1) if f"{name}-{n}" not in others
                and (n > 1 or name not in others))  # fmt: skip


def settings(plan: Plan) -> dict[str, Any]:
    """All of a plan but its seeds, and what can't change its numbers; a native system by one of its two names."""
    free = ("seeds", "patience", "checkpoint_every", "steps_per_graph")
    found = {key: value for key, value in plan.to_json().items() if key not in free}
    return _named(found)


def _named(run: dict[str, Any]) -> dict[str, Any]:
    environment = run.get("environment")
    return {**run, "environment": short_name(environment)} if isinstance(environment, str) else run


def _same(runs: Sequence[Run]) -> str | None:
    """The SHA-256 of the dataset that all runs of an arm have; they may differ in nothing but their seeds."""
    first, *others = runs
    mine, sha = settings(first.plan), dataset_hash(first)
    for run in others:
        theirs = settings(run.plan)
        for name in mine:
            if mine[name] != theirs[name]:
                what = f"{name}: {mine[name]} and {theirs[name]}"
                if isinstance(mine[name], dict):
                    options = [key for key in mine[name] if mine[name][key] != theirs[name].get(key)]
                    what = ", ".join(f"{key}: {mine[name][key]} and {theirs[name].get(key)}" for key in options)
                raise ConfigError(
                    f"{first.folder} and {run.folder} are not seeds of one algorithm: they differ in {what}"
                )
        if dataset_hash(run) != sha:
            raise ConfigError(f"{first.folder} and {run.folder} were trained on different files of {mine['dataset']}")
    return sha


def dataset_hash(run: Run) -> str | None:
    """The SHA-256 of the file that a run was trained on."""
    if is_imported(run.folder):
        return None
    return (read_json(run.folder / "config.json", CONFIG).get("dataset") or {}).get("sha256")


def _same_task(arms: Sequence[Arm]) -> None:
    first = arms[0]
    for arm in arms[1:]:
        imported = first.imported or arm.imported  # whose episodes are as many as somebody else chose
        for name in ("environment",) if imported else ("environment", "episodes"):
            mine, theirs = settings(first.plan)[name], settings(arm.plan)[name]
            if mine != theirs:
                raise ConfigError(
                    f"{first.label} and {arm.label} were evaluated differently: {name} {mine} and {theirs}"
                )


def planned(folder: pathlib.Path, arms: Sequence[Arm], rule: str, plan: LookPlan, metric: str) -> Comparison:
    """The comparison of a folder: as it was fixed there, else fixed now and written.

    Raises:
        ConfigError: another one was fixed there.
    """
    path = folder / FILE
    value: dict[str, Any] = {
        "format": 1,
        "rule": rule,
        "looks": plan.to_json(),
        "metric": metric,
        "written": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "arms": [_arm_json(arm, plan, metric) for arm in arms],
    }
    if path.is_file():
        before = read_json(path, COMPARISON)
        _refuse_another(before, value, path)
        value = before
    else:
        write_json(path, value)
    return Comparison(
        rule=value["rule"],
        plan=LookPlan.from_json(value["looks"], path),
        metric=value["metric"],
        seeds={arm["label"]: tuple(arm["seeds"]) for arm in value["arms"]},
        had={arm["label"]: arm["had"] for arm in value["arms"]},
        written=value["written"],
    )


def _arm_json(arm: Arm, plan: LookPlan, metric: str) -> dict[str, Any]:
    has = sorted(arm.scores(metric))
    fresh = (seed for seed in itertools.count() if seed not in has)
    seeds = [*has, *itertools.islice(fresh, max(0, plan.seeds - len(has)))][: plan.seeds]
    return {"label": arm.label, "seeds": seeds, "had": min(len(has), plan.seeds), "run": settings(arm.plan),
            "sha256": arm.sha256}  # fmt: skip


def _refuse_another(before: dict[str, Any], now: dict[str, Any], path: pathlib.Path) -> None:
    for name in ("rule", "metric"):
        if before[name] != now[name]:
            raise _fixed(path, name, before[name], now[name])
    for name, value in before["looks"].items():
        if value != now["looks"][name]:
            raise _fixed(path, name, value, now["looks"][name])
    nothing: dict[str, Any] = {}
    for a, b in itertools.zip_longest(before["arms"], now["arms"], fillvalue=nothing):
        a = {**a, "run": _named(a.get("run", nothing))}
        for name in ("label", "run", "sha256"):
            if a.get(name) != b.get(name):
                shown = (name, a.get(name), b.get(name)) if name == "label" else (f"{name} of {b.get('label')}", "", "")
                raise _fixed(path, *shown)


def _fixed(path: pathlib.Path, name: str, before: Any, now: Any) -> ConfigError:
    values = f"{name} is {before} there and {now} here" if before != "" else f"{name} differs"
    return ConfigError(
        f"{path}: was fixed before the first look, and {values}. A plan that is changed after a look decides nothing: "
        "give the same options, or begin another comparison with -o FOLDER"
    )


def carry_out(
    comparison: Comparison,
    arms: Sequence[Arm],
    folder: pathlib.Path,
    notify: Callable[[str, str, Look], None],
    train_seeds: Callable[[Arm, tuple[int, ...]], Run] | None,
    score: Callable[[Run, str], dict[int, float]] = scores_of,
) -> dict[tuple[str, str], list[Look]]:
    """Look, train the seeds that the next look needs, and look again, until all pairs are decided or the plan is over.

    Args:
        comparison: what was fixed.
        arms: with the runs that there are.
        folder: of the comparison.
        notify: called with both labels at each look.
        train_seeds: trains seeds of an arm; None: only what is there is looked at.
        score: seed -> score of a run that it trained, by the metric.

    Returns:
        Both labels of a pair -> its looks; also written to answer.json.
    """
    scores = {arm.label: arm.scores(comparison.metric) for arm in arms}
    pairs = list(itertools.combinations([arm.label for arm in arms], 2))
    found: dict[tuple[str, str], list[Look]] = {pair: [] for pair in pairs}
    step = comparison.plan.per_stage if comparison.rule == "group-sequential" else 1
    for stage in range(1, comparison.plan.seeds // step + 1):
        waiting = [pair for pair in pairs if not found[pair] or found[pair][-1].answer == "open"]
        if not waiting:
            break
        for arm in arms:
            if any(arm.label in pair for pair in waiting):
                missing = tuple(s for s in comparison.seeds[arm.label][: stage * step] if s not in scores[arm.label])
                if missing and train_seeds is None:
                    return found
                if missing and train_seeds is not None:
                    scores[arm.label] |= score(train_seeds(arm, missing), comparison.metric)
        for first, second in waiting:
            x, y = (np.array([scores[name][s] for s in comparison.seeds[name][: stage * step]])
                    for name in (first, second))  # fmt: skip
            look = comparison.looks(x, y)[stage - 1]
            found[first, second].append(look)
            notify(first, second, look)
        write_json(folder / ANSWER, {"pairs": pairs_json(found)})
    return found


def pairs_json(found: Mapping[tuple[str, str], Sequence[Look]]) -> list[dict[str, Any]]:
    """Looks of pairs as JSON values."""
    return [
        {"first": a, "second": b, "answer": seen[-1].answer if seen else "open", "looks": [x.to_json() for x in seen]}
        for (a, b), seen in found.items()
    ]


def train_missing(arm: Arm, seeds: tuple[int, ...], folder: pathlib.Path, listener: Listener, trust: bool) -> Run:
    """The run of further seeds of an arm, in the comparison's folder: trained now, continued, or finished already.

    Raises:
        ConfigError: its dataset was in memory, or is another file now.
        SurefootError: as `train`.
    """
    shown = "-".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]}-to-{seeds[-1]}-{len(seeds)}"
    out = folder / arm.label / f"seeds-{shown}"
    if (out / "config.json").is_file():
        started = Run.open(out)
        if settings(started.plan) != settings(arm.plan) or started.plan.seeds != seeds:
            raise ConfigError(f"{out}: holds another run than the comparison needs; begin another with -o FOLDER")
        return resume(out, listener=listener, trust=trust)
    _check_data(arm, seeds)
    _check_names(arm, trust)
    plan = dataclasses.replace(arm.plan, seeds=seeds)
    dataset = None
    if plan.dataset is not None:
        from surefoot.runs.embedded import load

        dataset = load(plan.dataset, strict=plan.strict, view=plan.view)
        if dataset_of(plan, dataset, lambda event: None).sha256 != arm.sha256:
            raise ConfigError(f"{plan.dataset}: not the file of {arm.runs[0].folder} any more (SHA-256 differs)")
    with claim_new(out) as claim:
        return train(plan, claim, dataset=dataset, listener=listener, trust=trust)


def check_trainable(arms: Sequence[Arm], plan: LookPlan, metric: str, trust: bool) -> None:
    """Refuse, before anything is written or trained, what no further seed could be trained of.

    Raises:
        ConfigError: an arm with fewer seeds than the plan may ask for names a module, and `trust` is false; or one with
            too few for the first look was trained on a dataset in memory.
    """
    for arm in arms:
        if arm.imported:
            raise ConfigError(
                f"{arm.label}: was imported from another library's logs, so that no further seed of it can be trained; "
                "leave out --until decided"
            )
        first = _arm_json(arm, plan, metric)
        if first["had"] < plan.seeds:
            _check_names(arm, trust)
        if first["had"] < plan.per_stage:
            _check_data(arm, first["seeds"][first["had"] : plan.per_stage])


def _check_names(arm: Arm, trust: bool) -> None:
    for name in names_in(arm.plan):
        require_trust(name, arm.runs[0].folder / "config.json", trust)


def _check_data(arm: Arm, seeds: Sequence[int]) -> None:
    if arm.plan.dataset == IN_MEMORY:
        raise ConfigError(
            f"{arm.runs[0].folder}: was trained on a dataset in memory; train the seeds {list(seeds)} by fit() with "
            "the same options, into a folder that the pattern matches"
        )
