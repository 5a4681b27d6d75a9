"""Numbers as distributions over bins: symlog, two-hot targets, their cross-entropy and what a distribution stands for.

A network that predicts a reward or a value as logits over bins learns at the same rate whatever the numbers' scale, and
its gradient does not grow with the error. Two layouts of bins are in use: evenly spaced ones of symlog numbers
(TD-MPC2), and the symexp of evenly spaced numbers, which targets are put between as they are (DreamerV3).
Source: Hafner, Pasukonis, Ba and Lillicrap, "Mastering Diverse Domains through World Models" (DreamerV3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.pointwise import pointwise


@pointwise
def symlog(values: Tensor) -> Tensor:
    """sign(x) log(1 + |x|), elementwise: x near 0, a logarithm far from it."""
    return torch.sign(values) * torch.log1p(values.abs())


@pointwise
def symexp(values: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), elementwise: the inverse of `symlog`."""
    return torch.sign(values) * torch.expm1(values.abs())


def even_bins(low: float, high: float, count: int) -> Tensor:
    """(K,) float64 bins, evenly spaced from `low` to `high`, and exactly as far from the middle on either side.

    Raises:
        ConfigError: fewer than two bins, or a range that is empty.
    """
    if count < 2 or not low < high:
        raise ConfigError(f"{count} bins from {low} to {high}: at least 2 are needed, over a range that is not empty")
    bins = torch.linspace(low, high, count, dtype=torch.float64)
    return 0.5 * (bins - bins.flip(0)) + 0.5 * (low + high)


def two_hot(values: Tensor, bins: Tensor) -> Tensor:
    """Weights on the two bins that each number lies between, so that their mean is the number.

    Numbers beyond the bins are put on the outermost one. Computed as hat functions, one for each bin, which needs no
    index: the same under `vmap` and on a tape.

    Args:
        values: (...), in the units of the bins.
        bins: (K,) rising, in the same dtype.

    Returns:
        (..., K), each row at least 0 and of sum 1, without gradient.
    """
    wanted = values.detach().clamp(bins[0], bins[-1]).unsqueeze(-1)
    widths = bins[1:] - bins[:-1]
    rising = torch.cat([torch.ones_like(wanted), (wanted - bins[:-1]) / widths], -1)
    falling = torch.cat([(bins[1:] - wanted) / widths, torch.ones_like(wanted)], -1)
    return torch.minimum(rising, falling).clamp(min=0)


def cross_entropy(logits: Tensor, weights: Tensor) -> Tensor:
    """(...) nats between (..., K) weights of sum 1 and the distributions of (..., K) logits."""
    return -(weights * torch.log_softmax(logits, -1)).sum(-1)


def mean_of_bins(logits: Tensor, bins: Tensor) -> Tensor:
    """(...) means of the distributions of (..., K) logits over (K,) bins.

    Bins that lie symmetrically about 0 are added in pairs first: a uniform distribution over widely spaced ones then
    has a mean of exactly 0, which rounding would make large.
    """
    parts = torch.softmax(logits, -1) * bins
    return 0.5 * (parts + parts.flip(-1)).sum(-1)
