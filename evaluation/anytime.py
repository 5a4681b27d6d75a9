"""Evidence that may be looked at whenever one likes: e-processes and the intervals that they give.

An e-process starts at 1 and, where the hypothesis is true, exceeds 1 / level at any time with a probability of at most
`level` (Ville's inequality), so one may stop at a moment of one's own choice. Confidence sequences are the values that
are not rejected. Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference"
(2023); bounded means: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.statistics import Array, Interval

NODES, PANELS, FINER = 12, 12, 4.0
"""Bets of the mixture: Gauss-Legendre nodes of each panel, panels that the bets of either sign are cut into, and how
much shorter a panel is than the next one away from 0. What decides after n differences are bets near 0 that differ by
about 1 / sqrt(n). The panels are the same for every n, their weights above 0 and of sum 1: one mixture, valid as it is.
"""
_AT_ONCE = 128  # distinct differences whose logarithms are in memory, for all bets


def t_e_process(differences: Array, effect_variance: float = 1.0) -> Array:
    """Evidence against a mean of 0 after each of the differences, near normal, of unknown scale.

    The Bayes factor of an effect size ~ N(0, g) against none, a martingale under scale changes (Rouder et al.,
    "Bayesian t tests", 2009; as an e-process: Grünwald, de Heide and Koolen, "Safe testing", 2024):

        E_n = (1 + n g)^(-1/2) [(1 + t^2 / v) / (1 + t^2 / (v (1 + n g)))]^((v + 1) / 2),    v = n - 1

    Args:
        differences: (..., N), those of a comparison along the last dimension in the order in which they came.
        effect_variance: g, of the mean in units of the standard deviation.

    Returns:
        (..., N) values of E, the first of them 1: one difference says nothing.
    """
    u = _finite(differences)
    n = np.arange(1, u.shape[-1] + 1, dtype=np.float64)
    mean = np.cumsum(u, axis=-1) / n
    before = np.concatenate([np.zeros_like(mean[..., :1]), mean[..., :-1]], axis=-1)
    squares = np.cumsum((u - mean) * (u - before), axis=-1).clip(0.0)  # Welford's, sum of squared deviations
    signal, shrunk = n * mean**2, 1 + n * effect_variance
    top, bottom = squares + signal, squares + signal / shrunk
    ratio = np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), 1.0)
    e = np.exp(-0.5 * np.log(shrunk) + n / 2 * np.log(ratio))
    e[..., 0] = 1.0
    return np.asarray(e)


def t_sequence(differences: Array, level: float = 0.05, effect_variance: float = 1.0) -> Interval:
    """The means that `t_e_process` does not reject after all of the differences, (N,); may be read at any N.

    From E < 1 / level: with c = (level^2 / (1 + n g))^(-1 / n) the squared distance of the mean is below
    (c - 1) S / (n (1 - c / (1 + n g))), S the sum of squared deviations; unbounded where c >= 1 + n g.
    """
    u = _finite(differences).reshape(-1)
    _check_level(level)
    if len(u) == 0:
        raise ConfigError("an interval needs at least one difference")
    n, shrunk = len(u), 1 + len(u) * effect_variance
    estimate, squares = float(u.mean()), float(((u - u.mean()) ** 2).sum())
    method = f"t e-process over {n} pairs of seeds; holds at every look"
    c = math.exp(math.log(shrunk / level**2) / n)
    if n < 2 or c >= shrunk:
        return Interval(estimate, math.nan, math.nan, method)
    half = math.sqrt((c - 1) * squares / (n * (1 - c / shrunk)))
    return Interval(estimate, estimate - half, estimate + half, method)


def mixture_e(differences: Array, mean: float | Array = 0.0) -> Array:
    """Evidence against the mean `d` of differences in [-1, 1], in whatever order they came:

        E(d) = average over l ~ U(-1 / (1 - d), 1 / (1 + d)) of prod_i (1 + l (u_i - d))

    Args:
        differences: (N,) in [-1, 1].
        mean: d in (-1, 1); a number or (D,).

    Returns:
        E of each d.

    Raises:
        ConfigError: a difference outside of [-1, 1].
    """
    u = _finite(differences).reshape(-1)
    if len(u) and np.abs(u).max() > 1 + 1e-12:
        raise ConfigError(f"differences must be from -1 to 1; one is {u[np.abs(u).argmax()]:g}: divide by their range")
    values, counts = np.unique(u, return_counts=True)
    d = np.asarray(mean, dtype=np.float64)
    return np.asarray(np.exp(_log_mixture(values, counts, d.reshape(-1)))).reshape(d.shape)


def _log_mixture(values: Array, counts: Array, d: Array) -> Array:
    """Logarithm of the evidence, (D,), of distinct values that came so often; convex in d."""
    nodes, weights = _bets()
    low, high = -1 / (1 - d), 1 / (1 + d)
    bets = np.concatenate([nodes[:, None] * low, nodes[:, None] * high])  # (bets, D)
    shares = np.concatenate([weights[:, None] * (1 + d) / 2, weights[:, None] * (1 - d) / 2])
    total = np.zeros_like(bets)
    with np.errstate(divide="ignore"):
        for j, mean in enumerate(d):
            for first in range(0, len(values), _AT_ONCE):
                part = slice(first, first + _AT_ONCE)
                logs = np.log1p(np.maximum(bets[:, j, None] * (values[part] - mean), -1.0))  # (bets, at most _AT_ONCE)
                total[:, j] += (counts[part] * logs).sum(axis=1)
    top = total.max(axis=0)
    return np.asarray(top + np.log((shares * np.exp(total - top)).sum(axis=0)))


def mixture_sequence(differences: Array, level: float = 0.05) -> Interval:
    """The means in [-1, 1] that `mixture_e` does not reject: an interval that holds at every N at once.

    Args:
        differences: (N,) in [-1, 1], N >= 1; divided by the range of a score where that is not 1.
        level: 1 minus the confidence.
    """
    u = _finite(differences).reshape(-1)
    _check_level(level)
    if len(u) == 0:
        raise ConfigError("an interval needs at least one difference")
    mixture_e(u[:1])
    values, counts = np.unique(u, return_counts=True)
    if np.abs(values).max() > 1 + 1e-12:
        raise ConfigError("differences must be from -1 to 1: divide by the range of the scores")
    estimate, bound = float(u.mean()), math.log(1 / level)

    def beyond(d: float) -> float:
        return float(_log_mixture(values, counts, np.array([d]))[0]) - bound

    inside, step = min(max(estimate, -1 + 1e-12), 1 - 1e-12), 3 * (float(u.std()) / math.sqrt(len(u)) + 1 / len(u))
    ends = [_edge(beyond, inside, end, step) for end in (-1.0, 1.0)]
    return Interval(estimate, ends[0], ends[1], f"betting mixture over {len(u)}; holds at every look")


def mean_sequence(scores: Array, low: float = 0.0, high: float = 1.0, level: float = 0.05) -> Interval:
    """Interval of the mean of scores in [low, high] that holds at every N at once, as `mixture_sequence`.

    Raises:
        ConfigError: a score outside of the range, or an empty range.
    """
    x = _finite(scores).reshape(-1)
    if not low < high:
        raise ConfigError(f"the range of scores is [{low:g}, {high:g}]; the second must be above the first")
    if len(x) and not low <= x.min() <= x.max() <= high:
        worst = x.min() if x.min() < low else x.max()
        raise ConfigError(
            f"a score of {worst:g} lies outside of [{low:g}, {high:g}]; give the range that scores can have"
        )
    found = mixture_sequence(np.clip(2 * (x - low) / (high - low) - 1, -1, 1), level)

    def back(value: float) -> float:
        return low + (high - low) * (value + 1) / 2

    method = f"betting mixture over {len(x)} episodes; holds at every look"
    return Interval(float(x.mean()), back(found.low), back(found.high), method)


def hedged_capital(scores: Array, mean: float, level: float = 0.05) -> Array:
    """Waudby-Smith and Ramdas' hedged capital against the mean m after each of the scores in [0, 1], (N,) to (N,).

    Bets are predictable: l_t = sqrt(2 log(1 / level) / (t log(1 + t) v_{t-1})), cut to half of what could ruin.
    """
    x = _finite(scores).reshape(-1)
    if len(x) and not 0 <= x.min() <= x.max() <= 1:
        raise ConfigError("scores must be from 0 to 1: subtract the least and divide by the range")
    if not 0 < mean < 1:
        raise ConfigError(f"mean is {mean}; it must be between 0 and 1")
    bets = predictable_bets(x, level)
    up = np.cumprod(1 + np.minimum(bets, 0.5 / mean) * (x - mean))
    down = np.cumprod(1 - np.minimum(bets, 0.5 / (1 - mean)) * (x - mean))
    return np.asarray(np.maximum(up, down) / 2)


def predictable_bets(scores: Array, level: float = 0.05) -> Array:
    """The bets of `hedged_capital` before they are cut, (N,) to (N,)."""
    x = _finite(scores).reshape(-1)
    _check_level(level)
    t = np.arange(1, len(x) + 1)
    means = (0.5 + np.cumsum(x)) / (t + 1)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (t + 1)
    before = np.concatenate([[0.25], variances[:-1]])[: len(x)]
    return np.asarray(np.sqrt(2 * math.log(1 / level) / (t * np.log1p(t) * before)))


def _edge(beyond: Callable[[float], float], inside: float, end: float, step: float) -> float:
    """Where rejection begins between a value that is kept and an end of the range; the end where it never does.

    Args:
        beyond: how far above its bound the evidence is, convex and below 0 at `inside`: it has one root at most.
        inside: a value that is kept.
        end: -1 or 1.
        step: about how far the root is; it is doubled until it is passed.
    """
    bad = end * (1 - 1e-12)
    good, below, above = inside, beyond(inside), beyond(bad)
    if above < 0:
        return end
    while step < abs(bad - good):
        tried = good + math.copysign(step, end)
        value = beyond(tried)
        if value >= 0:
            bad, above = tried, value
            break
        good, below, step = tried, value, 2 * step
    stays = 0  # -1: the bad end was replaced last, 1: the good one
    for _ in range(100):  # regula falsi; an end that stays twice counts for half (Dowell and Jarratt, 1971)
        if abs(bad - good) < 1e-15 or above < 1e-12:
            break
        middle = bad - above * (bad - good) / (above - below)
        value = beyond(middle)
        if value >= 0:
            bad, above, below, stays = middle, value, below / 2 if stays < 0 else below, -1
        else:
            good, below, above, stays = middle, value, above / 2 if stays > 0 else above, 1
    return bad


@functools.cache
def _bets() -> tuple[Array, Array]:
    """Bets of one sign as shares of the largest, and their weights, which sum to 1: (PANELS * NODES,) each."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    edges = np.concatenate([[0.0], FINER ** np.arange(1.0 - PANELS, 1.0)])
    left, width = edges[:-1, None], np.diff(edges)[:, None]
    return (left + width * (nodes + 1) / 2).reshape(-1), (width * weights / weights.sum()).reshape(-1)


def _finite(values: Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ConfigError("a score is not finite; evidence needs finite numbers")
    return array


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; it must be between 0 and 1, as in 0.05")
