"""One self-contained HTML page about some runs: it opens from disk and loads nothing."""

from __future__ import annotations

import datetime as dt
import html
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside
from surefoot.evaluation import estimates, model_calibration, names, plots, statistics, tables
from surefoot.evaluation.certificates import broken_promise, filter_words, where_certified
from surefoot.evaluation.passes import pass_figures, pass_rows
from surefoot.evaluation.run_warnings import alarm_lines, best_lines, limit_lines
from surefoot.evaluation.runs import RunData, load_runs

__all__ = ["RunData", "load_runs", "render", "write_report"]

REPETITIONS = 2000  # bootstrap resamples; the generator is fixed so that equal runs give equal pages

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2024; max-width: 80rem; }
body { margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
p.note, figcaption { color: #5a6068; font-size: .87rem; max-width: 48rem; }
p.alarm { color: #a31515; font-weight: 600; border-left: .25rem solid #a31515; padding-left: .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .82rem; }
th, td { padding: .38rem .45rem; border-bottom: 1px solid #e3e6ea; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #1c2024; font-weight: 600; vertical-align: bottom; } .right { text-align: right; }
span { white-space: nowrap; }
td.task { font-weight: 600; padding-top: 1rem; }
tr.behaviour td { color: #5a6068; font-style: italic; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: .6rem 0; } svg { max-width: 100%; height: auto; }
details { margin: .5rem 0; } summary { cursor: pointer; }
dl { font-size: .87rem; color: #5a6068; display: grid; grid-template-columns: max-content auto; gap: .15rem .9rem; }
dt { font-weight: 600; } dd { margin: 0; max-width: 44rem; }
pre { background: #f5f6f8; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; border-radius: 4px; }
"""


def write_report(runs: Sequence[RunData], path: str | pathlib.Path) -> None:
    """Write the report of these runs as one HTML file, whole or not at all.

    Raises:
        ConfigError: no run is given.
        SurefootError: the file can't be written.
    """
    page = render(runs)
    with written_aside(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(runs: Sequence[RunData]) -> str:
    """The report as HTML text: comparison table, comparisons and curves per task, configuration per run."""
    if not runs:
        raise ConfigError("a report needs at least one run folder; name some after `surefoot report`")
    today = dt.date.today().isoformat()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>surefoot report</title><style>{STYLE}</style></head><body>",
        "<h1>surefoot report</h1>",
        f'<p class="note">{len(runs)} run{"s" if len(runs) > 1 else ""}, written {today}.</p>',
        "<h2>Scores</h2>",
        _score_table(runs),
        *(f'<p class="alarm">{html.escape(f"{run.name}: {line}")}</p>' for run in runs for line in limit_lines(run)),
        *(f'<p class="note">{html.escape(f"{run.name}: {line}")}</p>' for run in runs for line in best_lines(run)),
        *_alarms(runs),
        *_certificates(runs),
    ]
    for group in tables.tasks(runs):
        parts += [f"<h2>{html.escape(group[0].task)}</h2>", *_figures(group), *_comparisons(group)]
    parts += ["<h2>Runs</h2>", *(_run_details(run) for run in runs), "</body></html>"]
    return "\n".join(parts) + "\n"


TASK_COLUMNS = ("dataset", "environment")
"""Of the table of scores; here a line above the rows of each task has them."""


def _score_table(runs: Sequence[RunData]) -> str:
    """Scores; what episodes cost, for one table would be wider than a window; and what the columns mean."""
    listed = tables.rows(runs)
    columns = [column for column in tables.columns_of(listed, details=True) if column.heading not in TASK_COLUMNS]
    scores, costs = [c for c in columns if not c.safety], [c for c in columns if c.safety]
    parts = [_rows_table(listed, scores)]
    if costs:
        parts += ["<h3>Cost</h3>", _rows_table(listed, [columns[0], *costs])]
    meanings = "".join(f"<dt>{html.escape(c.heading)}</dt><dd>{html.escape(c.meaning)}</dd>" for c in columns)
    one = f'<p class="note">{tables.ONE_SEED[:1].upper()}{tables.ONE_SEED[1:]}.</p>' if tables.alone(listed) else ""
    methods = sorted({str(run.returns["method"]) for run in runs if run.returns and run.returns.get("method")})
    intervals = f'<p class="note">Intervals: {html.escape("; ".join(methods))}.</p>' if methods else ""
    explained = f"<details open><summary>What the columns say</summary><dl>{meanings}</dl></details>"
    return "".join(parts) + one + explained + intervals


def _rows_table(listed: Sequence[tables.Row], columns: Sequence[tables.Column]) -> str:
    """A table with a line above the rows of each task."""
    body: list[tuple[list[str], bool]] = []
    for task, group in itertools.groupby(listed, lambda row: row.task):
        body.append(([task], False))
        body += [([column.cell(row) for column in columns], row.seeds is None) for row in group]
    return table([(column.heading, column.alignment) for column in columns], body)


def _alarms(runs: Sequence[RunData]) -> list[str]:
    """What rang in runs that learned a model; nothing where none did."""
    watched = [run for run in runs if run.alarm is not None]
    if not watched:
        return []
    rang = [
        f'<p class="alarm">{html.escape(f"{run.name}: {line}")}</p>' for run in watched for line in alarm_lines(run)
    ]
    quiet = [run for run in watched if not alarm_lines(run)]
    deaf = [run.name for run in quiet if run.alarm is not None and run.alarm.get("watched") == []]
    silent = [_named(run) for run in quiet if run.name not in deaf]
    note = f"Nothing rang in {', '.join(silent)}. " if silent else ""
    note += f"Not watched, as no signal with a threshold was given: {', '.join(deaf)}. " if deaf else ""
    note += (
        "The alarm watches whether the policy exploits its model; the policy of the last checkpoint before it rang is "
        "beside the last one. Its signals and their thresholds: docs/world_models.md."
    )
    return ["<h2>Alarm</h2>", *rang, f'<p class="note">{html.escape(note)}</p>']


def _named(run: RunData) -> str:
    """A run's name, with the signals that it was watched by where they are known."""
    signals = (run.alarm or {}).get("watched")
    return f"{run.name} (watched: {', '.join(signals)})" if signals else run.name


def _certificates(runs: Sequence[RunData]) -> list[str]:
    """What `surefoot certify` found of these runs; nothing where it was never run."""
    head = [("policy", "left"), ("environment", "left"), ("violations", "right"), ("episodes", "right")]
    head += [("upper bound", "right"), ("confidence", "right"), ("return [95 %]", "right"), ("filter", "left")]
    body, broken = [], []
    for run in runs:
        for found in run.certificates:
            counts = [f"{found['violations']:,}", f"{found['episodes']:,}"]
            bound = [f"{found['upper']:.3g}", f"{100 * found['confidence']:g} %"]
            more = [tables.format_bounds(found.get("returns")), filter_words(found)]
            body.append(([found["policy"], where_certified(found), *counts, *bound, *more], False))
            if cases := broken_promise(found):
                lines = "<br />".join(html.escape(line) for line in [f"{found['policy']}: {cases[0]}", *cases[1:]])
                broken.append(f'<p class="alarm">{lines}</p>')
    if not body:
        return []
    stopped = any(found.get("sequential") for run in runs for found in run.certificates)
    kind = (
        "Clopper-Pearson; where one stopped early, a bound that holds at every look" if stopped else "Clopper-Pearson"
    )
    note = (
        "A violation is an episode with any cost in it. The probability of one is below the upper bound with this "
        f"confidence ({kind}), for initial states and noise as the environment draws them."
    )
    return ["<h2>Certificates</h2>", *broken, table(head, body), f'<p class="note">{html.escape(note)}</p>']


def _figures(group: list[RunData]) -> list[str]:
    """Final returns and learning curves of one task; nothing where there was no simulator."""
    labels = names.labels(group)
    over = _over(group)
    behaviour = next((run.behaviour["mean"] for run in group if run.behaviour), None)
    named = list(zip(labels, group, strict=True))
    if any(run.passes is not None for run in group):
        return _language(named)
    final = {label: run.returns for label, run in named if run.returns}
    curves = {label: points for label, run in named if (points := run.learning_curve())}
    drawn = []
    steps_of = RunData.steps_of_all(group)
    if curves:
        figure = plots.learning_curves(curves, "Learning curves", behaviour, steps_of, finals=final)
        drawn.append(_figure(figure, f"Mean evaluation return {over}. {_ends(group)}"))
    solved = {label: points for label, run in named if (points := run.success_curve())}
    if solved:
        ends = {label: run.success for label, run in named if run.success}
        figure = plots.learning_curves(solved, "Success", None, steps_of, plots.SHARE, finals=ends)
        drawn.append(_figure(figure, f"Share of evaluation episodes that end solved, {over}."))
    costs = {label: points for label, run in named if (points := run.cost_curve())}
    limits = _limits(group)
    if costs:
        ends = {label: run.cost for label, run in named if run.cost}
        figure = plots.learning_curves(costs, "Cost", None, steps_of, plots.COST, limits, ends)
        stated = f" {_limit_words(limits)}" if limits else ""
        drawn.append(_figure(figure, f"Mean cost of an evaluation episode, {over}.{stated}"))
    if final:
        figure = plots.interval_plot(final, "Final return", reference=behaviour)
        drawn.append(_figure(figure, f"Mean final return {over.replace('band', 'bar')}."))
    drawn += _return_against_cost(group, labels)
    drawn += [_model(label, run) for label, run in named if run.models]
    known = estimates.estimate_rows(group)
    parts = ['<div class="figures">', *drawn, "</div>"] if drawn else []
    if not final and not curves:
        why = "had no simulator" if all(run.environment is None for run in group) else "were not evaluated"
        parts.append(f'<p class="note">These runs {why}, so there are no returns.</p>')
    if known is not None:
        head, body, note = known
        parts += [table(head, body), f'<p class="note">{html.escape(note)}</p>']
    return parts


def _ends(group: Sequence[RunData]) -> str:
    """What tells the end of a learning curve from the final evaluation."""
    finals = sorted({run.episodes for run in group if run.returns and run.episodes})
    lasts = [len(last.get("returns") or ()) for run in group for last in run.last_evaluations()]
    if not finals or not any(lasts):
        return ""
    along = _span(sorted({count for count in lasts if count}))
    return (
        f"Lines: evaluations while it trained, of {along} episodes of each seed. Hollow marks behind them: the final "
        f"evaluation, of {_span(finals)} episodes of each seed from other initial states; the table of scores has it."
    )


def _span(counts: Sequence[int]) -> str:
    return f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"


def _limits(group: Sequence[RunData]) -> list[float]:
    """Cost limits of these runs, each once."""
    return sorted({run.cost_limit for run in group if run.cost_limit is not None})


def _limit_words(limits: Sequence[float]) -> str:
    drawn = " and ".join(f"{limit:g}" for limit in limits)
    return f"The dash-dotted line is the cost limit, {drawn} an episode." if limits else "No run has a cost limit."


def _language(named: list[tuple[str, RunData]]) -> list[str]:
    """Shares of right answers of language models, along training and before and after it."""
    drawn = [_figure(figure, caption) for figure, caption in pass_figures(named)]
    parts = ['<div class="figures">', *drawn, "</div>"] if drawn else []
    if (known := pass_rows(named)) is not None:
        head, body, note = known
        parts += [table(head, body), f'<p class="note">{html.escape(note)}</p>']
    return parts


def _over(group: Sequence[RunData]) -> str:
    """What means and intervals of these runs are taken over."""
    if all(len(run.seeds) == 1 for run in group):
        return "of one training seed; the band is the 95 % interval over its episodes, and says nothing of other seeds"
    if any(len(run.seeds) == 1 for run in group):
        return "over seeds; the band is the 95 % interval, of runs of one seed over episodes alone"
    return "over seeds; the band is the 95 % interval"


def _model(label: str, run: RunData) -> str:
    """How far the world that a run learned is to be believed."""
    figure = model_calibration.picture(run.models, f"{label}: its model")
    return _figure(figure, " ".join(f"{line[0].upper()}{line[1:]}." for line in model_calibration.words(run.models)))


def _return_against_cost(group: list[RunData], labels: list[str]) -> list[str]:
    """Return against cost of each run; nothing where there was no cost."""
    points = {
        label: (run.per_seed_returns, run.per_seed_costs)
        for label, run in zip(labels, group, strict=True)
        if run.per_seed_costs
    }
    if not points:
        return []
    limits = _limits(group)
    data = next((run.behaviour for run in group if run.behaviour and run.behaviour.get("cost")), None)
    behaviour = None if data is None else (float(data["mean"]), float(data["cost"]["mean"]))
    figure = plots.return_against_cost(points, "Return against cost", limits, behaviour)
    return [_figure(figure, f"A small mark is a seed, the large one a run's mean. {_limit_words(limits)}")]


def _figure(figure: plots.Figure, caption: str) -> str:
    return f"<figure>{plots.to_svg(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _comparisons(group: list[RunData]) -> list[str]:
    """IQM per run, probability of improvement per pair, performance profiles; needs two scored runs."""
    scored = [(label, run) for label, run in zip(names.labels(group), group, strict=True) if run.per_seed_returns]
    if len(scored) < 2:
        return []
    alone = [label for label, run in scored if len(run.per_seed_returns) < 2]
    if alone:
        note = (
            f"Of one training seed ({', '.join(alone)}) nothing can be reported about other seeds: neither whether one "
            "run is better than another nor how sure that is. Train with seeds=5 or more, or let surefoot compare "
            "decide how many it takes."
        )
        return ["<h3>Comparison</h3>", f'<p class="note">{html.escape(note)}</p>']
    scores = {label: np.array(run.per_seed_returns)[:, None] for label, run in scored}
    generator = np.random.default_rng(0)
    body, digits = [], 1 if all(run.passes is None for run in group) else 3
    for label, matrix in scores.items():
        interval = statistics.stratified_bootstrap_interval(
            matrix, statistics.interquartile_mean, generator, REPETITIONS
        )
        body.append(([label, str(len(matrix)), tables.format_bounds(interval.to_json(), digits)], False))
    parts = ["<h3>Interquartile mean over seeds</h3>"]
    parts.append(table([("algorithm", "left"), ("seeds", "right"), ("IQM of return [95 %]", "right")], body))
    pairs = []
    for first, second in itertools.permutations(scores, 2):
        interval = statistics.probability_of_improvement_interval(scores[first], scores[second], generator, REPETITIONS)
        pairs.append(([first, second, tables.format_bounds(interval.to_json(), digits=2)], False))
    parts.append("<h3>Probability of improvement</h3>")
    heads = [("X", "left"), ("Y", "left"), ("P(a seed of X beats a seed of Y) [95 %]", "right")]
    parts.append(table(heads, pairs))
    figure = profiles_figure(scores, generator, REPETITIONS)
    parts.append(_figure(figure, "Fraction of seeds whose mean return is above the threshold; bands are 95 %."))
    fewest = min(len(matrix) for matrix in scores.values())
    note = f"Percentile bootstrap over seeds, {REPETITIONS} resamples, as rliable defines these."
    if fewest < statistics.ENOUGH:
        seeds = f"{fewest} seed{'s' if fewest > 1 else ''}"
        note += f" With only {seeds} such intervals are too narrow; trust the table of scores."
    return [*parts, f'<p class="note">{html.escape(note)}</p>']


def profiles_figure(scores: Mapping[str, Any], generator: np.random.Generator, repetitions: int) -> plots.Figure:
    """Performance profiles of (seeds, tasks) returns of each label, between the lowest and the highest of all."""
    values = np.concatenate([matrix.reshape(-1) for matrix in scores.values()])
    margin = 0.05 * float(np.ptp(values)) or 1.0
    thresholds = np.linspace(values.min() - margin, values.max() + margin, 200)
    profiles = {
        label: statistics.performance_profile_interval(matrix, thresholds, generator, repetitions)
        for label, matrix in scores.items()
    }
    return plots.performance_profiles(profiles, thresholds, "Performance profile", "return")


def _run_details(run: RunData) -> str:
    """Configuration, versions and per-seed returns of one run, folded away."""
    seeds = ", ".join(f"{seed}: {value:.1f}" for seed, value in zip(run.seeds, run.per_seed_returns, strict=False))
    facts = [
        ("date", run.date),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("mean return per seed", seeds),
        ("squared norm of the policy's Jacobian", _jacobian(run)),
    ]
    listed = "".join(f"<div>{html.escape(key)}: {html.escape(value)}</div>" for key, value in facts if value)
    config = html.escape(json.dumps(run.config, indent=2, default=str))
    title = html.escape(f"{run.name}: {run.label} on {run.dataset or run.environment}")
    drawn = estimates.training_figure(run)
    opened = "" if run.returns else " open"  # then this is all that there is to see
    training = f"<details{opened}><summary>{title}: training</summary>{drawn}</details>" if drawn else ""
    return f"{training}<details><summary>{title}</summary>{listed}<pre>{config}</pre></details>"


def _jacobian(run: RunData) -> str:
    """Empty where it was not measured."""
    bounds = None if run.smoothness is None else run.smoothness["jacobian"]
    return "" if bounds is None else tables.format_small(bounds)


def _breakable(text: str) -> str:
    """Escaped text whose line breaks only before a bracket, or between words and after hyphens where it has none.

    So a table with all its columns fits a window of 1,280 pixels; in a narrower one it scrolls.
    """
    mean, bracket, bounds = html.escape(text).partition(" [")
    return f"<span>{mean}</span> <span>[{bounds}</span>" if bracket else mean


def table(head: list[tuple[str, str]], body: list[tuple[list[str], bool]]) -> str:
    """An HTML table of escaped cells; rows flagged True are the behaviour's, a row of one cell spans the table."""
    classes = ['class="right"' if alignment == "right" else 'class="left"' for _, alignment in head]
    heading = "".join(f"<th {c}>{_breakable(text)}</th>" for c, (text, _) in zip(classes, head, strict=True))
    rows = ""
    for cells, flagged in body:
        spanning = [f'class="left task" colspan="{len(head)}"'] if len(cells) == 1 < len(head) else classes
        row = "".join(f"<td {c}>{_breakable(text)}</td>" for c, text in zip(spanning, cells, strict=True))
        rows += f"<tr{' class=behaviour' if flagged else ''}>{row}</tr>"
    return f'<div class="wide"><table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div>'
