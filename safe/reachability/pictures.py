"""Safe sets in pictures: two-dimensional slices of a value function, with the sets that it is compared with."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Mapping

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside
from surefoot.safe.reachability.grid import Grid

COLOURS = ("#D55E00", "#CC79A7", "#E69F00")  # Okabe and Ito 2008; the set itself is black
FRACTIONS = (0.2, 0.4, 0.6, 0.8)
"""Where along the other axes the slices lie."""
MOST_PAIRS = 6


def slices(grid: Grid, values: Tensor, h: Tensor, title: str, others: Mapping[str, Tensor] | None = None) -> Figure:
    """A row for each pair of axes, a column for each place along the others.

    Blue is safe (V <= 0), red not; the black line is the boundary, the grey dashed one where the constraint itself is
    broken. `others`, name -> values of the grid's shape, get a line each.
    """
    others = dict(others or {})
    if len(others) > len(COLOURS):
        raise ConfigError(f"{len(others)} sets to compare with are too many for one picture; at most {len(COLOURS)}")
    count = len(grid.axes)
    pairs = list(itertools.combinations(range(count), 2))[:MOST_PAIRS] if count > 1 else [(0, 0)]
    places = FRACTIONS if count > 2 else FRACTIONS[:1]
    figure = Figure(figsize=(3.1 * len(places) + 1.2, 2.9 * len(pairs) + 0.5), layout="constrained")
    panels = figure.subplots(len(pairs), len(places), squeeze=False)
    least, most = min(float(values.min()), -1e-9), max(float(values.max()), 1e-9)
    scale = TwoSlopeNorm(0.0, least, most)  # safe and unsafe values each have the whole of their colour
    shade = None
    for row, pair in zip(panels, pairs):
        for panel, fraction in zip(row, places):
            if count == 1:
                _line(panel, grid, values, h, others)
            else:
                shade = _slice(panel, grid, values, h, others, pair, fraction, scale)
    if shade is not None:
        ticks = [least, least / 2, 0.0, most / 2, most]  # equally far apart on a scale of two slopes
        bar = figure.colorbar(shade, ax=panels, shrink=0.8, label="V, safe where <= 0", ticks=ticks)
        bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
    _legend(figure, others)
    figure.suptitle(title, fontsize=10)
    return figure


def _slice(panel, grid, values, h, others, pair, fraction, scale):  # type: ignore[no-untyped-def]
    """One panel: axes `pair` against each other, the others at `fraction` of their range."""
    at = [slice(None) if k in pair else round(fraction * (axis.points - 1)) for k, axis in enumerate(grid.axes)]
    across, up = (grid.axes[k] for k in pair)
    x, y = (grid.coordinates()[k].numpy() for k in pair)
    shown = _cut(values, at)
    shade = panel.pcolormesh(x, y, shown.T, cmap="RdBu_r", norm=scale, shading="nearest", rasterized=True)
    _contour(panel, x, y, _cut(h, at), "#555555", "--")
    _contour(panel, x, y, shown, "black", "-")
    for colour, other in zip(COLOURS, others.values()):
        _contour(panel, x, y, _cut(other, at), colour, "-")
    panel.set_xlabel(across.name)
    panel.set_ylabel(up.name)
    fixed = [
        f"{axis.name} = {float(grid.coordinates()[k][at[k]]):.2f}" for k, axis in enumerate(grid.axes) if k not in pair
    ]
    panel.set_title(", ".join(fixed), fontsize=8)
    return shade


def _cut(values: Tensor, at: list[slice | int]) -> np.ndarray:
    cut: np.ndarray = values[tuple(at)].cpu().numpy()
    return cut


def _contour(panel, x, y, values, colour, line) -> None:  # type: ignore[no-untyped-def]
    if values.min() <= 0 < values.max():
        panel.contour(x, y, values.T, levels=[0.0], colors=[colour], linestyles=[line], linewidths=1.3)


def _line(panel, grid, values, h, others) -> None:  # type: ignore[no-untyped-def]
    x = grid.coordinates()[0].numpy()
    panel.axhline(0.0, color="#555555", linewidth=0.8)
    panel.plot(x, h.cpu().numpy(), color="#555555", linestyle="--")
    panel.plot(x, values.cpu().numpy(), color="black")
    for colour, other in zip(COLOURS, others.values()):
        panel.plot(x, other.cpu().numpy(), color=colour)
    panel.set_xlabel(grid.axes[0].name)


def _legend(figure: Figure, others: Mapping[str, Tensor]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color="black", label="boundary of the safe set")]
    lines.append(Line2D([], [], color="#555555", linestyle="--", label="constraint broken"))
    lines += [Line2D([], [], color=colour, label=name) for colour, name in zip(COLOURS, others)]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)


def check_picture(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a picture; raises ConfigError at an ending that `write` does not know."""
    path = pathlib.Path(path)
    if path.suffix not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"{path}: a picture is written as .png, .svg or .pdf")
    return path


def write(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture as .png, .svg or .pdf, whole or not at all.

    Raises:
        ConfigError: another ending.
        SurefootError: the disk is full or the folder can't be written.
    """
    path = check_picture(path)
    FigureCanvasAgg(figure)
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=110)
