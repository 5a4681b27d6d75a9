"""Runs pooled by what they have in common, as tables of a paper have them: a line a group, or tasks by algorithms."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.data import normalized_score, reference_scores
from surefoot.evaluation import statistics
from surefoot.evaluation.label import shown
from surefoot.evaluation.names import OF_THE_PLAN, USUAL, settings, varied
from surefoot.evaluation.pooling import EPISODES, SEEDS, Pooled, over_tasks, pooled, pooled_interval, repeated, units
from surefoot.evaluation.results import RUNS, SPLITS, Results, groups
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.tabular import BOLD, Estimate, Heading, Tabular, Value, without_empty_columns

BY_SETTING = ("task", "setting")
"""Keys where none are given: runs that differ in their seeds alone are a group."""
KEYS: Mapping[str, str] = {
    "task": "dataset and environment",
    "setting": "the algorithm with the options in which the runs differ",
    "algorithm": "its name",
    "preset": "of the algorithm",
    "dataset": "what it was trained on",
    "environment": "what judges it",
    "split": "tune or test, of a tuning study's runs",
    "run": "the folder",
}
"""Key -> what it is; beside these algo.OPTION, and a field of a run's plan such as batch_size."""
ALIASES: Mapping[str, str] = {"env": "environment", "algo": "algorithm", "data": "dataset", "folder": "run"}
ONE_SEED, ONLY_SEEDS, OVER_LIMIT = "†", "‡", "§"
"""Marks of a pivot's cells."""
ENDLESS = 6
"""Values of an option that a note lists."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that each seed of a run has."""

    name: str
    """On the command line."""
    field: str
    """Of `RunData`."""
    heading: str
    share: bool = False
    """Whether it lies between 0 and 1 and is shown in per cent."""
    common: bool = False
    """Whether scores of several tasks have a scale in common."""
    lower: bool = False
    """Whether less is better."""


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("return", "per_seed_returns", "return"),
        Metric("success", "per_seed_success", "success in %", share=True, common=True),
        Metric("normalized", "per_seed_returns", "normalised", common=True),
        Metric("pass_k", "per_seed_pass_k", "pass@k in %", share=True, common=True),
        Metric("cost", "per_seed_costs", "cost", lower=True),
    )
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that have the same values of some keys."""

    values: tuple[Any, ...]
    """Of the keys, in their order."""
    tasks: Mapping[str, tuple[RunData, ...]]
    """Task -> its runs."""

    @property
    def runs(self) -> list[RunData]:
        """All of them."""
        return list(itertools.chain.from_iterable(self.tasks.values()))

    @property
    def label(self) -> str:
        """Its values, for notes and legends."""
        return ", ".join(text_of(value) for value in self.values)

    @property
    def counted(self) -> int:
        """How many runs hold a seed that counts: all but those whose seeds others hold already."""
        return sum(len({id(run) for run in units(runs).values()}) for runs in self.tasks.values())

    @property
    def seeds(self) -> int:
        """How many policies were trained."""
        return sum(len(units(runs)) for runs in self.tasks.values())

    @property
    def limit(self) -> float | None:
        """The cost limit that all of the runs have; None where they have none, or not the same."""
        found = {run.cost_limit for run in self.runs}
        return found.pop() if len(found) == 1 else None

    def estimate(self, metric: Metric) -> Pooled:
        """Mean with interval; of several tasks only what has a scale in common, by a bootstrap over seeds and tasks."""
        if len(self.tasks) == 1:
            (runs,) = self.tasks.values()
            found = pooled_interval(runs, metric.field)
            return found if metric.name != "normalized" else _normalized(runs[0], found)
        return self.aggregate(metric, statistics.mean)

    def aggregate(self, metric: Metric, statistic: statistics.Statistic) -> Pooled:
        """A statistic over the scores of several tasks; none where a task lacks them or there is no common scale."""
        tasks = [_scores(runs, metric) for runs in self.tasks.values()]
        if not metric.common or not all(tasks):
            return Pooled(None)
        return over_tasks(tasks, statistic, np.random.default_rng(0))


def text_of(value: Any) -> str:
    """A key's value as tables show it."""
    return "-" if value is None else shown(value)


def _reference(run: RunData) -> tuple[float, float] | None:
    return None if run.normalized is None else reference_scores(run.environment or run.dataset or "")


def _normalized(run: RunData, returns: Pooled) -> Pooled:
    reference = _reference(run)
    if reference is None or returns.bounds is None:
        return Pooled(None)
    bounds = {
        key: None if (one := returns.bounds.get(key)) is None else float(normalized_score(one, reference))
        for key in ("mean", "low", "high")
    }
    return dataclasses.replace(returns, bounds=bounds)


def _scores(runs: Sequence[RunData], metric: Metric) -> list[float]:
    """A number for each seed of one task."""
    found = list(pooled(runs, metric.field).values())
    if metric.name != "normalized":
        return found
    reference = _reference(runs[0])
    return [] if reference is None else [float(normalized_score(one, reference)) for one in found]


# -- grouping ------------------------------------------------------------------------------------------------


def parse_keys(text: str, option: str = "--group-by") -> tuple[str, ...]:
    """Keys as the command line has them, between commas; `option` is named where they can't be used.

    Raises:
        ConfigError: an empty key, or one that is given twice.
    """
    found = tuple(ALIASES.get(key.strip(), key.strip()) for key in text.split(","))
    if not all(found):
        raise ConfigError(f"{option} {text!r}: a key is empty; write keys between commas, as in algorithm,task")
    twice = sorted({key for key in found if found.count(key) > 1})
    if twice:
        raise ConfigError(f"{option} {text!r}: {twice[0]} is given twice; give each key once")
    return found


def group(results: Results, keys: Sequence[str]) -> list[Group]:
    """Runs by their values of `keys`, in the order in which values first occur, numbers in theirs.

    Tuning seeds are never pooled with test seeds, nor files of one name that hold other data.

    Raises:
        ConfigError: a key that no run has.
    """
    splits = splits_of(results)
    ending = {id(run): SPLITS[split] for run, split in zip(results.runs, splits, strict=True)}
    placed = {
        id(run): (task, label.removesuffix(ending[id(run)]))
        for task, listed in groups(results).items()
        for label, runs in listed.items()
        for run in runs
    }
    found: dict[tuple[str, ...], tuple[tuple[Any, ...], dict[str, list[RunData]]]] = {}
    rows = []
    short = _short_tasks(results.runs)
    for i, run in enumerate(results.runs):
        task, label = placed[id(run)]
        task = task.replace(f" in {run.environment}", "", 1) if short else task
        known = {
            "task": task, "setting": label, "algorithm": run.algorithm, "preset": run.preset, "dataset": run.dataset,
            "environment": run.environment, "split": splits[i], "run": results.names[i],
        }  # fmt: skip
        rows.append({**known, **_options(run)})
    _check_keys(keys, rows)
    for i, (run, row) in enumerate(zip(results.runs, rows, strict=True)):
        values = tuple(row.get(key) for key in keys)
        apart = tuple(text_of(value) for value in (*values, splits[i]))
        _, tasks = found.setdefault(apart, (values, {}))
        tasks.setdefault(str(row["task"]), []).append(run)
    listed = [Group(values, {task: tuple(runs) for task, runs in tasks.items()}) for values, tasks in found.values()]
    return sorted(listed, key=_order(listed))


def _short_tasks(runs: Sequence[RunData]) -> bool:
    """Whether datasets alone name the tasks: all runs have one, and each is judged in one environment."""
    judged: dict[str | None, set[str | None]] = {}
    for run in runs:
        judged.setdefault(run.dataset, set()).add(run.environment)
    return None not in judged and all(len(environments) == 1 for environments in judged.values())


def splits_of(results: Results) -> list[str]:
    """tune, test or none of each run."""
    return [str(row[RUNS.index("split")]) for row in results.table]


def with_split(results: Results, keys: Sequence[str]) -> tuple[str, ...]:
    """The keys, and the split where some runs are of a tuning study: its seeds are not pooled with others."""
    apart = "split" not in keys and set(splits_of(results)) != {"none"}
    return (*keys, "split") if apart else tuple(keys)


def _options(run: RunData) -> dict[str, Any]:
    """Key -> value of what a run's plan says."""
    plan = run.config.get("plan")
    plan = dict(plan) if isinstance(plan, Mapping) else {}
    own = plan.pop("config", None)
    found = {key: value for key, value in plan.items() if key not in KEYS and key != "seeds"}
    found["steps"] = run.steps
    return {**found, **{f"algo.{key}": value for key, value in (own or {}).items()}}


def _check_keys(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    for key in keys:
        if any(key in row for row in rows):
            continue
        known = sorted({name for row in rows for name in row})
        differ = [name for name in known if len({repr(row.get(name)) for row in rows}) > 1 and name not in KEYS]
        words = f"; these runs differ in {', '.join(differ[:ENDLESS])}" if differ else ""
        own = f"algo.{key}"
        raise ConfigError(
            f"no run has the key {key!r} to group by: {nearest(own if own in known else key, known)}{words}"
        )


def _order(listed: Sequence[Group]) -> Callable[[Group], tuple[Any, ...]]:
    places: list[dict[str, int]] = []
    for k in range(len(listed[0].values)):
        values = [one.values[k] for one in listed]
        if all(isinstance(value, int | float) for value in values):
            values = sorted(values)
        places.append({text: i for i, text in enumerate(dict.fromkeys(map(text_of, values)))})
    return lambda one: tuple(place[text_of(value)] for place, value in zip(places, one.values, strict=True))


# -- tabular --------------------------------------------------------------------------------------------------


def long_table(results: Results, keys: Sequence[str]) -> Tabular:
    """A row a group: keys, each metric with its interval, runs, seeds, episodes, and what the intervals are over."""
    keys = with_split(results, keys)
    listed = group(results, keys)
    language = any(run.passes is not None for run in results.runs)
    columns = [Heading(key, key.removeprefix("algo."), right=_is_number(listed, k)) for k, key in enumerate(keys)]
    found = {metric: [one.estimate(metric) for one in listed] for metric in METRICS.values()}
    shown_metrics = [metric for metric, cells in found.items() if any(cell.bounds is not None for cell in cells)]
    several = any(len(one.tasks) > 1 for one in listed)
    common = next((metric for metric in shown_metrics if metric.common), None) if several else None
    columns += [Heading(m.name, f"{heading(m, language)} [95 %]", estimate=True) for m in shown_metrics]
    columns += (
        [Heading(f"iqm_{common.name}", f"IQM {heading(common, language)} [95 %]", estimate=True)] if common else []
    )
    columns.append(Heading("cost_limit", "cost limit"))
    columns += [Heading("tasks", "tasks")] if several else []
    columns += [Heading("runs", "runs"), Heading("seeds", "seeds"), Heading("episodes", "episodes")]
    columns.append(Heading("interval_over", "interval over", right=False))
    digits = {metric: _digits(metric, found[metric]) for metric in shown_metrics}
    rows = []
    for i, one in enumerate(listed):
        cells: list[Value] = [text_of(value) for value in one.values]
        cells += [_estimate(found[metric][i], metric, digits[metric]) for metric in shown_metrics]
        if common is not None:
            middle = one.aggregate(common, statistics.interquartile_mean) if len(one.tasks) > 1 else Pooled(None)
            cells.append(_estimate(middle, common, digits[common]))
        over = dict.fromkeys(found[metric][i].over or "" for metric in shown_metrics)
        cells.append(None if one.limit is None else f"{one.limit:g}")
        cells += [len(one.tasks)] if several else []
        cells += [one.counted, one.seeds, _episodes(one), " / ".join(filter(None, over)) or None]
        rows.append(tuple(cells))
    caption = f"Results by {_words(keys)}: mean and 95 % interval"
    alone = any(cell.over == EPISODES for estimates in found.values() for cell in estimates)
    notes = (ALONE,) if alone else ()
    return without_empty_columns(Tabular(tuple(columns), tuple(rows), caption, notes, tuple(_hints(listed)), len(keys)))


def pivot_table(results: Results, keys: Sequence[str], across: Sequence[str], metric: Metric) -> Tabular:
    """A row for each value of the keys that are not in `across`, a column for each value of those that are.

    In bold is the best mean of a row, and each whose interval reaches it; of costs the best is the lowest. Where runs
    have a cost limit, a return is in bold only where its mean cost keeps to the limit.

    Raises:
        ConfigError: `across` has no key of `keys`, or all of them; or no run has the metric.
    """
    keys = with_split(results, keys)
    if any(key not in keys for key in across) or set(across) == set(keys):
        raise ConfigError(
            f"--pivot {','.join(across)}: its keys stand across, and others down; give some of --group-by "
            f"{','.join(keys)}, but not all"
        )
    listed = group(results, keys)
    language = any(run.passes is not None for run in results.runs)
    places = [keys.index(key) for key in across]
    down = [k for k in range(len(keys)) if k not in places]
    found = [one.estimate(metric) for one in listed]
    if all(cell.bounds is None for cell in found):
        have = [name for name, other in METRICS.items() if any(one.estimate(other).bounds for one in listed)]
        raise ConfigError(
            f"--metric {metric.name}: no group of these runs has it"
            + (f"; they have {', '.join(have)}" if have else "; they were trained without a simulator")
        )
    digits = _digits(metric, found)
    heads = _by_place(listed, places)
    rows: dict[tuple[str, ...], dict[tuple[str, ...], tuple[Group, Pooled]]] = {}
    for one, cell in zip(listed, found, strict=True):
        rows.setdefault(_at(one, down), {})[_at(one, places)] = (one, cell)
    body: list[tuple[Value, ...]] = []
    marks: set[str] = set()
    for name, row in rows.items():
        allowed = [_allowed(one, cell, metric) for one, cell in row.values()]
        best = _best(allowed, metric) if len(allowed) > 1 else None  # alone, nothing is best
        cells: list[Value] = []
        for head in heads:
            if head not in row:
                cells.append(None)
                continue
            one, cell = row[head]
            marked = _marks(one, cell, metric)
            marks |= set(marked)
            shown_cell = _estimate(cell, metric, digits)
            if shown_cell is not None:
                bold = best is not None and _reaches(_allowed(one, cell, metric), best, metric)
                shown_cell = dataclasses.replace(shown_cell, bold=bold, marks=marked)
            cells.append(shown_cell)
        body.append((*name, *cells))
    columns = [Heading(keys[k], keys[k].removeprefix("algo."), right=_is_number(listed, k)) for k in down]
    columns += [Heading("/".join(head), ", ".join(head), estimate=True) for head in heads]
    seeds = sorted({one.seeds for one in listed})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = "" if seeds[-1] == 1 else "s"
    caption = f"{_capital(heading(metric, language))} by {_words([*(keys[k] for k in down), *across])}: mean "
    caption += f"and 95 % interval of {many} seed{plural}, {_all_episodes(listed)} episodes each"
    notes = [_bold_rule(metric, any(one.limit is not None for one in listed)), *_mark_notes(marks)]
    hints = (NO_TEST, *_hints(listed))
    return without_empty_columns(Tabular(tuple(columns), tuple(body), caption, tuple(notes), hints, len(down)))


def _by_place(listed: Sequence[Group], places: Sequence[int]) -> list[tuple[str, ...]]:
    """Values at some places, in the order in which `group` would list them by these keys alone."""
    order = _order(listed)
    ranked = {_at(one, places): tuple(order(one)[k] for k in places) for one in listed}
    return sorted(ranked, key=lambda head: ranked[head])


def _at(one: Group, places: Sequence[int]) -> tuple[str, ...]:
    return tuple(text_of(one.values[k]) for k in places)


def _is_number(listed: Sequence[Group], k: int) -> bool:
    return all(isinstance(one.values[k], int | float) and not isinstance(one.values[k], bool) for one in listed)


def heading(metric: Metric, language: bool) -> str:
    """What a metric is called; of language models success is pass@1."""
    return "pass@1 in %" if language and metric.name == "success" else metric.heading


def _digits(metric: Metric, cells: Sequence[Pooled]) -> int:
    """Digits behind the point of a column: fewer where its largest mean is large."""
    if metric.share:
        return 0
    largest = max((abs(cell.bounds["mean"]) for cell in cells if cell.bounds is not None), default=0.0)
    return 1 if largest >= 10 else 2 if largest >= 1 else 3


def _estimate(found: Pooled, metric: Metric, digits: int) -> Estimate | None:
    if found.bounds is None or found.bounds.get("mean") is None:
        return None
    times = 100.0 if metric.share else 1.0
    mean, low, high = (
        None if (one := found.bounds.get(key)) is None else times * float(one) for key in ("mean", "low", "high")
    )
    assert mean is not None
    return Estimate(mean, low, high, digits)


def _episodes(one: Group) -> str | None:
    counts = sorted({run.episodes for run in one.runs if run.episodes})
    return None if not counts else f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def _all_episodes(listed: Sequence[Group]) -> str:
    counts = sorted({run.episodes for one in listed for run in one.runs if run.episodes})
    return "-" if not counts else f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


# -- what is best --------------------------------------------------------------------------------------------


def _over_limit(one: Group) -> bool:
    """Whether the mean cost is above the limit."""
    limit = one.limit
    cost = None if limit is None else one.estimate(METRICS["cost"]).bounds
    return limit is not None and cost is not None and cost["mean"] > limit


def _allowed(one: Group, cell: Pooled, metric: Metric) -> Pooled:
    """The cell where it may be best: a return above its cost limit may not."""
    return Pooled(None) if not metric.lower and _over_limit(one) else cell


def _best(cells: Sequence[Pooled], metric: Metric) -> float | None:
    means = [float(cell.bounds["mean"]) for cell in cells if cell.bounds is not None]
    if not means:
        return None
    return min(means) if metric.lower else max(means)


def _reaches(cell: Pooled, best: float, metric: Metric) -> bool:
    """Whether the mean is the best, or its interval reaches it."""
    if cell.bounds is None:
        return False
    if cell.bounds["mean"] == best:
        return True
    end = cell.bounds.get("low" if metric.lower else "high")
    return end is not None and (end <= best if metric.lower else end >= best)


def _bold_rule(metric: Metric, limited: bool) -> str:
    best, end = ("lowest", "down to") if metric.lower else ("highest", "up to")
    keeps = ", of those that keep to their cost limit" if limited and not metric.lower else ""
    return f"{BOLD}the {best} mean of a row{keeps}, and each whose 95 % interval reaches {end} it."


def _marks(one: Group, cell: Pooled, metric: Metric) -> str:
    marks = {EPISODES: ONE_SEED, SEEDS: ONLY_SEEDS}.get(cell.over or "", "")
    return marks + (OVER_LIMIT if not metric.lower and cell.bounds is not None and _over_limit(one) else "")


def _mark_notes(marks: set[str]) -> list[str]:
    reported = {
        ONE_SEED: "one training seed, so the interval is over its episodes and says nothing of other seeds.",
        ONLY_SEEDS: "the interval is over seeds alone and says nothing of other initial states.",
        OVER_LIMIT: "its mean cost is above its limit.",
    }
    return [f"{mark} {_capital(text)}" for mark, text in reported.items() if mark in marks]


# -- notes ---------------------------------------------------------------------------------------------------

ALONE = "An interval over the episodes of one seed says nothing of other training seeds."
NO_TEST = "entries in bold are no test of a difference; surefoot compare has one"


def _hints(listed: Sequence[Group]) -> list[str]:
    """What who makes a table is to know: what was pooled, and what could not be."""
    notes = []
    for one in listed:
        for runs in one.tasks.values():
            different = varied([settings(run) for run in _first_of_each(runs)])
            if different and different[0]:
                reported = [_listed(key, [each[key] for each in different]) for key in different[0]]
                keys = ",".join(_key(key) for key in different[0])
                notes.append(f"{one.label}: pools runs that differ in {'; '.join(reported)}: add {keys} to --group-by")
    if any(len(one.tasks) > 1 for one in listed):
        without = [metric.heading for metric in METRICS.values() if not metric.common and _has(listed, metric)]
        if without:
            notes.append(
                f"{' and '.join(without)} of several tasks have no scale in common and are not averaged: add task to "
                "--group-by"
            )
        for one in listed:
            counts = sorted({len(units(runs)) for runs in one.tasks.values()})
            if len(one.tasks) > 1 and (len(counts) > 1 or counts == [1]):
                why = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else "one seed each"
                notes.append(f"{one.label}: its tasks have {why}, so there is no interval over tasks and seeds")
    notes += [f"{one.label}: {stated}" for one in listed for runs in one.tasks.values() for stated in repeated(runs)]
    return notes


def _first_of_each(runs: Sequence[RunData]) -> list[RunData]:
    """One run of each setting."""
    first: dict[str, RunData] = {}
    for (key, _), run in units(runs).items():
        first.setdefault(key, run)
    return list(first.values())


def _has(listed: Sequence[Group], metric: Metric) -> bool:
    return any(getattr(run, metric.field) for one in listed if len(one.tasks) > 1 for run in one.runs)


def _key(name: str) -> str:
    return name if name in OF_THE_PLAN or name in USUAL else f"algo.{name}"


def _listed(key: str, values: Sequence[Any]) -> str:
    texts = list(dict.fromkeys(map(text_of, values)))
    more = f" and {len(texts) - ENDLESS} more" if len(texts) > ENDLESS else ""
    return f"{_key(key)} ({', '.join(texts[:ENDLESS])}{more})"


def _words(keys: Sequence[str]) -> str:
    *most, last = [key.removeprefix("algo.") for key in keys]
    return f"{', '.join(most)} and {last}" if most else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
