"""One HTML page about hundreds of runs: per task a table of settings, pooled over their seeds, curves and profiles."""

from __future__ import annotations

import datetime as dt
import html
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside
from surefoot.evaluation import plots, statistics, tables
from surefoot.evaluation.curves import CurvePoint, side_by_side
from surefoot.evaluation.pooling import EPISODES, SEEDS, Pooled, pooled, pooled_curve, pooled_interval, repeated
from surefoot.evaluation.report import STYLE, profiles_figure, table
from surefoot.evaluation.results import Results, groups
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.statistics import Array
from surefoot.evaluation.survival import median_steps, steps_to

MOST_DRAWN = 7
"""Settings in a picture: those with the best mean return; the table has all."""
REPETITIONS = 500
MOST_LETTERS = 28
"""Of a legend's line."""


def write_overview(results: Results, path: str | pathlib.Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        ConfigError: there is no run.
        SurefootError: the file can't be written.
    """
    page = render(results)
    with written_aside(path) as aside:
        aside.write_text(page, encoding="utf-8")


def render(results: Results) -> str:
    """The page as HTML text."""
    if not results.runs:
        raise ConfigError("there is no finished run to show; give folders that surefoot train wrote")
    found = groups(results)
    count = sum(len(settings) for settings in found.values())
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>surefoot results</title><style>{STYLE}</style></head><body><h1>surefoot results</h1>",
        f'<p class="note">{len(results.runs):,} runs of {count:,} settings in {len(found):,} tasks, written '
        f"{dt.date.today().isoformat()}. Runs that differ in their seeds alone are one line.</p>",
    ]
    for task, settings in found.items():
        parts += [f"<h2>{html.escape(task)}</h2>", *_task(settings)]
    if results.left_out:
        listed = "".join(f"<li>{html.escape(f'{name}: {why}')}</li>" for name, why in results.left_out.items())
        parts += [f"<h2>Left out</h2><ul>{listed}</ul>"]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _task(settings: Mapping[str, list[RunData]]) -> list[str]:
    scores = {label: np.array(list(pooled(runs, "per_seed_returns").values())) for label, runs in settings.items()}
    order = sorted(settings, key=lambda label: -scores[label].mean() if len(scores[label]) else math.inf)
    behaviour = next((run.behaviour for runs in settings.values() for run in runs if run.behaviour), None)
    data = None if behaviour is None else behaviour["mean"]
    head = [("setting", "left"), ("runs", "right"), ("seeds", "right"), ("return [95 %]", "right"), ("IQM", "right")]
    language = any(run.passes is not None for runs in settings.values() for run in runs)
    digits = 3 if language else 1
    shares = {"per_seed_success": "pass@1" if language else "success"}
    shares |= {"per_seed_pass_k": "pass@k"} if language else {}
    head += [*((f"{name} in % [95 %]", "right") for name in shares.values()), ("cost [95 %]", "right")]
    if data is not None:
        head.append(("median steps to the data's mean return", "right"))
    body = []
    for rank, label in enumerate(order, 1):
        runs = settings[label]
        cells = [
            f"{rank}. {label}",
            f"{len(runs):,}",
            f"{len({s for run in runs for s in run.seeds}):,}",
            _cell(pooled_interval(runs, "per_seed_returns"), digits),
        ]
        iqm = statistics.interquartile_mean(scores[label][:, None]) if len(scores[label]) else None
        cells.append("-" if iqm is None else f"{iqm:.{digits}f}")
        cells += [_cell(pooled_interval(runs, field), 0, 100.0) for field in shares]
        cells.append(_cell(pooled_interval(runs, "per_seed_costs")))
        if data is not None:
            cells.append(_reached(runs, float(data)))
        body.append((cells, False))
    parts = [table(head, body)]
    drawn = [label for label in order[:MOST_DRAWN] if len(scores[label])]
    names = {label: _short(f"{rank}. {label}") for rank, label in enumerate(order, 1)}
    curves = {names[label]: points for label in drawn if (points := curve(settings[label]))}
    figures = []
    if curves:
        steps_of = RunData.steps_of_all([run for label in drawn for run in settings[label]])
        figure = plots.learning_curves(curves, "Learning curves", data, steps_of, "IQM of return over seeds")
        few = _few([len(seed_curves(settings[label])) for label in drawn if names[label] in curves])
        figures.append(_figure(figure, f"IQM over seeds; 95 % band, the same resampled seeds at all steps.{few}"))
    limited = sorted({run.cost_limit for label in drawn for run in settings[label] if run.cost_limit is not None})
    costs = {names[label]: points for label in drawn if (points := pooled_curve(settings[label], "cost"))}
    if limited and costs:
        steps_of = RunData.steps_of_all([run for label in drawn for run in settings[label]])
        figure = plots.learning_curves(costs, "Cost", None, steps_of, plots.COST, limited)
        figures.append(_figure(figure, "Mean cost of an evaluation episode; 95 % band, of one seed over its episodes."))
    if len(drawn) > 1:
        figures.append(_profiles({names[label]: scores[label] for label in drawn}))
    more = f" The pictures show the {MOST_DRAWN} best of {len(order)} settings." if len(order) > MOST_DRAWN else ""
    note = (
        "Means with 95 % intervals for new seeds and new initial states. Where a cell says so, for seeds alone, as the "
        "episodes are missing, or over the episodes of one seed, which say nothing of others. The best of many "
        f"settings is too high on the seeds that chose it. Which of two is better: surefoot compare.{more}"
    )
    twice = [f"{rank}. {label}: {given}" for rank, label in enumerate(order, 1) for given in repeated(settings[label])]
    notes = "".join(f'<p class="note">{html.escape(one)}</p>' for one in (note, *twice))
    return [*parts, f'{notes}<div class="figures">', *figures, "</div>"]


def _short(label: str) -> str:
    """A label as legends have room for it; its number is in the table."""
    return label if len(label) <= MOST_LETTERS else f"{label[: MOST_LETTERS - 3]}..."


def seed_curves(runs: Sequence[RunData]) -> dict[int, dict[int, float]]:
    """Seed -> step -> mean evaluation return."""
    found: dict[int, dict[int, float]] = {}
    for run in runs:
        mine: dict[int, dict[int, float]] = {}
        for line in run.metrics:
            if line["kind"] == "eval" and "return_mean" in line["values"]:
                mine.setdefault(line["seed"], {})[line["step"]] = float(line["values"]["return_mean"])
        for seed, points in mine.items():
            found.setdefault(seed, points)
    return found


def curve(runs: Sequence[RunData]) -> list[CurvePoint]:
    """Interquartile mean over seeds at the steps that all have, with percentile bands of jointly resampled seeds.

    Bounds are nan of one seed, which says nothing of others.
    """
    found = side_by_side(seed_curves(runs))
    if not found:
        return []
    steps, matrix = [step for step, _ in found], np.array([values for _, values in found]).T
    rows = np.random.default_rng(0).integers(len(matrix), size=(REPETITIONS, len(matrix)))
    low, high = np.quantile(_iqm(matrix[rows]), [0.025, 0.975], axis=0)
    if len(matrix) == 1:
        low, high = np.full((2, len(steps)), math.nan)
    middle = _iqm(matrix[None])[0]
    return [CurvePoint(*point) for point in zip(steps, middle.tolist(), low.tolist(), high.tolist(), strict=True)]


def _iqm(values: Array) -> Array:
    """(..., seeds, steps) -> (..., steps)."""
    ordered = np.sort(values, axis=-2)
    cut = values.shape[-2] // 4
    return np.asarray(ordered[..., cut : values.shape[-2] - cut, :].mean(axis=-2))


def _reached(runs: Sequence[RunData], threshold: float) -> str:
    points = [sorted(one.items()) for one in seed_curves(runs).values()]
    if not points:
        return "-"
    found = [steps_to(np.array([s for s, _ in one]), np.array([v for _, v in one]), threshold) for one in points]
    middle, count = median_steps([t for t, _ in found], [r for _, r in found]), sum(r for _, r in found)
    return f"{'-' if math.isnan(middle) else f'{middle:,.0f}'} ({count} of {len(found)} got there)"


def _cell(found: Pooled, digits: int = 1, times: float = 1.0) -> str:
    if found.bounds is None:
        return "-"
    shown = {key: None if (one := found.bounds.get(key)) is None else times * one for key in ("mean", "low", "high")}
    text = tables.format_bounds(shown, digits)
    alone = {SEEDS: " over seeds alone", EPISODES: " over episodes"}.get(found.over or "", "")
    return f"{text}{alone}" if "[" in text else text


def _profiles(scores: Mapping[str, Array]) -> str:
    columns = {label: values[:, None] for label, values in scores.items()}
    figure = profiles_figure(columns, np.random.default_rng(0), REPETITIONS)
    few = _few([len(values) for values in scores.values()])
    return _figure(figure, f"Share of seeds whose final return is above the threshold; 95 % bands.{few}")


def _few(seeds: Sequence[int]) -> str:
    """What is to be reported of percentile bands over so many seeds of each setting, after a caption."""
    if min(seeds) >= statistics.ENOUGH:
        return ""
    alone = " One seed has none." if min(seeds) == 1 else ""
    several = [count for count in seeds if 1 < count < statistics.ENOUGH]
    narrow = f" With only {min(several)} seeds such bands are too narrow; trust the table." if several else ""
    return f"{alone}{narrow}"


def _figure(figure: plots.Figure, caption: str) -> str:
    return f"<figure>{plots.to_svg(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>"
