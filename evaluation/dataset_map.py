"""Datasets as points in a plane: how good their episodes are, and how much of state and action space they cover."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surefoot.core.base.errors import ConfigError
from surefoot.data import measures
from surefoot.data.dataset import Dataset
from surefoot.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

TOGETHER = "all of these"
"""Whose range the edges divide where no reference is given: that of a task's datasets together."""
CORNERS = (
    ((5, -3), "left", "top"),
    ((-5, 3), "right", "bottom"),
    ((5, 3), "left", "bottom"),
    ((-5, -3), "right", "top"),
)
"""Of a point's name: offset, alignment across, alignment down; in the order in which they are tried."""


def mapped(datasets: Sequence[Dataset], reference: Dataset | None = None) -> list[dict[str, Any]]:
    """The measures of each dataset: `saco_of` is its SACo's reference, `limits_of` what the edges divide the range of.

    Data without rewards have neither `tq` nor `return_mean`.
    Without a reference, one that is alone of its task has no SACo: it would be 1 whatever it covers.

    Args:
        datasets: of one task or of several, distinguished by environment and sizes.
        reference: of all of them; None: of each task the one among them that visits most cells, all being cut by the
            range that they span together.

    Raises:
        ConfigError: none given.
        DataError: observations that are not one vector, or a reference of another task.
    """
    if not datasets:
        raise ConfigError("a map needs at least one dataset")
    groups: dict[Any, list[Dataset]] = {}
    for dataset in datasets:
        key = (dataset.env_id, dataset.observation_dim, dataset.action_dim)
        groups.setdefault(None if reference is not None else key, []).append(dataset)
    found: dict[int, dict[str, Any]] = {}
    for members in groups.values():
        bounds = measures.limits(*([reference] if reference is not None else members))
        rows = min(measures.ROWS, *(len(one) for one in members), *([len(reference)] if reference is not None else []))
        counts = {id(one): measures.coverage(one, reference, rows=rows, bounds=bounds) for one in members}
        widest = max(members, key=lambda one: counts[id(one)].unique)
        against = reference or widest
        most = measures.coverage(against, rows=rows, bounds=bounds).unique
        alone = reference is None and len(members) == 1
        for one in members:
            found[id(one)] = {
                "dataset": one.name,
                "environment": one.env_id,
                "tq": measures.trajectory_quality(one),
                "return_mean": float(one.episode_returns.mean()) if one.has_rewards else None,
                "saco": None if alone else counts[id(one)].unique / most,
                "unique_cells": counts[id(one)].unique,
                "cells_of_rows": rows,
                "cells_saturated": counts[id(one)].saturated,
                "edges": measures.EDGES,
                "saco_of": None if alone else against.name,
                "limits_of": TOGETHER if reference is None else reference.name,
                "projected_coverage": measures.projected_coverage(one, bounds, rows),
            }
    return [found[id(dataset)] for dataset in datasets]


def picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Trajectory quality against coverage: left SACo, right the projected coverage, a point a dataset that has it.

    Where one with rewards has no reference returns, mean returns stand in for the quality. Those without rewards have
    no place beside others, which the axes say, and lie on one line where none has any.
    """
    rewarded = [row for row in rows if row["return_mean"] is not None]
    known = bool(rewarded) and all(row["tq"] is not None for row in rewarded)
    height, label = ("tq", "TQ: 0 random, 1 expert") if known else ("return_mean", "mean return")
    drawn = [{**row, "height": row[height]} for row in rewarded] or [{**row, "height": 0.0} for row in rows]
    tasks = list(dict.fromkeys(row["environment"] for row in rows))
    figure, axes = plots.beside("Map of datasets", (9.6, 4.2), 2)
    sides = (
        ("saco", "SACo: cells visited, of the reference's"),
        ("projected_coverage", "share of random planes visited"),
    )
    for one, (key, words) in zip(axes, sides, strict=True):
        there = [row for row in drawn if row[key] is not None]
        shades = [plots.COLOURS[tasks.index(row["environment"]) % len(plots.COLOURS)] for row in there]
        for row, colour in zip(there, shades, strict=True):
            one.plot([row[key]], [row["height"]], "o", color=colour, markersize=6, alpha=0.8, clip_on=False)
        if known:
            for level in (0, 1):
                one.axhline(level, color=plots.GREY, linestyle=":", linewidth=0.8)
        one.set_xlim(left=0)
        one.margins(x=0.25)
        _name([(row[key], row["height"], pathlib.Path(str(row["dataset"])).stem) for row in there], shades, one)
        absent = {"alone of their task": len(drawn) - len(there), "without rewards": len(rows) - len(drawn)}
        one.set_xlabel("; ".join([words, *(f"{count} {why}" for why, count in absent.items() if count)]))
        one.set_ylabel(label if rewarded else "no rewards")
        if not rewarded:
            one.set_yticks([])
        one.grid(alpha=0.25)
    return figure


def _name(points: Sequence[tuple[float, float, str]], colours: Sequence[str], axis: Axes) -> None:
    """Write each point's name beside it, in the corner where it covers least of the names before it and the frame."""
    frame = axis.get_window_extent()
    taken: list[Bbox] = []
    for (x, y, name), colour in zip(points, colours, strict=True):
        tried = []
        for offset, side, edge in CORNERS:
            text = axis.annotate(
                name, (x, y), offset, textcoords="offset points", fontsize=7, color=colour, ha=side, va=edge
            )
            box = text.get_window_extent()
            outside = max(0.0, frame.x0 - box.x0) + max(0.0, box.x1 - frame.x1)
            tried.append((outside * box.height + sum(_overlap(box, other) for other in taken), text, box))
        best = min(tried, key=lambda one: one[0])
        for one in tried:
            if one is not best:
                one[1].remove()
        taken.append(best[2])


def _overlap(one: Bbox, other: Bbox) -> float:
    """Area that two boxes share, in pixels."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0.0, width) * max(0.0, height))
