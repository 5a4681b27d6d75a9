"""Scores over a family of variants of one task: mean, quantile, CVaR and worst case, over seeds.

A policy that is trained in one simulator meets many: `phi` names a variant (a mass, a friction). Task
underspecification: Jayawardana et al., "The impact of task underspecification in evaluating deep reinforcement
learning" (2022). CVaR: Rockafellar and Uryasev (2000), the mean of the worst share of the family.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.selection import expected_maximum
from surefoot.evaluation.statistics import Array, Interval, hierarchical_interval


@dataclasses.dataclass(frozen=True)
class Family:
    """What S seeds score over M variants, each with its interval over seeds."""

    mean: Interval
    quantile: Interval
    """Of the share `share` from below."""
    cvar: Interval
    """Mean of the worst share."""
    worst: Interval
    """Of the variants met. The least of M noisy means is too low: evaluate that variant again with fresh episodes."""
    share: float
    worst_variant: int
    """The variant with the lowest mean over seeds."""
    too_low: float | None
    """How much too low `worst` is expected to be where all variants are equal; None where it is not known."""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        own = {name: getattr(self, name).to_json() for name in ("mean", "quantile", "cvar", "worst")}
        return {**own, "share": self.share, "worst_variant": self.worst_variant, "too_low": self.too_low}


def family(
    scores: Array, weights: Array | None = None, share: float = 0.1, deviation: float | None = None, episodes: int = 0
) -> Family:
    """Aggregates of a family, each computed for every seed and then averaged over seeds.

    Args:
        scores: (S, M) mean score of each seed in each variant.
        weights: (M,) of the variants, positive; None: equal.
        share: of the family that counts as its worst, in (0, 1].
        deviation: standard deviation of one episode's score, for `too_low`.
        episodes: behind each of the scores, for `too_low`.

    Raises:
        ConfigError: not a finite matrix, or weights or a share out of range.
    """
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0 or not np.isfinite(matrix).all():
        raise ConfigError(
            f"a family's scores must be a finite (seeds, variants) matrix; they have shape {matrix.shape}"
        )
    columns = {
        "mean": [weighted_mean(row, weights) for row in matrix],
        "quantile": [quantile(row, share, weights) for row in matrix],
        "cvar": [cvar(row, share, weights) for row in matrix],
        "worst": [float(row.min()) for row in matrix],
    }
    intervals = {
        name: hierarchical_interval([np.array([value]) for value in values], shared_episodes=False)
        for name, values in columns.items()
    }
    known = deviation is not None and episodes > 0
    low = expected_maximum(matrix.shape[1]) * float(deviation or 0) / math.sqrt(episodes) if known else None
    return Family(**intervals, share=share, worst_variant=int(matrix.mean(axis=0).argmin()), too_low=low)


def weighted_mean(scores: Array, weights: Array | None = None) -> float:
    """Mean of (M,) scores with (M,) weights, which need not sum to 1."""
    values, shares = _sorted(scores, weights)
    return float(values @ shares)


def cvar(scores: Array, share: float, weights: Array | None = None) -> float:
    """Mean of the lowest `share` of the (M,) scores by weight; a variant at its edge counts in part."""
    values, shares = _sorted(scores, weights)
    _check_share(share)
    before = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    taken = np.clip(share - before, 0.0, shares)
    return float(values @ taken / taken.sum())


def quantile(scores: Array, share: float, weights: Array | None = None) -> float:
    """The lowest score such that variants of at least the weight `share` score it or less."""
    values, shares = _sorted(scores, weights)
    _check_share(share)
    return float(values[min(int(np.searchsorted(np.cumsum(shares), share - 1e-12)), len(values) - 1)])


def _sorted(scores: Array, weights: Array | None) -> tuple[Array, Array]:
    values = np.asarray(scores, dtype=np.float64).reshape(-1)
    given = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
    if given.shape != values.shape or len(values) == 0:
        raise ConfigError(f"{len(values)} scores and {len(given)} weights: give one weight for each variant")
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise ConfigError("weights of variants must be finite and above 0")
    order = np.argsort(values, kind="stable")
    return values[order], given[order] / given.sum()


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}; it must be above 0 and at most 1, as in 0.1")
