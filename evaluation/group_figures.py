"""Pictures of pooled runs for a paper's column: learning curves, or final scores, a panel a task."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation import plots
from surefoot.evaluation.curves import LOGGED
from surefoot.evaluation.group_tables import METRICS, Group, Metric, group, heading, text_of, with_split
from surefoot.evaluation.pooling import pooled_curve, units
from surefoot.evaluation.results import Results
from surefoot.evaluation.runs import RunData

OF_A_TASK = ("task", "dataset", "environment")
"""Keys that the title of a panel says."""
NARROWEST = 1.55
"""Inches of a panel."""
LABELS = 0.45
"""Inches of a panel that its ticks' labels take."""
HEIGHT = 1.5
"""Inches of a row of panels."""
SHORT = {"return": "return", "success": plots.SHARE, "cost": "cost of an episode", "pass_k": "pass@k"}
KINDS = ("curves", "scores")


def figure_of(
    results: Results, keys: Sequence[str], metric: Metric, kind: str | None = None, width: float = plots.COLUMN
) -> tuple[plots.Figure, str]:
    """A figure in the style of print, and its caption.

    Args:
        results: with at least one run.
        keys: as of `group_tables.group`; what is no key of a task is a line.
        metric: of the axis.
        kind: curves, of the evaluations while runs trained, or scores, of the last policies; None: curves where
            evaluations of the metric were logged.
        width: inches.

    Raises:
        ConfigError: no run has the metric, or an unknown key.
    """
    keys = with_split(results, keys)
    listed = group(results, keys)
    tasks = list(dict.fromkeys(task for one in listed for task in one.tasks))
    lines = {task: {_line(one, keys): one.tasks[task] for one in listed if task in one.tasks} for task in tasks}
    logged = metric.name in LOGGED and any(
        run.logged(metric.name) for mine in lines.values() for runs in mine.values() for run in runs
    )
    if kind is None:
        kind = "curves" if logged else "scores"
    if kind == "curves":
        if not logged:
            raise ConfigError(f"no run logged evaluations of {metric.name} while it trained; use --figure scores")
        return _curves(lines, metric, width)
    return _scores(lines, metric, width, any(run.passes is not None for run in results.runs))


def _line(one: Group, keys: Sequence[str]) -> str:
    """What a group is called within its task."""
    texts = [
        f"{key.removeprefix('algo.')} {text_of(value)}" if key.startswith("algo.") else text_of(value)
        for key, value in zip(keys, one.values, strict=True)
        if key not in OF_A_TASK
    ]
    return ", ".join(texts) or "all runs"


def _across(count: int, width: float) -> int:
    return max(1, min(count, int(width / NARROWEST)))


def _curves(
    lines: Mapping[str, Mapping[str, Sequence[RunData]]], metric: Metric, width: float
) -> tuple[plots.Figure, str]:
    panels = []
    for task, mine in lines.items():
        curves = {label: points for label, runs in mine.items() if (points := pooled_curve(runs, metric.name))}
        if not curves:
            continue
        runs = [run for some in mine.values() for run in some]
        behaviour = next((run.behaviour for run in runs if run.behaviour), None)
        data = behaviour["mean"] if behaviour is not None and metric.name == "return" else None
        limits = sorted({run.cost_limit for run in runs if run.cost_limit is not None}) if metric.lower else []
        panels.append(plots.Panel(curves, task, "", data, limits))
    across = _across(len(panels), width)
    panels = [
        dataclasses.replace(
            panel, label=SHORT[metric.name] if i % across == 0 else "", title=_title(panel.title, width / across)
        )
        for i, panel in enumerate(panels)
    ]
    every = [run for mine in lines.values() for runs in mine.values() for run in runs]
    size = (width, 0.35 + HEIGHT * -(-len(panels) // across))
    figure = plots.curve_panels(panels, RunData.steps_of_all(every), size, across, plots.PRINT)
    counts = sorted({len(units(runs)) for mine in lines.values() for runs in mine.values()})
    caption = f"Mean {SHORT[metric.name]} of evaluations during training; {_bands(counts)}"
    return figure, f"{caption} Triangles: an interval continues beyond the axis." if any(
        map(plots.is_cut, panels)
    ) else caption


def _scores(
    lines: Mapping[str, Mapping[str, Sequence[RunData]]], metric: Metric, width: float, language: bool
) -> tuple[plots.Figure, str]:
    panels: dict[str, dict[str, Mapping[str, Any]]] = {}
    limits: dict[str, list[float]] = {}
    counts: set[int] = set()
    for task, mine in lines.items():
        for label, runs in mine.items():
            found = Group((), {task: tuple(runs)}).estimate(metric).bounds
            if found is None:
                continue
            times = 100.0 if metric.share else 1.0
            panels.setdefault(task, {})[label] = {
                key: None if (one := found.get(key)) is None else times * one for key in ("mean", "low", "high")
            }
            counts.add(len(units(runs)))
            if metric.lower:
                limits[task] = sorted({run.cost_limit for run in runs if run.cost_limit is not None})
    if not panels:
        have = [name for name, other in METRICS.items()
                if any(Group((), {task: tuple(runs)}).estimate(other).bounds for task, mine in lines.items()
                       for runs in mine.values())]  # fmt: skip
        raise ConfigError(f"no run has {metric.name} of its last policies; they have {', '.join(have) or 'no scores'}")
    named = heading(metric, language)
    figure = plots.interval_panels(panels, named, width, limits)
    return figure, f"Mean {named} of the last policies; {_bands(sorted(counts)).replace('bands', 'bars')}"


def _title(text: str, width: float) -> str:
    """A task's name as a panel has room for it, in several lines."""
    return "\n".join(textwrap.wrap(text, max(12, int((width - LABELS) / plots.LETTER)), break_on_hyphens=True))


def _bands(seeds: Sequence[int]) -> str:
    """What the bands are over."""
    if list(seeds) == [1]:
        return "bands: 95 % intervals over the episodes of one seed, which say nothing of other seeds."
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    alone = "; of one seed over its episodes alone" if seeds[0] == 1 else ""
    return f"bands: 95 % intervals over {many} seeds and their shared initial states{alone}."
