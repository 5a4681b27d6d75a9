"""What a run says of the world that it learned: how likely, how well covered, how far ahead; as words and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.schema import Many, Number, Record
from surefoot.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
MOST = 10_000
"""Members, steps or seeds that are read of a file, at most."""
_SHARE, _COUNT, _LINE = Number(0, 1), Number(0, whole=True), Many(Number(0), 1, MOST)
JUDGED = Record(
    {"nll": Number(), "error": Number(0), "coverage_50": _SHARE, "coverage_90": _SHARE}, others=True
)  # fmt: skip
MODEL = Record(
    {
        "rows": _COUNT,
        "members": Many(JUDGED, 1, MOST),
        "elites": Many(_COUNT, 1, MOST),
        "mixture": JUDGED,
        "levels": Many(_SHARE, 1, MOST),
        "observed": Many(_SHARE, 1, MOST),
        "open_loop": Record(
            {
                "starts": _COUNT,
                "steps": Many(Number(1, whole=True), 1, MOST),
                "members": Many(_LINE, 1, MOST),
                "mean": _LINE,
                "low": _LINE,
                "high": _LINE,
                "constant": _LINE,
            },
            others=True,
        ),
    },
    {"epochs": _COUNT, "holdout_errors": Many(Number())},
    others=True,
)
"""What `world_models.calibration` says of the model of one seed."""


def refuse_uneven(models: Sequence[Json], where: object) -> None:
    """Raise a CheckpointError for curves of models whose parts are not of one length."""
    for model in models:
        ahead = model["open_loop"]
        steps, curves = (
            len(ahead["steps"]),
            [*ahead["members"], *(ahead[k] for k in ("mean", "low", "high", "constant"))],
        )
        if any(len(curve) != steps for curve in curves) or len(model["levels"]) != len(model["observed"]):
            raise CheckpointError(f"{where}: the curves of a model have points missing; restore a copy of the file")


def words(models: Sequence[Json]) -> list[str]:
    """Sentences for the end of a run, of means over its seeds."""

    def mean(key: str) -> float:
        return float(np.mean([model["mixture"][key] for model in models]))

    rows = models[0]["rows"]
    half, most = 100 * mean("coverage_50"), 100 * mean("coverage_90")
    ahead = [model["open_loop"] for model in models]
    steps = min((one["steps"] for one in ahead), key=len)
    shown = sorted({0, min(4, len(steps) - 1), min(9, len(steps) - 1), len(steps) - 1})
    errors = ", ".join(
        f"{steps[k]}: {np.mean([one['mean'][k] for one in ahead]):.3g} "
        f"({np.mean([one['constant'][k] for one in ahead]):.3g})"
        for k in shown
    )
    return [
        f"model, on {rows:,} steps of episodes held out: {mean('nll'):.3g} nats a dimension (1.42 knows nothing), "
        f"error {mean('error'):.3g} of the deviation; {half:.0f} % in 50 % intervals, {most:.0f} % in 90 % intervals",
        f"open-loop error after steps, in deviations of the states (of a constant state): {errors}",
    ]


def picture(models: Sequence[Json], title: str = "") -> Figure:
    """Error of predictions over their horizon with its band, and shares covered against what was promised.

    Args:
        models: of each seed; the band is that of the first, over starts.
        title: of the picture.
    """
    figure, (left, right) = plots.beside(title, (9.6, 3.8), 2)
    _ahead(left, [model["open_loop"] for model in models])
    _covered(right, models)
    return figure


def _ahead(axes: Axes, curves: Sequence[Json]) -> None:
    first = curves[0]
    for k, one in enumerate(curves):
        for member in one["members"]:
            axes.plot(one["steps"], member, color=plots.GREY, linewidth=0.6, alpha=0.5)
        label = "mixture of the elites" if k == 0 else None
        axes.plot(one["steps"], one["mean"], color=plots.COLOURS[0], linewidth=1.6, label=label)
    axes.fill_between(first["steps"], first["low"], first["high"], color=plots.COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(first["steps"], first["constant"], color=plots.COLOURS[1], linestyle="--", label="constant state")
    axes.plot([], [], color=plots.GREY, linewidth=0.6, label="a member")
    axes.set_ylim(0, 1.6 * max(*first["constant"], 1e-6))
    steps = np.asarray(first["steps"])
    low, high = (np.asarray(first[key], dtype=np.float64) for key in ("low", "high"))
    cut = plots.mark_cuts(axes, steps, low, high, plots.COLOURS[0])
    for one in curves:
        mean = np.asarray(one["mean"], dtype=np.float64)
        cut = plots.mark_cuts(axes, np.asarray(one["steps"]), mean, mean, plots.COLOURS[0]) or cut
    axes.set_xlabel(f"steps ahead\n({plots.CUT})" if cut else "steps ahead")
    axes.set_ylabel("error, in deviations of the states")
    axes.set_title("open-loop error; band: 10 to 90 % of starts")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _covered(axes: Axes, models: Sequence[Json]) -> None:
    axes.plot([0, 1], [0, 1], color=plots.GREY, linestyle="--", linewidth=1, label="calibrated")
    for k, model in enumerate(models):
        label = "mixture of the elites" if k == 0 else None
        axes.plot(model["levels"], model["observed"], color=plots.COLOURS[0], marker="o", markersize=3, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("level of the central interval")
    axes.set_ylabel("share of steps within it")
    axes.set_title("coverage")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
