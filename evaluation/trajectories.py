"""Pictures of episodes: paths in the plane with what must not be touched, and everything else against time."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from surefoot.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
KEPT, BROKEN = "#0072B2", "#D55E00"
"""Episodes that keep the constraint, and those that do not."""
GOAL = "#009E73"
PLANES = (("x", "y"), ("x", "z"))


class Played(Protocol):
    """An episode, as `surefoot.play.film.Episode`."""

    @property
    def states(self) -> Array:
        """(T, S) before each action."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of the states."""
        ...

    @property
    def actions(self) -> Array:
        """(T, A), as the environment takes them."""
        ...

    @property
    def rewards(self) -> Array:
        """(T,)."""
        ...

    @property
    def costs(self) -> Array | None:
        """(T,), or None where the environment has no constraint."""
        ...

    @property
    def margins(self) -> Array | None:
        """(T,), safe if >= 0; or None."""
        ...

    @property
    def time_step(self) -> float:
        """Seconds; 1 where it is not known."""
        ...

    @property
    def units(self) -> tuple[str, ...]:
        """Of the states, "" of one without; () where they are not known."""
        ...

    @property
    def action_units(self) -> tuple[str, ...]:
        """The same of the actions."""
        ...

    @property
    def action_names(self) -> tuple[str, ...]:
        """Of the actions; () where they have none."""
        ...

    @property
    def goal(self) -> Mapping[str, float]:
        """State -> its value where the task ends or is to be held; empty where there is no such place."""
        ...

    @property
    def goal_radius(self) -> float:
        """Distance within which the goal counts as reached; 0 where there is none."""
        ...

    @property
    def violates(self) -> bool:
        """Whether any step had a cost."""
        ...


def plane(names: Sequence[str]) -> tuple[int, int] | None:
    """Where the two coordinates of a place are among the states; None where there are none."""
    for pair in PLANES:
        if all(name in names for name in pair):
            return names.index(pair[0]), names.index(pair[1])
    return None


def with_units(names: Sequence[str], units: Sequence[str]) -> list[str]:
    """Names as axes have them: with the unit, where it is known and there is one.

    >>> with_units(["speed", "share"], ["m/s", ""]), with_units(["speed"], [])
    (['speed (m/s)', 'share'], ['speed'])
    """
    known = units if len(units) == len(names) else [""] * len(names)
    return [f"{name} ({unit})" if unit else name for name, unit in zip(names, known, strict=True)]


def action_labels(episode: Played) -> list[str]:
    """Names of the actions with their units; their numbers where they have no names."""
    count = episode.actions.shape[1]
    named = len(episode.action_names) == count
    names = [f"action: {name}" for name in episode.action_names] if named else [f"action {i}" for i in range(count)]
    return with_units(names, episode.action_units)


def clock(episode: Played) -> str:
    """The unit of time."""
    return "s" if episode.time_step != 1 else "steps"


def draw_goals(axes: Axes, episodes: Sequence[Played]) -> None:
    """A star where each task ends or is to be held, once for the same place, and a circle where that is reached."""
    found = plane(episodes[0].names)
    assert found is not None
    across, up = (episodes[0].names[i] for i in found)
    places = {(one.goal[across], one.goal[up]): one.goal_radius for one in episodes if {across, up} <= one.goal.keys()}
    for i, (place, radius) in enumerate(places.items()):
        axes.plot(
            *place, marker="*", markersize=9, color=GOAL, markeredgecolor="black", markeredgewidth=0.5, linestyle="",
            zorder=5, label=None if i else "goal",
        )  # fmt: skip
        if radius > 0:
            from matplotlib.patches import Circle

            axes.add_patch(Circle(place, radius, fill=False, edgecolor=GOAL, linestyle="--", linewidth=1.0, zorder=4))


def draw_paths(axes: Axes, episodes: Sequence[Played], ground: tuple[Array, Array, Array] | None, title: str) -> None:
    """Paths in the plane: each from a dot on, to the goal's star; where the ground's margin is negative it is grey.

    Args:
        axes: to draw into.
        episodes: of a system whose states have a place.
        ground: (X,), (Y,) and the (Y, X) margin, or None.
        title: above.
    """
    found = plane(episodes[0].names)
    assert found is not None
    across, up = found
    if ground is not None:
        x, y, margin = ground
        axes.contourf(x, y, margin, levels=[-np.inf, 0.0], colors=["#B8B8B8"])
        axes.contour(x, y, margin, levels=[0.0], colors=["#555555"], linewidths=0.8)
    for episode in sorted(episodes, key=lambda one: one.violates):
        places, colour = episode.states[:, [across, up]], BROKEN if episode.violates else KEPT
        axes.plot(*places.T, color=colour, linewidth=0.9, alpha=0.65)
        axes.plot(*places[0], marker="o", color=colour, markersize=2.5)
    draw_goals(axes, episodes)
    axes.set_aspect("equal", adjustable="datalim")
    labels = with_units(episodes[0].names, episodes[0].units)
    axes.set_xlabel(labels[across], fontsize=8)
    axes.set_ylabel(labels[up], fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_title(title, fontsize=9)


def figure(episodes: Sequence[Played], title: str, ground: tuple[Array, Array, Array] | None = None) -> Figure:
    """Small multiples: the paths, where states have a place, then each state, action and the margin against time."""
    first = episodes[0]
    tracks: list[tuple[str, list[Array]]] = [
        (name, [one.states[:, i] for one in episodes]) for i, name in enumerate(with_units(first.names, first.units))
    ]
    tracks += [(name, [one.actions[:, i] for one in episodes]) for i, name in enumerate(action_labels(first))]
    if first.margins is not None:
        tracks.append(("margin (safe if above 0)", [np.asarray(one.margins) for one in episodes]))
    tracks.append(("reward", [one.rewards for one in episodes]))
    mapped = plane(first.names) is not None
    count = len(tracks) + mapped
    drawn, axes = plots.beside(title, (8.4, 2.2 * -(-count // 3)), -(-count // 3) * 3, 3)
    if mapped:
        draw_paths(axes[0], episodes, ground, "paths")
    held = [{one.goal.get(name) for one in episodes} for name in first.names]
    for k, (at, (name, values)) in enumerate(zip(axes[mapped:], tracks, strict=False)):
        for episode, line in zip(episodes, values, strict=True):
            colour = BROKEN if episode.violates else KEPT
            at.plot(np.arange(len(line)) * episode.time_step, line, color=colour, linewidth=0.8, alpha=0.6)
        if k < len(held) and len(held[k]) == 1 and (goal := held[k].copy().pop()) is not None:
            at.axhline(goal, color=GOAL, linestyle="--", linewidth=1.0)
        if name.startswith("margin"):
            at.axhline(0.0, color=plots.GREY, linewidth=0.8)
        at.set_title(name.replace("_", " "), fontsize=8)
        at.tick_params(labelsize=7)
    for unused in axes[count:]:
        unused.set_axis_off()
    drawn.supxlabel(f"time ({clock(first)})", fontsize=8)
    return drawn


def page(episodes: Sequence[Played], title: str, ground: tuple[Array, Array, Array] | None = None) -> str:
    """The pictures and a line per episode as one HTML page that opens from disk and loads nothing."""
    from surefoot.evaluation.report import STYLE, table

    head = [("episode", "right"), ("return", "right"), ("steps", "right")]
    costs = episodes[0].costs is not None
    head += [("cost", "right"), ("lowest margin", "right")] if costs else []
    body = []
    for number, one in enumerate(episodes):
        cells = [str(number), f"{one.rewards.sum():.1f}", str(len(one.rewards))]
        if one.costs is not None:
            cells += [f"{one.costs.sum():.1f}", "-" if one.margins is None else f"{one.margins.min():.3g}"]
        body.append((cells, False))
    broken = sum(one.violates for one in episodes)
    given = f"{len(episodes)} episodes, mean return {np.mean([one.rewards.sum() for one in episodes]):.1f}."
    if costs:
        given += f" {broken} of them break the constraint (orange), {len(episodes) - broken} keep it (blue)."
    if episodes[0].goal:
        counts = f", the circle where it counts as reached ({episodes[0].goal_radius:g})"
        given += f" The green star or line is the goal{counts if episodes[0].goal_radius > 0 else ''}."
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>",
            f'<p class="note">{html.escape(given)}</p>',
            f"<figure>{plots.to_svg(figure(episodes, '', ground))}</figure>",
            table(head, body),
            "</body></html>",
            "",
        ]
    )
