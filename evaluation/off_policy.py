"""What a policy would have earned, from episodes of another: importance sampling and doubly robust estimates.

Episodes are (E, T) arrays filled up behind their ends; `mask` says which steps are there. `ratios` are the densities of
the actions taken, under the policy over those under the behaviour. All estimates are of the return discounted from the
first step.

Sources: Precup, Sutton and Singh, "Eligibility traces for off-policy policy evaluation" (2000), for the per-decision
form; Jiang and Li, "Doubly robust off-policy value evaluation" (2016); Thomas and Brunskill, "Data-efficient
off-policy policy evaluation" (2016), for the self-normalised forms of both.
"""

from __future__ import annotations

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.evaluation.statistics import Array


def log_products(ratios: Array, mask: Array) -> Array:
    """(E, T) logarithm of the density ratio of each episode up to and with each step; behind an end it stays.

    Products themselves leave what floats hold after some tens of steps, in either direction.

    Raises:
        ConfigError: shapes differ, or a ratio is negative or not finite.
    """
    _same(ratios, mask)
    there = np.where(mask, ratios, 1.0)
    if (there < 0).any():
        raise ConfigError("density ratios are at least 0")
    with np.errstate(divide="ignore"):  # of a policy that never does what was recorded
        return np.asarray(np.cumsum(np.log(there), axis=1))


def effective_episodes(ratios: Array, mask: Array) -> float:
    """(sum w)^2 / sum w^2 of whole episodes' ratios: of E episodes, how many the estimate rests on, 1 to E; or 0."""
    shares = _shares(log_products(ratios, mask)[:, -1:], weighted=True)
    squares = float((shares**2).sum())
    return 1 / squares if squares else 0.0


def importance_sampling(ratios: Array, rewards: Array, mask: Array, discount: float, weighted: bool = True) -> float:
    """Returns weighted by their episodes' ratios, over the ratios' sum, or, unbiased, over the number of episodes."""
    shares = _shares(log_products(ratios, mask)[:, -1:], weighted)[:, 0]
    returns = (_discounts(mask, discount) * np.where(mask, rewards, 0.0)).sum(1)
    return float(shares @ returns)


def per_decision(ratios: Array, rewards: Array, mask: Array, discount: float, weighted: bool = True) -> float:
    """Rewards weighted by the ratio up to their step; self-normalised at each step, or unbiased."""
    shares = _shares(log_products(ratios, mask), weighted)
    return float((_discounts(mask, discount) * shares * np.where(mask, rewards, 0.0)).sum())


def doubly_robust_value(
    ratios: Array, rewards: Array, mask: Array, values: Array, q_values: Array, discount: float, weighted: bool = True
) -> float:
    """A model's value of the first states, plus what the data say it is wrong by.

    Unbiased where either the ratios or `values` and `q_values` are right; `weighted`, the default for its lower
    variance, only as the number of episodes grows.

    Args:
        ratios, rewards, mask: (E, T).
        values: (E, T) V of the policy.
        q_values: (E, T) Q of the policy at the actions taken.
        discount: in [0, 1].
        weighted: normalise the ratios at each step by their sum.
    """
    for part in (rewards, values, q_values):
        _same(part, mask)
    now = _shares(log_products(ratios, mask), weighted)
    before = np.concatenate([np.full((len(mask), 1), 1 / len(mask)), now[:, :-1]], 1)
    q, v, r = (np.where(mask, part, 0.0) for part in (q_values, values, rewards))
    return float((_discounts(mask, discount) * (now * (r - q) + before * v)).sum())


def padded(values: Array, starts: Array, fill: float = 0.0) -> tuple[Array, Array]:
    """An (N,) column in episode order as (E, T), filled up, and the mask of what is there.

    Args:
        values: (N,).
        starts: (E + 1,) first row of each episode, and N.
        fill: behind the ends.
    """
    lengths = np.diff(starts)
    mask = np.arange(int(lengths.max())) < lengths[:, None]
    table = np.full(mask.shape, fill, np.float64)
    table[mask] = values
    return table, mask


def _discounts(mask: Array, discount: float) -> Array:
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount is {discount}; it must be in [0, 1]")
    return np.asarray(discount ** np.arange(mask.shape[1]))


def _shares(log_weights: Array, weighted: bool) -> Array:
    """(E, T) weights over their step's sum, so that they sum to 1, or over the number of episodes.

    All 0 at a step at which all weights are; unweighted ones that a float can't hold are its largest.
    """
    if not weighted:
        most = np.log(np.finfo(np.float64).max)
        return np.asarray(np.exp(np.minimum(log_weights, most)) / len(log_weights))
    highest = log_weights.max(0)
    weights = np.exp(log_weights - np.where(np.isfinite(highest), highest, 0.0))
    total = weights.sum(0)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def _same(part: Array, mask: Array) -> None:
    if part.shape != mask.shape or mask.ndim != 2 or not np.isfinite(np.where(mask, part, 0.0)).all():
        raise ConfigError(f"episodes are finite (E, T) arrays of one shape: got {part.shape} beside {mask.shape}")
