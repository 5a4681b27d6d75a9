"""Normalisers: fixed statistics of a dataset, and running ones of a stream; both are saved with the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalizer(nn.Module):
    """(x - mean) / scale with fixed statistics; the identity until they are set."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fixed = False  # True: statistics came with a pre-trained policy and must stay
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def fit(self, values: Tensor, epsilon: float = 1e-3) -> None:
        """Take mean and standard deviation (population, plus `epsilon`) of (N, width) values, in float64."""
        exact = values.double()
        self.mean.copy_(exact.mean(0))
        self.scale.copy_(exact.std(0, correction=0) + epsilon)

    def forward(self, values: Tensor) -> Tensor:
        """Normalised (..., width) values."""
        return (values - self.mean) / self.scale

    def inverse(self, values: Tensor) -> Tensor:
        """(..., width) values in the original units."""
        return values * self.scale + self.mean


class RunningNormalizer(Normalizer):
    """A `Normalizer` whose statistics follow a stream of batches.

    Source: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance" (parallel update).
    """

    count: Tensor
    squares: Tensor
    total_mean: Tensor

    def __init__(self, width: int, epsilon: float = 1e-8) -> None:
        super().__init__(width)
        self.epsilon = epsilon
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("total_mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Take (N, width) further values into the statistics; N = 0 changes nothing."""
        if values.shape[0] == 0:
            return
        exact = values.double()
        count, mean = exact.shape[0], exact.mean(0)
        shift = mean - self.total_mean
        total = self.count + count
        self.squares += (exact - mean).square().sum(0) + shift.square() * self.count * count / total
        self.total_mean += shift * count / total
        self.count.copy_(total)
        self.mean.copy_(self.total_mean)
        self.scale.copy_((self.squares / total + self.epsilon).sqrt())
