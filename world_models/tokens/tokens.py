"""Numbers as tokens: bins of each number's range, evenly wide or evenly full, and draws from what a model says of them.

Sources: Janner, Li and Levine, "Offline Reinforcement Learning as One Big Sequence Modeling Problem" (NeurIPS 2021),
section 3.1, for both laws.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, DataError, nearest

LAWS = ("quantile", "uniform")


class Bins(nn.Module):
    """K bins for each of D numbers: a number's token is its bin, and a token's number the bin's middle."""

    inner: Tensor
    """(D, K - 1) borders between bins; a border belongs to the bin above it."""
    centres: Tensor
    """(D, K) middles of the bins."""
    widths: Tensor
    """(D, K) of the bins, in the numbers' units."""
    fitted: Tensor

    def __init__(self, numbers: int, count: int, law: str = "quantile") -> None:
        """Make room; `fit` sets the borders.

        Args:
            numbers: D.
            count: K >= 2.
            law: "quantile", each bin with as many of the data, or "uniform", each as wide.

        Raises:
            ConfigError: another law, or fewer than two bins.
        """
        super().__init__()
        if law not in LAWS or count < 2:
            raise ConfigError(f"{count} bins by {law!r}; needs at least 2, and {nearest(law, LAWS)}")
        self.count, self.law = count, law
        self.register_buffer("inner", torch.linspace(-1, 1, count + 1)[1:-1].repeat(numbers, 1))
        self.register_buffer("centres", torch.zeros(numbers, count))
        self.register_buffer("widths", torch.full((numbers, count), 2 / count))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, values: np.ndarray) -> None:
        """Set the borders from (N, D) numbers; bins that were set before stay.

        Raises:
            DataError: a number is not finite, or there is none.
        """
        if bool(self.fitted):
            return
        if len(values) == 0 or not np.isfinite(values).all():
            raise DataError("tokens are made of finite numbers, and some of the data's are not: drop or fix those rows")
        wide = values.astype(np.float64)
        if self.law == "quantile":
            edges = np.quantile(wide, np.linspace(0, 1, self.count + 1), axis=0).T
        else:
            edges = np.linspace(wide.min(0), wide.max(0), self.count + 1, axis=-1)
        self.inner.copy_(torch.from_numpy(edges[:, 1:-1]))
        self.centres.copy_(torch.from_numpy((edges[:, 1:] + edges[:, :-1]) / 2))
        self.widths.copy_(torch.from_numpy(np.diff(edges, axis=1)))
        self.fitted.fill_(True)

    def encode(self, values: Tensor, first: int = 0) -> Tensor:
        """(..., d) int64 tokens, in [0, K), of (..., d) numbers `first`, `first` + 1, ...; what lies outside is cut."""
        borders = self.inner[first : first + values.shape[-1]]
        return (values.unsqueeze(-1) >= borders).sum(-1)

    def decode(self, tokens: Tensor, first: int = 0) -> Tensor:
        """(..., d) middles of (..., d) tokens of numbers `first`, `first` + 1, ..."""
        place = torch.arange(first, first + tokens.shape[-1], device=tokens.device)
        return self.centres[place, tokens]

    def expected(self, probabilities: Tensor, number: int) -> Tensor:
        """(...,) mean of number `number` under (..., K) probabilities of its bins."""
        return (probabilities * self.centres[number]).sum(-1)


def drawn(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """(...,) tokens that (...,) numbers in [0, 1) draw from (..., K) weights, by inverting their sums."""
    sums = probabilities.cumsum(-1)
    return (sums <= uniform.unsqueeze(-1) * sums[..., -1:]).sum(-1).clamp(max=probabilities.shape[-1] - 1)


def uniform_of(normal: Tensor) -> Tensor:
    """Numbers in [0, 1) of standard normal ones, by their distribution function."""
    return (0.5 * (1 + torch.erf(normal / math.sqrt(2)))).clamp(0, 1 - torch.finfo(normal.dtype).eps)


def without_tail(probabilities: Tensor, share: float) -> Tensor:
    """Probabilities of which the least likely tokens, together at most `share`, are 0; the likeliest always stays.

    Args:
        probabilities: (..., K).
        share: in [0, 1).
    """
    ordered, places = probabilities.sort(stable=True, dim=-1)
    kept = torch.where(ordered.cumsum(-1) > share, ordered, 0.0)
    kept = torch.cat([kept[..., :-1], ordered[..., -1:]], -1)
    return torch.zeros_like(probabilities).scatter(-1, places, kept)
