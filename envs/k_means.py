"""Exact k-means of numbers: with one dimension a dynamic programme over sorted values finds the best clusters.

Source: Wang and Song, "Ckmeans.1d.dp: Optimal k-means clustering in one dimension by dynamic programming" (2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError

Array = np.ndarray[Any, Any]


def k_means(values: Array, clusters: int) -> Array:
    """(K,) int64 the cluster of each number, 0 the lowest: those with the least sum of squared distances to means.

    Equal numbers are in one cluster, so that there are never more clusters than different numbers. Nothing is random.

    Args:
        values: (K,) finite numbers, K at least 1.
        clusters: most clusters, at least 1.

    Raises:
        ConfigError: fewer clusters than 1, no numbers, or some that are not finite.
    """
    values = np.asarray(values, np.float64)
    if clusters < 1 or values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ConfigError(f"{clusters} clusters of values of shape {values.shape}: give 1 or more, of finite numbers")
    points, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    centred = points - np.average(points, weights=counts)  # sums of squares lose less so
    weight, first, second = (np.concatenate([[0.0], np.cumsum(counts * centred**power)]) for power in (0, 1, 2))

    def spread(starts: Array, end: int) -> Array:
        """Squared distances to their mean of the points from each of `starts` up to, without, `end`."""
        mass, total = weight[end] - weight[starts], first[end] - first[starts]
        return np.maximum(second[end] - second[starts] - total**2 / mass, 0.0)

    size, most = len(points), min(clusters, len(points))
    cost = np.array([spread(np.array([0]), end)[0] for end in range(1, size + 1)])
    breaks = np.zeros((most, size), np.int64)
    for cluster in range(1, most):
        following = np.full(size, np.inf)
        for end in range(cluster, size):  # the last cluster holds the points from one of `starts` to `end`
            starts = np.arange(cluster, end + 1)
            found = cost[starts - 1] + spread(starts, end + 1)
            best = int(found.argmin())
            following[end], breaks[cluster, end] = found[best], starts[best]
        cost = following
    labels, end = np.empty(size, np.int64), size
    for cluster in range(most - 1, -1, -1):
        start = int(breaks[cluster, end - 1])
        labels[start:end], end = cluster, start
    return labels[place]
