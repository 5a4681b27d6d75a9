"""One list of rows behind every table that a user sees: terminal, plain text, JSON and HTML."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from surefoot.core.base.errors import printable
from surefoot.core.base.files import written_aside
from surefoot.evaluation import names
from surefoot.evaluation.label import labelled
from surefoot.evaluation.runs import LAST, RunData, task_name
from surefoot.evaluation.safety import Safety
from surefoot.evaluation.tabular import blocks

Bounds = Mapping[str, Any] | None  # mean, low, high
INTERVAL_PARTS = ("mean", "low", "high")


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the comparison: a run, or the behaviour that recorded a dataset (`seeds` None)."""

    algorithm: str
    dataset: str | None
    environment: str | None
    steps: int | None  # gradient steps, or steps in the environment
    seeds: int | None  # how many training seeds
    episodes: int | None  # per seed, or recorded in the dataset
    returns: Bounds
    normalized: Bounds
    cost: Bounds
    updates_per_second: float | None
    safety: Safety | None = None
    smoothness: Mapping[str, Bounds] | None = None  # action_change and jacobian (`evaluation.smoothness`)
    preset: str | None = None  # of the algorithm, where it has several
    success: Bounds = None  # share of the episodes that end solved, 0 to 1
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the algorithm, that were changed
    name: str | None = None  # of the run, where several are distinguished by more than algorithm, preset and options
    passes: Mapping[str, Any] | None = None  # of a language model: samples (k), and greedy, pass_1 and pass_k

    @property
    def label(self) -> str:
        """What the first column says."""
        return self.name or labelled(self.algorithm, self.preset, self.options)

    @property
    def task(self) -> str:
        """Dataset and environment in a few words."""
        return task_name(self.dataset, self.environment)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values, ready for `json.dumps`; None where something does not apply."""
        return dataclasses.asdict(self)


def rows(runs: Sequence[RunData]) -> list[Row]:
    """Rows grouped by (dataset, environment): the dataset's behaviour first, then the runs as given."""
    listed: list[Row] = []
    for group in tasks(runs):
        recorded = next((run for run in group if run.behaviour is not None), None)
        if recorded is not None:
            listed.append(behaviour_row(recorded))
        named = zip(names.labels(group), group, strict=True)
        listed.extend(dataclasses.replace(run_row(run), name=label) for label, run in named)
    return listed


def tasks(runs: Sequence[RunData]) -> list[list[RunData]]:
    """The runs of each task, that is of each dataset and environment, in the order in which tasks first occur."""
    groups: dict[tuple[str | None, str | None], list[RunData]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.environment), []).append(run)
    return list(groups.values())


def run_row(run: RunData) -> Row:
    """The row of one run."""
    return Row(
        algorithm=run.algorithm,
        dataset=run.dataset,
        environment=run.environment,
        steps=run.steps if run.policies == LAST else None,  # best policies are of several
        seeds=len(run.seeds),
        episodes=run.episodes or None,
        returns=run.returns,
        normalized=run.normalized,
        cost=run.cost,
        updates_per_second=run.updates_per_second,
        safety=run.safety,
        smoothness=run.smoothness,
        preset=run.preset,
        success=run.success,
        options=run.options,
        passes=None if run.passes is None else {"samples": run.passes["samples"], **run.passes["after"]},
    )


ONE_SEED = "intervals of one seed are over its episodes, and say nothing of other seeds"


def alone(listed: Sequence[Row]) -> bool:
    """Whether a row of one seed has an interval, of which `ONE_SEED` is to be reported."""
    return any(row.seeds == 1 and any("[" in format_small(one) for one in (row.returns, row.cost)) for row in listed)


def behaviour_row(run: RunData) -> Row:
    """The row of the dataset that a run was trained on: what its behaviour returned."""
    behaviour = dict(run.behaviour or {})
    normalized = behaviour.get("normalized")
    return Row(
        algorithm="behaviour",
        dataset=run.dataset,
        environment=run.environment,
        steps=None,
        seeds=None,
        episodes=behaviour.get("episodes"),
        returns={key: behaviour.get(key) for key in INTERVAL_PARTS},
        normalized=None if normalized is None else {"mean": normalized, "low": None, "high": None},
        cost=behaviour.get("cost"),
        updates_per_second=None,
    )


def format_bounds(bounds: Bounds, digits: int = 1) -> str:
    """`12.3 [10.0, 14.6]`; without the brackets where there is no interval; a dash where there is nothing.

    An interval without width, of numbers that are all the same, says nothing of how sure they are: it is none.
    """
    if bounds is None or bounds.get("mean") is None:
        return "-"
    text = f"{bounds['mean']:.{digits}f}"
    low, high = bounds.get("low"), bounds.get("high")
    if low is None or high is None or math.isnan(low) or math.isnan(high) or low == high:
        return text
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]"


def format_small(bounds: Bounds) -> str:
    """As `format_bounds`, with three significant digits for what may be far below 1."""
    if bounds is None or bounds.get("mean") is None:
        return "-"
    if bounds.get("low") is None or bounds.get("high") is None or bounds["low"] == bounds["high"]:
        return f"{bounds['mean']:.3g}"
    return f"{bounds['mean']:.3g} [{bounds['low']:.3g}, {bounds['high']:.3g}]"


def format_share(bounds: Bounds) -> str:
    """A share and its interval in per cent: `94 [83, 99]`."""
    shares = {key: None if (value := (bounds or {}).get(key)) is None else 100 * value for key in INTERVAL_PARTS}
    return format_bounds(shares, digits=0)


def _return(row: Row) -> str:
    """With one digit; of language models, whose rewards are mostly between 0 and 1, with three that count."""
    return format_bounds(row.returns) if row.passes is None else format_small(row.returns)


def _passes(which: str, samples: int | None = None) -> Callable[[Row], str]:
    """The cell of a share of right answers; of pass@k in rows of this k alone."""
    return lambda row: (
        "-" if row.passes is None or samples not in (None, row.passes["samples"]) else format_share(row.passes[which])
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _of_safety(form: Callable[[Safety], str]) -> Callable[[Row], str]:
    return lambda row: "-" if row.safety is None else form(row.safety)


def _normalized_cost(found: Safety) -> str:
    """A normalised cost says nothing without its limit, so they share a cell."""
    return "-" if found.limit is None else f"{found.normalized:.2f} (limit {found.limit:g})"


def _action_change(row: Row) -> str:
    return "-" if row.smoothness is None else format_small(row.smoothness["action_change"])


def _violating_steps(found: Safety) -> str:
    return "-" if found.per_step is None else f"{100 * found.per_step:.3g} %, {found.per_episode:.4g} an episode"


class Column(NamedTuple):
    """A column of a table of results."""

    heading: str
    alignment: str
    """left or right"""
    cell: Callable[[Row], str]
    meaning: str
    """A sentence for who reads the page."""
    safety: bool = False
    """Whether it belongs to what episodes cost."""


COLUMNS: tuple[Column, ...] = (
    Column(
        "algorithm", "left", lambda row: row.label,
        "The algorithm, with the options in which the runs differ or that were changed; behaviour is what the dataset "
        "itself recorded.",
    ),
    Column("dataset", "left", lambda row: row.dataset or "-", "What it was trained on."),
    Column("environment", "left", lambda row: row.environment or "none", "The simulator that judges the policies."),
    Column(
        "return [95 %]", "right", _return,
        "Undiscounted sum of rewards of an episode, mean and 95 % interval over training seeds and initial states; of "
        "one seed over its episodes alone. Without brackets there is no interval. Of a language model: the reward of a "
        "sampled answer, over training seeds and prompts that were held out.",
    ),
    Column(
        "success in % [95 %]", "right", lambda row: "-" if row.passes else format_share(row.success),
        "Share of the episodes at whose last step the environment says that the task is solved, over all seeds.",
    ),
    Column(
        "normalised [95 %]", "right", lambda row: format_bounds(row.normalized),
        "The return where 0 is a random policy and 100 an expert of this environment.",
    ),
    Column(
        "cost [95 %]", "right", lambda row: format_bounds(row.cost),
        "Undiscounted sum of costs of an episode, with its interval as for the return.", True,
    ),
    Column(
        "cost / limit", "right", _of_safety(_normalized_cost),
        "Mean cost as a multiple of the limit beside it: at most 1 keeps to the limit.", True,
    ),
    Column(
        "episodes violating", "right", _of_safety(lambda found: f"{100 * found.violated:.3g} %"),
        "Episodes with a cost above 0, in evaluation only; what training itself cost is not in it.", True,
    ),
    Column(
        "steps", "right", lambda row: _number(row.steps),
        "Training steps of each seed: in the environment where the algorithm acts, gradient steps elsewhere.",
    ),
    Column("seeds", "right", lambda row: _number(row.seeds), "Training seeds: independent repetitions of the run."),
    Column(
        "episodes", "right", lambda row: _number(row.episodes),
        "Evaluation episodes of each seed; for the behaviour all episodes of the dataset.",
    ),
    Column(
        "updates/s", "right", lambda row: _number(row.updates_per_second),
        "Training steps a second, of all seeds that ran together.",
    ),
)  # fmt: skip
DETAILS: tuple[Column, ...] = (
    Column(
        "cost, 95th percentile", "right", _of_safety(lambda found: f"{found.percentile_95:.1f}"),
        "Nineteen of twenty episodes cost at most this.", True,
    ),
    Column(
        "steps violating", "right", _of_safety(_violating_steps),
        "Steps with a cost above 0, as a share of all steps, and their number in an episode.", True,
    ),
    Column(
        "action change [95 %]", "right", _action_change,
        "Mean squared difference of successive actions, in units of half the action range, summed over dimensions: "
        "how much a policy shakes its actuators.",
    ),
)  # fmt: skip
"""Further columns, of evaluations and reports: what ends a training run stays narrow."""


def _of_language(listed: Sequence[Row]) -> list[Column]:
    """Columns of language models: one for each k that pass@k was measured with."""
    found = sorted({int(row.passes["samples"]) for row in listed if row.passes is not None} - {1})
    over = "Mean and 95 % interval over training seeds and prompts; of one seed over its prompts alone."
    return [
        Column("greedy in % [95 %]", "right", _passes("greedy"), f"Greedy answers that are right. {over}"),
        Column("pass@1 in % [95 %]", "right", _passes("pass_1"), f"Sampled answers that are right. {over}"),
        *(Column(f"pass@{k} in % [95 %]", "right", _passes("pass_k", k),
                 f"Prompts of which at least one of {k} sampled answers is right. {over}") for k in found),
    ]  # fmt: skip


def columns_of(listed: Sequence[Row], details: bool = False) -> list[Column]:
    """The columns in which some row has something to say."""
    place = [column.heading for column in COLUMNS].index("success in % [95 %]")
    columns = [*COLUMNS[:place], *_of_language(listed), *COLUMNS[place:], *(DETAILS if details else ())]
    return [column for column in columns if any(column.cell(row) not in ("-", "none") for row in listed)]


def to_rich(listed: Sequence[Row], title: str | None = None, details: bool = False, width: int = 400) -> list[Table]:
    """Tables for a terminal of `width` columns: one, or several below each other, each with the rows' names.

    No number is ever cut or broken; only names are folded, between words.
    """
    columns = columns_of(listed, details)
    lines = [[printable(column.cell(row)) for column in columns] for row in listed]
    headings = [(column.heading, column.alignment) for column in columns]
    return blocks(headings, lines, [row.seeds is None for row in listed], width, title)


def to_text(listed: Sequence[Row], details: bool = False) -> str:
    """The same as aligned plain text, for logs and pipes."""
    columns = columns_of(listed, details)
    lines = [[column.heading for column in columns]]
    lines += [[printable(column.cell(row)) for column in columns] for row in listed]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if alignment == "left" else text.rjust(width)
            for text, width, (_, alignment, *_) in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def to_json(listed: Sequence[Row]) -> str:
    """The same as a JSON array of objects, one per row."""
    return json.dumps([row.to_json() for row in listed], indent=2, allow_nan=False)


def write_csv(listed: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """One line per row with every number in full: RETURNS_mean, _low, _high and so on; empty where there is none.

    Raises:
        SurefootError: the file can't be written.
    """
    lines = [_flat(row) for row in listed]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    with written_aside(path) as aside, open(aside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _flat(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"label": row.label}
    for key, value in row.to_json().items():
        if key in ("returns", "normalized", "cost", "success"):
            found |= {f"{key}_{part}": (value or {}).get(part) for part in INTERVAL_PARTS}
        elif key == "safety":
            found |= {
                f"cost_{name}": number for name, number in (value or {}).items() if name not in ("mean", "episodes")
            }
        elif key == "passes":
            for name, one in (value or {}).items():
                found |= {name: one} if name == "samples" else {f"{name}_{p}": one.get(p) for p in INTERVAL_PARTS}
        elif key == "options":
            found[key] = json.dumps(value) if value else None
        elif key not in ("smoothness", "name"):
            found[key] = value
    return {key: "" if value is None else value for key, value in found.items()}
