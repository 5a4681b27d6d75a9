"""Online statistics of K streams in float64: Welford's moments, and the scale of rewards. Pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8
"""Added to a variance before its root is taken."""


def welford(count: Tensor, mean: Tensor, squares: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations with one more value.

    Args:
        count: (K,) values so far.
        mean: (K,) or (K, O), 0 where the count is 0.
        squares: like `mean`.
        value: like `mean`.

    Source: Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products" (1962).
    """
    count = count + 1
    shift = value - mean
    mean = mean + shift / _like(count, mean)
    return count, mean, squares + shift * (value - mean)


def deviation(count: Tensor, squares: Tensor) -> Tensor:
    """sqrt(variance + 1e-8), the variance being 1 until there are two values: like `squares`."""
    count = _like(count, squares)
    variance = torch.where(count < 2, 1.0, squares / (count - 1).clamp(min=1))
    return (variance + EPSILON).sqrt()


def discounted_sum(
    trace: Tensor, reward: Tensor, done: Tensor, discount: float, clear_before_add: bool
) -> tuple[Tensor, Tensor]:
    """The discounted sum of past rewards with one more, and what of it is kept for the next: (K,) each.

    Args:
        trace: (K,) what was kept.
        reward: (K,).
        done: (K,) bool, whether the episode ends with this reward.
        discount: the agent's.
        clear_before_add: the official order, in which an episode's last reward leaks into the next episode's sum.
    """
    if clear_before_add:
        total = torch.where(done, 0.0, discount * trace) + reward
        return total, total
    total = discount * trace + reward
    return total, torch.where(done, 0.0, total)


def _like(count: Tensor, value: Tensor) -> Tensor:
    return count if value.dim() == 1 else count.unsqueeze(-1)
