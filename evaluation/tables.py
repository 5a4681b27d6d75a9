"""One list of rows behind every table that a user sees: terminal, plain text, JSON and HTML."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from surefoot.core.errors import printable
from surefoot.evaluation.runs import RunData, labelled, task_name
from surefoot.evaluation.safety import Safety

Bounds = Mapping[str, Any] | None  # mean, low, high


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
        listed.extend(run_row(run) for run in group)
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
        steps=run.steps,
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
    )


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
        returns={key: behaviour.get(key) for key in ("mean", "low", "high")},
        normalized=None if normalized is None else {"mean": normalized, "low": None, "high": None},
        cost=behaviour.get("cost"),
        updates_per_second=None,
    )


def format_bounds(bounds: Bounds, digits: int = 1) -> str:
    """`12.3 [10.0, 14.6]`; without the brackets where there is no interval; a dash where there is nothing."""
    if bounds is None or bounds.get("mean") is None:
        return "-"
    text = f"{bounds['mean']:.{digits}f}"
    low, high = bounds.get("low"), bounds.get("high")
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return text
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]"


def format_small(bounds: Bounds) -> str:
    """As `format_bounds`, with three significant digits for what may be far below 1."""
    if bounds is None or bounds.get("mean") is None:
        return "-"
    if bounds.get("low") is None or bounds.get("high") is None:
        return f"{bounds['mean']:.3g}"
    return f"{bounds['mean']:.3g} [{bounds['low']:.3g}, {bounds['high']:.3g}]"


def format_share(bounds: Bounds) -> str:
    """A share and its interval in per cent: `94 [83, 99]`."""
    shares = {
        key: None if (value := (bounds or {}).get(key)) is None else 100 * value for key in ("mean", "low", "high")
    }
    return format_bounds(shares, digits=0)


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


COLUMNS: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    ("algorithm", "left", lambda row: labelled(row.algorithm, row.preset)),
    ("dataset", "left", lambda row: row.dataset or "-"),
    ("environment", "left", lambda row: row.environment or "none"),
    ("steps", "right", lambda row: _number(row.steps)),
    ("seeds", "right", lambda row: _number(row.seeds)),
    ("episodes", "right", lambda row: _number(row.episodes)),
    ("return [95 %]", "right", lambda row: format_bounds(row.returns)),
    ("success in % [95 %]", "right", lambda row: format_share(row.success)),
    ("normalised [95 %]", "right", lambda row: format_bounds(row.normalized)),
    ("cost [95 %]", "right", lambda row: format_bounds(row.cost)),
    ("cost / limit", "right", _of_safety(_normalized_cost)),
    ("95th percentile", "right", _of_safety(lambda found: f"{found.percentile_95:.1f}")),
    ("episodes violating", "right", _of_safety(lambda found: f"{100 * found.violated:.3g} %")),
    ("steps violating", "right", _of_safety(_violating_steps)),
    ("updates/s", "right", lambda row: _number(row.updates_per_second)),
)
"""(heading, alignment, cell) of every column; episodes are per seed, or all that the dataset holds."""
DETAILS: tuple[tuple[str, str, Callable[[Row], str]], ...] = (("action change [95 %]", "right", _action_change),)
"""Further columns, of evaluations and reports: what ends a training run stays narrow."""


def columns_of(listed: Sequence[Row], details: bool = False) -> list[tuple[str, str, Callable[[Row], str]]]:
    """The columns in which some row has something to say."""
    columns = (*COLUMNS, *DETAILS) if details else COLUMNS
    return [column for column in columns if any(column[2](row) not in ("-", "none") for row in listed)]


def to_rich(listed: Sequence[Row], title: str | None = None, details: bool = False) -> Table:
    """A table for the terminal."""
    table = Table(title=title, title_justify="left", header_style="bold")
    columns = columns_of(listed, details)
    for heading, alignment, _ in columns:
        table.add_column(heading.replace("[", r"\["), justify="left" if alignment == "left" else "right")
    for row in listed:
        cells = [printable(cell(row)).replace("[", r"\[") for _, _, cell in columns]
        table.add_row(*cells, style="dim" if row.seeds is None else None)
    return table


def to_text(listed: Sequence[Row], details: bool = False) -> str:
    """The same as aligned plain text, for logs and pipes."""
    columns = columns_of(listed, details)
    lines = [[heading for heading, _, _ in columns]]
    lines += [[printable(cell(row)) for _, _, cell in columns] for row in listed]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if alignment == "left" else text.rjust(width)
            for text, width, (_, alignment, _) in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def to_json(listed: Sequence[Row]) -> str:
    """The same as a JSON array of objects, one per row."""
    return json.dumps([row.to_json() for row in listed], indent=2, allow_nan=False)
