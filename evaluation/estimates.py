"""What a page shows of training itself, and of runs that no simulator judged: losses and fitted-Q estimates."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from surefoot.evaluation import model_calibration, names, plots
from surefoot.evaluation.runs import RunData
from surefoot.evaluation.tables import format_bounds

MOST_PANELS = 12
"""Metrics that are drawn; the others are in metrics.jsonl."""


NOT_FINITE = "not finite"


def estimate_rows(group: Sequence[RunData]) -> tuple[list[tuple[str, str]], list[tuple[list[str], bool]], str] | None:
    """Head, rows and note of a table of validation losses and estimates; None where no run has any."""
    named = zip(names.labels(group), group, strict=True)
    known = [(label, run) for label, run in named if run.validation or run.fitted_q or run.missing]
    if not known:
        return None
    losses = sorted({name for _, run in known for name in run.validation})
    head = [("algorithm", "left"), *((f"validation {name}", "right") for name in losses)]
    estimated = any(run.fitted_q for _, run in known)
    if estimated:
        head += [("estimated return [95 %]", "right"), ("still moving by", "right"), ("data: mean", "right")]
        head += [("data: best", "right")]
    body = []
    for label, run in known:
        cells = [label, *(_loss(run.validation[name]) if name in run.validation else "-" for name in losses)]
        if estimated:
            data = run.data_discounted_return or {}
            drift = (run.fitted_q or {}).get("drift")
            cells += [_estimate(run), "-" if drift is None else f"{drift:.3g}"]
            cells += [f"{data[key]:.1f}" if key in data else "-" for key in ("mean", "best")]
        body.append((cells, False))
    found = (run.data_discounted_return["discount"] for _, run in known if run.data_discounted_return)
    discount = next((f" (discount {one:g})" for one in found), "")
    note = "Validation: each loss, averaged over seeds, on the tenth of the episodes that training never saw."
    if estimated:
        apart = any(not (run.data_discounted_return or {}).get("past_time_limits") for _, run in known if run.fitted_q)
        cut = " (of some runs here cut off at time limits, past which the estimate runs)" if apart else ""
        note += (
            f" Estimated return: fitted-Q evaluation of the discounted return{discount} of the policy in "
            f"the data's initial states, beside the data's own{cut}. It is an estimate by extrapolation: where it "
            "still moves, or lies far above the best episode, do not rely on it."
        )
    given = [f" {label}: {sentence}." for label, run in known for sentence in run.missing]
    return head, body, note + "".join(dict.fromkeys(given))


def _loss(value: float | None) -> str:
    return NOT_FINITE if value is None or not math.isfinite(value) else f"{value:.4g}"


def _estimate(run: RunData) -> str:
    """The fitted-Q estimate with its interval, or why there is none."""
    if run.fitted_q is None or run.fitted_q["mean"] is not None:
        return format_bounds(run.fitted_q)
    return str(run.fitted_q.get("method", NOT_FINITE))


def training_figure(run: RunData) -> str:
    """Small multiples of a run's losses and metrics along training, as SVG; empty where none was logged."""
    curves = {name: points for name, points in run.training_curves().items() if len(points) > 1}
    if not curves:
        return ""
    shown = dict(sorted(curves.items(), key=lambda pair: ("loss" not in pair[0], pair[0]))[:MOST_PANELS])
    figure = plots.small_multiples(shown, run.steps_of)
    more = "" if len(shown) == len(curves) else f" {len(curves) - len(shown)} more are in metrics.jsonl."
    caption = f"Losses and metrics of training, mean over seeds.{more}"
    return f"<figure>{plots.to_svg(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def estimate_lines(run: RunData) -> list[str]:
    """What is known of a run that no simulator judged, a sentence each: its models, validation losses and fitted Q."""
    found = model_calibration.words(run.models) if run.models else []
    found += [
        f"validation {name}: {_loss(value)} (mean over seeds, on episodes held out)"
        for name, value in run.validation.items()
    ]
    found += run.missing
    if run.fitted_q is None:
        return found
    data, mean, drift = run.data_discounted_return or {}, run.fitted_q["mean"], run.fitted_q.get("drift")
    whole = data.get("past_time_limits", False)  # not in summaries of before; there it was cut off
    cut = "" if whole else "; the data's is cut off at time limits, the policy's runs on past them"
    beside = (
        f"; the data's: mean {data['mean']:.1f}, best {data['best']:.1f} (discount {data['discount']:g}{cut})"
        if data
        else ""
    )
    found.append(f"fitted-Q estimate of the discounted return: {_estimate(run)}{beside}")
    low = run.fitted_q["low"]
    if whole and low is not None and low > data["best"]:
        few = "; after few steps it still stands near its start, 0" if data["best"] < 0 else ""
        found.append(
            f"  its whole interval lies above the best return in the data: not supported, do not rely on it{few}"
        )
    if mean is not None and drift is not None and abs(drift) > 0.02 * abs(mean):
        whose = "it" if len(run.seeds) == 1 else "that of a seed"
        by = f"{abs(drift):.1f}" if len(run.seeds) == 1 else f"{abs(drift):.1f} on average"
        found.append(f"  {whose} still moved by {by} in the last fifth of its steps: not converged, do not rely on it")
    return found
