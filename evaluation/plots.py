"""Pictures of results: learning curves, intervals and performance profiles, without pyplot's global state.

matplotlib takes as long to import as torch, so it is imported when a picture is drawn: training workers draw none.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside
from surefoot.evaluation.curves import CurvePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = np.ndarray[Any, Any]

# Okabe and Ito, "Color universal design", 2008: told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
RETURN = "return (sum of rewards per episode)"
COST = "cost (sum per episode)"
SHARE = "share of episodes that end solved"
TOO_WIDE = "95 % intervals wider than the picture are not drawn"

STYLE: Any = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "path",  # looks the same whatever fonts the reader has
    "svg.hashsalt": "surefoot",
}


def learning_curves(
    curves: Mapping[str, Sequence[CurvePoint]],
    title: str = "",
    behaviour: float | None = None,
    steps_of: str = "gradient steps",
    label: str = RETURN,
) -> Figure:
    """Mean return, or what `label` says, against steps: a line per label with its 95 % band; `behaviour` is dashed.

    The axes show the range of the means. Where a band is wider than that it is left out, since it would only colour the
    picture; the label of the steps then says so.
    """
    if not any(curves.values()):
        raise ConfigError("learning curves: no evaluation was logged; train with an environment")
    figure, axes = _axes(title, (7.2, 3.8))
    _frame_means(axes, [p.mean for points in curves.values() for p in points], behaviour)
    bottom, top = axes.get_ylim()
    cut = False
    for i, (name, points) in enumerate(curves.items()):
        steps = np.array([point.step for point in points])
        mean, low, high = (np.array([getattr(p, k) for p in points], float) for k in ("mean", "low", "high"))
        axes.plot(steps, mean, color=_colour(i), marker=MARKERS[i % len(MARKERS)], markersize=4, label=name)
        wide = high - low > top - bottom
        cut = cut or bool(wide.any())
        axes.fill_between(steps, low, high, where=~wide, color=_colour(i), alpha=0.18, linewidth=0)
    if behaviour is not None:
        axes.axhline(behaviour, color=GREY, linestyle="--", linewidth=1, label="behaviour (data)")
    axes.set_xlabel(f"{steps_of}\n({TOO_WIDE})" if cut else steps_of)
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.25)
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """What lines are: beside the axes, or above them where a name would leave them no width; all in the figure."""
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    beside = max(map(len, names), default=0) <= LONG_NAME
    figure.legend(frameon=False, loc="outside right upper" if beside else "outside upper left")
    needed = LINE * len(names) + (0.3 if beside else LEAST_AXES)
    figure.set_figheight(max(figure.get_figheight(), needed))


LONG_NAME = 36
"""Characters of a name above which a legend stands above the axes."""
LINE, LEAST_AXES = 0.22, 2.6
"""Inches of a legend's line, and of axes with their labels below a legend."""


def interval_plot(
    intervals: Mapping[str, Mapping[str, Any]],
    title: str = "",
    label: str = RETURN,
    reference: float | None = None,
    reference_label: str = "behaviour (data)",
) -> Figure:
    """A dot and its 95 % interval per label, first on top; `reference` as a dashed line."""
    figure, axes = _axes(title, (7.2, 1.3 + 0.36 * len(intervals)))
    for i, bounds in enumerate(intervals.values()):
        low, high = bounds.get("low"), bounds.get("high")
        if low is not None and high is not None:
            axes.plot([low, high], [i, i], color=_colour(i), linewidth=5, alpha=0.35, solid_capstyle="round")
        axes.plot([bounds["mean"]], [i], marker=MARKERS[i % len(MARKERS)], color=_colour(i), markersize=7)
        axes.annotate(
            f"{bounds['mean']:.4g}".replace("-", "\N{MINUS SIGN}"),
            (bounds["mean"], i),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    if reference is not None:
        axes.axvline(reference, color=GREY, linestyle="--", linewidth=1, label=reference_label)
        figure.legend(frameon=False, fontsize=8, loc="outside upper right")
    axes.set_yticks(range(len(intervals)), list(intervals))
    axes.set_ylim(len(intervals) - 0.4, -0.7)
    axes.set_xlabel(f"{label}, 95 % interval")
    axes.grid(axis="x", alpha=0.25)
    return figure


def return_against_cost(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str = "",
    limits: Sequence[float] = (),
    behaviour: tuple[float, float] | None = None,
) -> Figure:
    """A small dot per seed and a large one for the mean of each run; each cost limit as a vertical line.

    Args:
        runs: label -> (returns, costs) of the seeds.
        title: of the picture.
        limits: of an episode's cost; left of the line is within it.
        behaviour: (return, cost) of the data.
    """
    if not runs:
        raise ConfigError("return against cost: no run has costs; train in an environment with a constraint")
    figure, axes = _axes(title, (7.2, 3.8))
    for i, (label, (returns, costs)) in enumerate(runs.items()):
        colour, marker = _colour(i), MARKERS[i % len(MARKERS)]
        axes.scatter(costs, returns, s=14, color=colour, marker=marker, alpha=0.45, linewidths=0)
        axes.scatter([np.mean(costs)], [np.mean(returns)], s=60, color=colour, marker=marker, label=label)
    for limit in limits:
        axes.axvline(limit, color=GREY, linestyle="--", linewidth=1, label=f"cost limit {limit:g}")
    if behaviour is not None:
        axes.scatter([behaviour[1]], [behaviour[0]], s=60, color=GREY, marker="*", label="behaviour (data)")
    axes.set_xlabel("cost (sum of costs per episode)")
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_ylabel("return (sum of rewards per episode)")
    axes.grid(alpha=0.25)
    _legend(figure)
    return figure


def performance_profiles(
    profiles: Mapping[str, tuple[Array, Array, Array]],
    thresholds: Array,
    title: str = "",
    label: str = "normalised score",
) -> Figure:
    """Fraction of runs scoring above each threshold, with its band; label -> (profile, low, high)."""
    figure, axes = _axes(title, (7.2, 3.4))
    for i, (name, (profile, low, high)) in enumerate(profiles.items()):
        style = ("-", "--", "-.", ":")[i % 4]
        axes.step(thresholds, profile, where="post", color=_colour(i), linestyle=style, label=name)
        axes.fill_between(thresholds, low, high, step="post", color=_colour(i), alpha=0.18, linewidth=0)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(f"threshold ({label})")
    axes.set_ylabel("fraction of runs above")
    axes.grid(alpha=0.25)
    _legend(figure)
    return figure


def small_multiples(curves: Mapping[str, Sequence[tuple[int, float]]], steps_of: str = "gradient steps") -> Figure:
    """A small picture for each name: its value against steps, three beside each other."""
    rows = -(-len(curves) // 3)
    figure, axes = beside("", (7.2, 1.7 * rows), 3 * rows, 3)
    for i, (name, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        axes[i].plot(steps, values, color=COLOURS[0], linewidth=1.2)
        axes[i].set_title(name.replace("_", " "), fontsize=8)
        axes[i].tick_params(labelsize=7)
        axes[i].xaxis.set_major_formatter(_thousands)
        axes[i].grid(alpha=0.25)
    for unused in axes[len(curves) :]:
        unused.set_axis_off()
    figure.supxlabel(steps_of, fontsize=8)
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element to put inside an HTML page; equal figures give equal text."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_png(figure: Figure, path: str | pathlib.Path, dpi: int = 150) -> None:
    """Write the figure as PNG, whole or not at all; raises SurefootError where the path can't be written."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=dpi)
    with written_aside(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def _axes(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title)
    return figure, axes


def beside(title: str, size: tuple[float, float], count: int, columns: int | None = None) -> tuple[Figure, list[Axes]]:
    """An empty figure with `count` axes side by side, or in rows of `columns`."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        across = columns or count
        axes = [figure.add_subplot(-(-count // across), across, k + 1) for k in range(count)]
        if title:
            figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure, axes


def _frame_means(axes: Axes, means: list[float], behaviour: float | None) -> None:
    """Scale to the means: with two seeds a t interval may be many times wider than what there is to see."""
    values = means + ([behaviour] if behaviour is not None else [])
    low, high = min(values), max(values)
    margin = 0.25 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _thousands(value: float, _position: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
