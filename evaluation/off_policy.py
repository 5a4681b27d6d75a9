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

from surefoot.core.errors import ConfigError
from surefoot.evaluation.statistics import Array


def products(ratios: Array, mask: Array) -> Array:
    """(E, T) density ratio of each episode up to and with each step; behind an end it stays what it was there."""
    _same(ratios, mask)
    return np.cumprod(np.where(mask, ratios, 1.0), axis=1)


def effective_episodes(ratios: Array, mask: Array) -> float:
    """(sum w)^2 / sum w^2 of whole episodes' ratios: of E episodes, how many the estimate rests on, 1 to E."""
    whole = products(ratios, mask)[:, -1]
    whole = whole / whole.max() if whole.max() > 0 else np.ones(len(whole))
    return float(whole.sum() ** 2 / (whole**2).sum())


def importance_sampling(ratios: Array, rewards: Array, mask: Array, discount: float, weighted: bool = True) -> float:
    """Returns weighted by their episodes' ratios, over the ratios' sum, or, unbiased, over the number of episodes."""
    whole = products(ratios, mask)[:, -1]
    returns = (_discounts(mask, discount) * np.where(mask, rewards, 0.0)).sum(1)
    return float(whole @ returns / (whole.sum() if weighted else len(whole)))


def per_decision(ratios: Array, rewards: Array, mask: Array, discount: float, weighted: bool = True) -> float:
    """Rewards weighted by the ratio up to their step; self-normalised at each step, or unbiased."""
    shares = _shares(products(ratios, mask), weighted)
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
    now = _shares(products(ratios, mask), weighted)
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


def _shares(weights: Array, weighted: bool) -> Array:
    """Each step's weights over their sum, so that they sum to 1, or over the number of episodes."""
    total = weights.sum(0) if weighted else np.full(weights.shape[1], float(len(weights)))
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def _same(part: Array, mask: Array) -> None:
    if part.shape != mask.shape or mask.ndim != 2 or not np.isfinite(np.where(mask, part, 0.0)).all():
        raise ConfigError(f"episodes are finite (E, T) arrays of one shape: got {part.shape} beside {mask.shape}")
