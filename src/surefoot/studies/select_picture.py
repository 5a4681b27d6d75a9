"""The picture of a selection: estimates with their intervals, and beside them the truth where it is known."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from surefoot.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from surefoot.studies.select import Selection

MOST = 30
"""Policies that a picture has room for."""


def picture(found: Selection, name: str) -> Figure:
    """A dot and its interval a policy, best first, the data's value dashed; at the right the truth against them."""
    shown = found.estimates[:MOST]
    known = all(one.truth is not None for one in shown)
    title = f"Estimated from {pathlib.Path(name).name}"
    figure, axes = plots.beside(title, (10.0 if known else 7.2, 1.4 + 0.3 * len(shown)), 2 if known else 1)
    left = axes[0]
    for i, one in enumerate(shown):
        colour = plots.COLOURS[0] if one.believable else plots.GREY
        left.plot([one.low, one.high], [i, i], color=colour, linewidth=4, alpha=0.35, solid_capstyle="round")
        left.plot([one.mean], [i], "o", color=colour, markersize=5)
    left.axvline(found.data_value, color=plots.GREY, linestyle="--", linewidth=1, label="the data")
    left.axvline(found.best_in_data, color=plots.GREY, linestyle=":", linewidth=1, label="best episode of the data")
    left.set_yticks(range(len(shown)), [one.label for one in shown], fontsize=7)
    left.set_ylim(len(shown) - 0.4, -0.7)
    value = "return of whole episodes" if found.discount == 1 else f"discounted return ({found.discount:g})"
    left.set_xlabel(f"{value}, 95 % interval")
    if known:
        right = axes[1]
        right.plot([one.mean for one in shown], [one.truth or 0.0 for one in shown], "o", color=plots.COLOURS[0])
        right.plot([shown[0].mean], [shown[0].truth or 0.0], "o", color=plots.COLOURS[1], label="chosen")
        right.set_xlabel("estimate")
        right.set_ylabel("mean return in the simulator")
        right.grid(alpha=0.25)
    figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=3)
    return figure
