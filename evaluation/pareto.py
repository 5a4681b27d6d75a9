"""Pareto fronts and hypervolumes of points of several objectives, all of which are to be high."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError

Array = np.ndarray[Any, Any]


def pareto_front(points: Any) -> Array:
    """(P,) bool: which of (P, m) points no other one dominates: at least as high everywhere, and higher somewhere.

    >>> pareto_front([[1, 3], [2, 2], [1, 2], [3, 1]]).tolist()
    [True, True, False, True]
    """
    found = np.asarray(points, np.float64)
    least = (found[:, None] >= found[None]).all(-1)  # [i, j]: i is at least as high as j
    more = (found[:, None] > found[None]).any(-1)
    return np.asarray(~(least & more).any(0))


def hypervolume(points: Any, reference: Sequence[float]) -> float:
    """Volume of what some point dominates and that dominates the reference.

    Computed by slices along the last objective (While et al., 2006), exactly; for a few objectives and hundreds of
    points.

    Args:
        points: (P, m).
        reference: (m,) what counts as nothing; points that are not above it everywhere add nothing.

    Raises:
        ConfigError: other shapes, or numbers that are not finite.

    >>> hypervolume([[1, 3], [2, 2], [3, 1]], [0, 0])
    6.0
    """
    found, origin = np.asarray(points, np.float64), np.asarray(reference, np.float64)
    if (
        found.ndim != 2
        or origin.shape != found.shape[1:]
        or not (np.isfinite(found).all() and np.isfinite(origin).all())
    ):
        raise ConfigError(f"points {found.shape} and reference {origin.shape} must be finite, (P, m) and (m,)")
    above = found[(found > origin).all(1)] - origin
    return _volume(above)


def _volume(points: Array) -> float:
    """Of what (P, m) points above 0 dominate."""
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(points.max())
    points = points[np.argsort(-points[:, -1])]
    ends = np.append(points[1:, -1], 0.0)
    return sum(
        (float(points[i, -1]) - float(ends[i])) * _volume(points[: i + 1, :-1])
        for i in range(len(points))
        if points[i, -1] > ends[i]
    )
