"""Quasimetrics: distances that need not be the same in both directions, as those between states are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError


def union_length(starts: Tensor, ends: Tensor) -> Tensor:
    """(...,) length of the union of K intervals from (..., K) starts to ends; one that ends before its start is empty.

    Differentiable almost everywhere: the intervals are put in the order of their starts, and each adds what lies
    behind the furthest end before it.
    """
    first, order = starts.sort(-1)
    last = torch.maximum(ends.gather(-1, order), first)
    reached = torch.cat([first[..., :1], last[..., :-1].cummax(-1).values], -1)
    return torch.relu(last - torch.maximum(first, reached)).sum(-1)


class IntervalQuasimetric(nn.Module):
    r"""Interval quasimetric embedding: of each group of coordinates the length of the union of [x_k, y_k].

    :math:`d(x, y) = \sigma(\omega)\,\mathrm{mean}_g\, l_g + (1 - \sigma(\omega)) \max_g l_g`, with a weight
    :math:`\omega` that is trained. d(x, x) = 0, d >= 0, and the triangle inequality holds. Source: Wang and Isola,
    "Improved Representation of Asymmetrical Distances with Interval Quasimetric Embeddings" (2022).
    """

    def __init__(self, width: int = 512, group: int = 8) -> None:
        """Between vectors of `width` numbers in groups of `group`.

        Raises:
            ConfigError: a width that is no multiple of the group's.
        """
        super().__init__()
        if group < 1 or width < group or width % group:
            raise ConfigError(f"a quasimetric of {width} numbers has no groups of {group}: it must divide them")
        self.group = group
        self.balance = nn.Parameter(torch.zeros(()))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(...,) distances from (..., D) to (..., D)."""
        lengths = union_length(*(x.unflatten(-1, (-1, self.group)) for x in (first, second)))
        share = torch.sigmoid(self.balance)
        return share * lengths.mean(-1) + (1 - share) * lengths.amax(-1)
