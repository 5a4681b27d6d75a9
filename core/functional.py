"""Value-learning functions of a batch: pure, elementwise, without reduction, each with its source."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    r"""Asymmetric squared error :math:`|\tau - 1(u < 0)|\, u^2` of u = target - prediction.

    Its minimiser over predictions is the `expectile` of the target; 0.5 gives half the squared error.

    Args:
        difference: u, any shape.
        expectile: tau in (0, 1); above 0.5, underestimating costs more.

    Returns:
        Loss per element, the shape of `difference`.

    Source: Kostrikov, Nair, Levine, "Offline Reinforcement Learning with Implicit Q-Learning", eq. (4).
    """
    weight = torch.where(difference > 0, expectile, 1.0 - expectile)
    return weight * difference.square()


def huber_loss(difference: Tensor, transition: float) -> Tensor:
    """Huber's loss divided by its transition point b: x^2 / (2b) where |x| < b, else |x| - b/2.

    The gradient is clip(x / b, -1, 1): at most one in size whatever b is.

    Args:
        difference: x, any shape.
        transition: b > 0, in the units of `difference`.

    Returns:
        Loss per element, the shape of `difference`.

    Source: Huber (1964); in this scaling Yang et al., "Towards Robust Offline RL under Diverse Data
    Corruption" (RIQL), with b = 1 / sigma^2.
    """
    size = difference.abs()
    return torch.where(size < transition, difference.square() / (2 * transition), size - transition / 2)


def linear_quantile(values: Tensor, level: float) -> Tensor:
    """The `level` quantile over dimension 0, linear between order statistics at level * (K - 1).

    Args:
        values: (K, ...), K members.
        level: in [0, 1]; 0 is the minimum, 0.5 the median, 1 the maximum.

    Returns:
        (...), equal to `torch.quantile(values, level, dim=0)`, which is slower for small K.

    Source: definition 7 of Hyndman and Fan (1996); used over critics by RIQL.
    """
    members = values.shape[0]
    position = level * (members - 1)
    below = min(int(position), members - 1)
    fraction = position - below
    if below == 0 and fraction == 0:
        return values.amin(0)
    ordered = values.sort(0).values
    if fraction == 0:
        return ordered[below]
    return torch.lerp(ordered[below], ordered[below + 1], fraction)


def td_target(rewards: Tensor, terminations: Tensor, next_values: Tensor, discount: float) -> Tensor:
    """One-step target r + discount * (1 - d) * V(s'), without gradient.

    Args:
        rewards: (B,) in reward units.
        terminations: (B,) 1 where the task itself ended; a truncation is not one and bootstraps.
        next_values: (B,) value of the next state, in reward units.
        discount: in [0, 1].

    Returns:
        (B,).

    Source: Sutton and Barto, "Reinforcement Learning", eq. (6.2).
    """
    return (rewards + discount * (1 - terminations) * next_values).detach()


def advantage_weights(advantages: Tensor, inverse_temperature: float, limit: float = 100.0) -> Tensor:
    """Weights min(exp(inverse_temperature * A), limit) of advantage-weighted regression, without gradient.

    The exponent is cut at log(limit) before it is taken, so that it can't overflow.

    Args:
        advantages: (B,) in reward units.
        inverse_temperature: beta >= 0; 0 gives plain behaviour cloning.
        limit: largest weight.

    Returns:
        (B,) in (0, limit]; a NaN advantage stays NaN, so that divergence is seen.

    Source: Peng et al., "Advantage-Weighted Regression"; the limit of 100 is IQL's.
    """
    exponent = (advantages.detach() * inverse_temperature).clamp(max=math.log(limit))
    return exponent.exp()
