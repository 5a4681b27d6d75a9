"""Pictures of results: learning curves, intervals and performance profiles, without pyplot's global state.

matplotlib takes as long to import as torch, so it is imported when a picture is drawn: training workers draw none.
"""

from __future__ import annotations

import dataclasses
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

# Okabe and Ito, "Color universal design", 2008: distinguished with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
GREY = "#555555"
RETURN = "return (sum of rewards per episode)"
COST = "cost (sum per episode)"
SHARE = "share of episodes that end solved"

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
    "lines.markersize": 4.0,
    "svg.fonttype": "path",  # looks the same whatever fonts the reader has
    "svg.hashsalt": "surefoot",
}
PRINT: Any = {
    **STYLE,
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titleweight": "normal",
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "lines.linewidth": 1.1,
    "lines.markersize": 2.5,
    "pdf.fonttype": 42,  # texts stay texts, of an embedded TrueType font: journals refuse Type 3
    "svg.fonttype": "none",
}
"""Of a figure that is printed in a paper's column."""
COLUMN, PAGE = 3.25, 6.75
"""Inches: widths of a column and of a page of two columns, as conferences have them."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves of one task: a line a label with its 95 % band."""

    curves: Mapping[str, Sequence[CurvePoint]]
    title: str = ""
    label: str = RETURN
    """Of what is measured."""
    behaviour: float | None = None
    """Mean of the data, a dashed line."""
    limits: Sequence[float] = ()
    """Of the cost, each a line."""
    finals: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Label -> mean, low and high of the final evaluation: a hollow mark behind the end of the curve, with its bar."""


def learning_curves(
    curves: Mapping[str, Sequence[CurvePoint]],
    title: str = "",
    behaviour: float | None = None,
    steps_of: str = "gradient steps",
    label: str = RETURN,
    limits: Sequence[float] = (),
    finals: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figure:
    """Mean return, or what `label` says, against steps: a line per label with its 95 % band; `behaviour` is dashed.

    The axes show the range of the means and at most half as much beyond it on either side. A band that continues beyond
    is cut there, with a triangle at the edge.

    Args:
        curves: label -> points.
        title: of the picture.
        behaviour: mean of the data.
        steps_of: what is counted along the curves.
        label: of what is measured.
        limits: of the cost, each a line, which is always inside the picture.
        finals: label -> bounds of the final evaluation, as in `Panel`.
    """
    return curve_panels([Panel(curves, title, label, behaviour, limits, finals or {})], steps_of, (7.2, 3.8))


def curve_panels(
    panels: Sequence[Panel],
    steps_of: str = "gradient steps",
    size: tuple[float, float] = (7.2, 3.8),
    across: int | None = None,
    style: Any = STYLE,
) -> Figure:
    """Learning curves side by side, or in rows of `across`; a label has one colour in all of them.

    Args:
        panels: at least one.
        steps_of: what is counted along the curves.
        size: inches of the figure without a legend below it.
        across: panels in a row; None: all.
        style: `STYLE`, or `PRINT` for a paper's column.

    Raises:
        ConfigError: no evaluation was logged.
    """
    import matplotlib as mpl

    if not any(points for panel in panels for points in panel.curves.values()):
        raise ConfigError("learning curves: no evaluation was logged; train with an environment")
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    figure, axes = beside("", size, len(panels), across, style)
    with mpl.rc_context(style):
        for at, panel in zip(axes, panels, strict=True):
            _draw_panel(at, panel, names)
        if style is PRINT:  # whose caption says what triangles are
            for at in axes[-min(len(axes), across or len(axes)) :]:
                at.set_xlabel(steps_of)
        else:
            _below(figure, axes, f"{steps_of}\n({CUT})" if any(map(is_cut, panels)) else steps_of)
        _legend(figure, below=style is PRINT)
    return figure


CUT = "▲ ▼: an interval continues beyond the picture"
ROOM = 0.5
"""Share of the range of means that bands may take up beyond it, above and below."""
FINAL = "final evaluation"
BEYOND = 0.035
"""Share of the steps by which the final evaluation stands behind the last one of a curve."""


def is_cut(panel: Panel) -> bool:
    """Whether an interval continues beyond the picture, where a triangle says so."""
    bottom, top = _frame(panel)
    ends = [end for points in panel.curves.values() for p in points for end in (p.low, p.high)]
    ends += [float(one[key]) for one in panel.finals.values() for key in ("low", "high") if one.get(key) is not None]
    return any(end < bottom or end > top for end in ends)


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    """Draw into the axes."""
    axes.set_title(panel.title)
    axes.set_ylim(*_frame(panel))
    last = max((points[-1].step for points in panel.curves.values() if points), default=0)
    for name, points in panel.curves.items():
        i = names.index(name)
        steps = np.array([point.step for point in points])
        mean, low, high = (np.array([getattr(p, k) for p in points], float) for k in ("mean", "low", "high"))
        axes.plot(steps, mean, color=_colour(i), linestyle=_line(i), marker=_marker(i), markersize=_size(), label=name)
        axes.fill_between(steps, low, high, color=_colour(i), alpha=0.18, linewidth=0)
        mark_cuts(axes, steps, low, high, _colour(i))
        final = panel.finals.get(name)
        if final is not None and final.get("mean") is not None:
            _draw_final(axes, last * (1 + BEYOND), final, _colour(i))
    if panel.finals:
        axes.plot([], [], marker="D", markersize=5.5, color=GREY, markerfacecolor="white", linestyle="", label=FINAL)
    if panel.behaviour is not None:
        axes.axhline(panel.behaviour, color=GREY, linestyle="--", linewidth=1, label="behaviour (data)")
    for limit in panel.limits:
        axes.axhline(limit, color="black", linestyle="-.", linewidth=1.2, label=f"cost limit {limit:g}")
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_ylabel(panel.label)
    axes.grid(axis="y", alpha=0.25)


def _draw_final(axes: Axes, step: float, bounds: Mapping[str, Any], colour: str) -> None:
    """The hollow mark of a final evaluation, with its interval."""
    low, high = (np.nan if bounds.get(key) is None else float(bounds[key]) for key in ("low", "high"))
    axes.plot([step, step], [low, high], color=colour, linewidth=1.2, alpha=0.7)
    axes.plot([step], [bounds["mean"]], marker="D", markersize=5.5, color=colour, markerfacecolor="white")
    mark_cuts(axes, np.array([step]), np.array([low]), np.array([high]), colour)


def mark_cuts(axes: Axes, steps: Array, low: Array, high: Array, colour: str) -> bool:
    """Triangles at the edges of the axes where an interval continues beyond; whether there are some."""
    bottom, top = axes.get_ylim()
    for edge, marker, beyond in ((bottom, "v", low < bottom), (top, "^", high > top)):
        if beyond.any():
            places = np.full(int(beyond.sum()), edge)
            axes.plot(
                steps[beyond], places, marker=marker, markersize=_size(), color=colour, linestyle="", clip_on=False
            )
    return bool((low < bottom).any() or (high > top).any())


def _frame(panel: Panel) -> tuple[float, float]:
    """Ends of the axis: all means and limits lie inside, and of the bands what does not squeeze these."""
    points = [point for listed in panel.curves.values() for point in listed]
    finals = [one for one in panel.finals.values() if one.get("mean") is not None]
    values = [p.mean for p in points] + [float(one["mean"]) for one in finals] + [float(one) for one in panel.limits]
    values += [] if panel.behaviour is None else [panel.behaviour]
    values = [value for value in values if np.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    ends = [end for p in points for end in (p.low, p.high) if np.isfinite(end)] + [low, high]
    ends += [float(one[key]) for one in finals for key in ("low", "high") if one.get(key) is not None]
    room = ROOM * (high - low) or 0.1 * abs(high) or 1.0
    bottom, top = max(min(ends), low - room), min(max(ends), high + room)
    margin = 0.05 * (top - bottom) or 0.1 * abs(high) or 1.0
    return bottom - margin, top + margin


def _below(figure: Figure, axes: Sequence[Axes], text: str) -> None:
    """What is counted along all axes."""
    if len(axes) == 1:
        axes[0].set_xlabel(text)
    else:
        figure.supxlabel(text, fontsize=axes[0].xaxis.label.get_fontsize())


def _legend(figure: Figure, below: bool = False) -> None:
    """What lines are: beside the axes, or above them where a name would leave them no width; all in the figure.

    With `below` it stands under them, in as many columns as there is room for, and the figure is higher by that much.
    """
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    handles, texts = list(entries.values()), list(entries)
    longest = max(map(len, texts), default=0)
    if below:
        columns = max(1, min(len(texts), int(figure.get_figwidth() / (0.45 + LETTER * longest))))
        figure.legend(handles, texts, frameon=False, loc="outside lower center", ncols=columns, columnspacing=1.0)
        figure.set_figheight(figure.get_figheight() + 0.7 * LINE * -(-len(texts) // columns))
        return
    narrow = longest <= LONG_NAME
    figure.legend(handles, texts, frameon=False, loc="outside right upper" if narrow else "outside upper left")
    needed = LINE * len(texts) + (0.3 if narrow else LEAST_AXES)
    figure.set_figheight(max(figure.get_figheight(), needed))


LONG_NAME = 36
"""Characters of a name above which a legend stands above the axes."""
LINE, LEAST_AXES, LETTER = 0.22, 2.6, 0.06
"""Inches of a legend's line, of axes with their labels below a legend, and of a letter in print."""


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


def interval_panels(
    panels: Mapping[str, Mapping[str, Mapping[str, Any]]],
    label: str,
    width: float,
    limits: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """A dot and its 95 % interval per label, for each task one panel below the other, in the style of print.

    Args:
        panels: task -> label -> mean, low, high.
        label: of the axis.
        width: inches.
        limits: task -> limits of the cost, each a line.
    """
    import matplotlib as mpl

    names = list(dict.fromkeys(name for mine in panels.values() for name in mine))
    rows = sum(len(mine) for mine in panels.values())
    figure, axes = beside("", (width, 0.5 + 0.45 * len(panels) + 0.17 * rows), len(panels), 1, PRINT)
    with mpl.rc_context(PRINT):
        for at, (task, mine) in zip(axes, panels.items(), strict=True):
            at.set_title(task)
            for row, (name, bounds) in enumerate(mine.items()):
                colour = _colour(names.index(name))
                low, high = bounds.get("low"), bounds.get("high")
                if low is not None and high is not None:
                    at.plot([low, high], [row, row], color=colour, linewidth=3.5, alpha=0.35, solid_capstyle="round")
                at.plot([bounds["mean"]], [row], marker=_marker(names.index(name)), color=colour, markersize=4)
            for limit in (limits or {}).get(task, ()):
                at.axvline(limit, color="black", linestyle="-.", linewidth=1.0, label=f"cost limit {limit:g}")
            at.set_yticks(range(len(mine)), list(mine))
            at.set_ylim(len(mine) - 0.5, -0.5)
            at.grid(axis="x", alpha=0.25)
        axes[-1].set_xlabel(f"{label}, 95 % interval")
        if any(found for found in (limits or {}).values()):
            _legend(figure, below=True)
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
        axes.axvline(limit, color="black", linestyle="-.", linewidth=1.2, label=f"cost limit {limit:g}")
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
    _write(figure, path, STYLE, format="png", dpi=dpi)


FIGURES = (".pdf", ".svg", ".png")
"""Endings of files that `save` writes."""
PRINT_DPI = 300


def check_figure(path: str | pathlib.Path) -> str:
    """The ending of a figure's file, in small letters; raises ConfigError where `save` knows none such."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in FIGURES:
        raise ConfigError(f"{path}: its ending names no kind of figure; give {', '.join(FIGURES)}")
    return ending


def save(figure: Figure, path: str | pathlib.Path) -> None:
    """Write a figure of `PRINT` as its ending says, whole or not at all; equal figures give equal files.

    Raises:
        ConfigError: an ending other than .pdf, .svg and .png.
        SurefootError: the path can't be written.
    """
    ending = check_figure(path)
    metadata: dict[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(ending, {})
    _write(figure, path, PRINT, format=ending[1:], dpi=PRINT_DPI, metadata=metadata)


def _write(figure: Figure, path: str | pathlib.Path, style: Any, **options: Any) -> None:
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context(style):
        figure.savefig(buffer, **options)
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


def beside(
    title: str, size: tuple[float, float], count: int, columns: int | None = None, style: Any = STYLE
) -> tuple[Figure, list[Axes]]:
    """An empty figure with `count` axes side by side, or in rows of `columns`."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        across = columns or count
        axes = [figure.add_subplot(-(-count // across), across, k + 1) for k in range(count)]
        if title:
            figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left")
    return figure, axes


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    """Another one where a colour is used again."""
    return MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]


def _line(i: int) -> str:
    return LINES[i // len(COLOURS) % len(LINES)]


def _size() -> float:
    """Of a curve's marks, in points, as the style has it."""
    import matplotlib as mpl

    return float(mpl.rcParams["lines.markersize"])


def _thousands(value: float, _position: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
