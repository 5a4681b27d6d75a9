"""Dropout masks from few random numbers: the places of the units that are dropped, not a number for each unit.

With one unit in a hundred dropped they are a twentieth of the numbers, of which a training step with many critic steps
reads millions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.core.base.counter import CounterGenerator

RARE = 1e-12
"""A row has more dropped units than there is room for with at most this probability; those beyond are kept."""


def most_dropped(units: int, keep: float) -> int:
    """Numbers per row that `places` draws: so many of `units` are dropped at most, except with probability `RARE`.

    By Bernstein's inequality, P(X >= m + t) <= exp(-t^2 / (2 m + 2 t / 3)) of a sum X of mean m.
    """
    mean, size = units * (1 - keep), -math.log(RARE)
    return min(units, math.ceil(mean + size / 3 + math.sqrt(size**2 / 9 + 2 * size * mean)))


def places(source: CounterGenerator, shape: tuple[int, ...], units: int, keep: float) -> Tensor:
    """(S, *shape, `most_dropped`) float32 ascending places of dropped units, each dropped with probability 1 - `keep`.

    From one to the next it is a geometric number of units; places of `units` are none any more.

    Args:
        source: of the random numbers of S seeds.
        shape: of the rows.
        units: in a row.
        keep: in (0, 1).
    """
    found = source.standard_exponential((*shape, most_dropped(units, keep)))
    found = found.mul_(-1 / math.log(keep)).floor_().clamp_(max=units)  # whole numbers that float32 adds up exactly
    found[..., 1:] += 1
    return found.cumsum(-1).clamp_(max=units)


def masks(where: Tensor, units: int, keep: float) -> Tensor:
    """(..., units) masks that multiply activations: 0 at the (..., K) places that `places` drew, else 1 / keep."""
    whole = torch.full_like(where[..., :1], 1 / keep).expand(*where.shape[:-1], units + 1)
    return whole.scatter(-1, where.long(), torch.zeros_like(where))[..., :units]
