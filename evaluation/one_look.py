"""Does one algorithm score higher than another? One look at seeds whose number was fixed beforehand.

The labels of the scores are shuffled and the observed difference is held against the shuffled ones; exact for
exchangeable scores, whatever their distribution (Fisher, "The design of experiments", 1935). For looks while seeds are
trained see `deciding`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.statistics import Array

SLACK = 1e-9
"""Relative; sums of the same scores in another order are ties."""
ROUNDING = 1e-12
"""Of the largest score beyond the first one, which is taken from all: equal scores are exact zeros."""
_ENUMERATED = 200_000  # labelings that are all counted: of up to ten seeds each
_MOST_PATHS = 10**6
_AT_ONCE = 2**16  # labelings whose scores are in memory


def permutation_p(first: Array, second: Array, paths: int = 20_000, seed: int = 0, level: float | None = None) -> float:
    """Two-sided p value of one look: the share of labelings with as large a difference of means as the observed.

    Exact where there are at most 200,000 labelings, or `paths`, else over random ones with the observed among them. It
    is the level of one look at a number of seeds that was fixed beforehand, and of nothing else.

    Args:
        first: (M,) scores of independently trained seeds.
        second: (N,) likewise.
        paths: random labelings, where not all are counted.
        seed: of these.
        level: that p is held against; there are at least as many labelings as it needs (`paths_for`).
    """
    x, y = finite_scores(first), finite_scores(second)
    if len(x) == 0 or len(y) == 0:
        raise ConfigError("a comparison needs at least one score of each side")
    both, m = np.concatenate([x, y]) - x[0], len(x)
    rows = _labelings(len(both), m, paths if level is None else max(paths, paths_for(level)), seed)
    parts = (rows[k : k + _AT_ONCE] for k in range(0, len(rows), _AT_ONCE))
    sums = np.concatenate([both[part].sum(axis=1) for part in parts])
    distance = np.abs(sums / m - (both.sum() - sums) / len(y))
    return float(np.mean(distance >= distance[0] * (1 - SLACK) - ROUNDING * np.abs(both).max()))


def paths_for(level: float) -> int:
    """Random labelings that a p value held against this level needs.

    A hundred of them are expected at the level, or as many as a million allow, but 1 / level at least, below which no
    p value could be as small.
    """
    return max(math.ceil(1 / level), min(math.ceil(100 / level), _MOST_PATHS))


@functools.lru_cache(maxsize=2)
def _labelings(count: int, m: int, paths: int, seed: int) -> Array:
    """(labelings, m) places among `count` scores, the first m in the first row: all, or so many random ones."""
    kind = np.min_scalar_type(count)
    if math.comb(count, m) <= max(paths, _ENUMERATED):
        every = itertools.chain.from_iterable(itertools.combinations(range(count), m))
        return np.fromiter(every, kind, math.comb(count, m) * m).reshape(-1, m)
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(count, dtype=kind), (paths, 1)), axis=1)
    order[0] = np.arange(count)
    return order[:, :m].copy()


def smallest_p(seeds: int) -> float:
    """What `permutation_p` gives where each of `seeds` scores of one side is above all of the other's."""
    return 2 / choose(seeds)


def seeds_needed(level: float = 0.05) -> int:
    """The least number of seeds for each of two algorithms with which anything can be decided: 4 at 0.05."""
    return next(n for n in itertools.count(2) if smallest_p(n) <= level)


def too_few(seeds: int, level: float = 0.05, others: int | None = None) -> str | None:
    """Words where with so many seeds of one, and `others` or as many of the other, nothing can be decided; or None."""
    others = seeds if others is None else others
    ways, tied = math.comb(seeds + others, seeds), 2 if seeds == others else 1  # the mirror image is as large
    if ways * level + SLACK >= tied:
        return None
    shuffles = "even the largest difference can't be distinguished from chance" if ways < 3 else (
        f"even if every seed of one beat every seed of the other, {tied} of the {ways} ways of giving the "
        "labels would do as well"
    )  # fmt: skip
    have = "1 seed" if seeds == 1 else f"{seeds} seeds"
    who = f"{have} of each algorithm" if seeds == others else f"{have} of one algorithm and {others} of the other"
    return (
        f"with {who} nothing can be decided at a level of {level:g}: {shuffles}. "
        f"{seeds_needed(level)} seeds of each are the least"
    )


def choose(n: int) -> int:
    """In how many ways 2 n scores get n labels of each kind."""
    return math.comb(2 * n, n)


def finite_scores(values: Array | Sequence[float]) -> Array:
    """Scores in one dimension; raises ConfigError where one is not finite."""
    scores = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(scores).all():
        raise ConfigError("a score is not finite; leave out seeds without a score on both sides before comparing")
    return scores
