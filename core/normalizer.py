"""Normalisers: fixed statistics of a dataset, and running ones of a stream; both are saved with the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn


def normalised(values: Tensor, mean: Tensor, scale: Tensor, limit: float = math.inf) -> Tensor:
    """(values - mean) / scale, clipped to [-limit, limit]."""
    found = (values - mean) / scale
    return found if limit == math.inf else found.clamp(-limit, limit)


class Normalizer(nn.Module):
    """(x - mean) / scale with fixed statistics, clipped to [-limit, limit]; the identity until they are set."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, limit: float = math.inf) -> None:
        super().__init__()
        self.limit = limit
        self.fixed = False  # True: statistics came with a pre-trained policy and must stay
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def fit(self, values: Tensor, epsilon: float = 1e-3) -> None:
        """Take mean and standard deviation (population, plus `epsilon`) of (N, width) values, in float64."""
        exact = values.double()
        self.take(exact.mean(0), exact.std(0, correction=0), epsilon)

    def take(self, mean: Tensor, deviation: Tensor, epsilon: float = 1e-3) -> None:
        """Take a (width,) mean and standard deviation in float64, plus `epsilon`."""
        self.mean.copy_(mean)
        self.scale.copy_(deviation + epsilon)

    def forward(self, values: Tensor) -> Tensor:
        """Normalised (..., width) values."""
        return normalised(values, self.mean, self.scale, self.limit)

    def inverse(self, values: Tensor) -> Tensor:
        """(..., width) values in the original units; those that were clipped don't come back."""
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


class RunningMoments:
    """Count, mean and sum of squared deviations of S streams at once, in float64, merged batch by batch.

    Source: as `RunningNormalizer`.
    """

    def __init__(self, streams: int, width: int, device: str | torch.device = "cpu") -> None:
        self.count = torch.zeros(streams, 1, dtype=torch.float64, device=device)
        self.mean = torch.zeros(streams, width, dtype=torch.float64, device=device)
        self.squares = torch.zeros(streams, width, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self, values: Tensor, valid: Tensor | None = None) -> None:
        """Take (S, N, width) further values in; only rows where (S, N) `valid` is True, if it is given."""
        if valid is None and values.shape[1] == 1 and values.device.type == "cpu":
            self._update_by_one(values)
            return
        exact = values.double()
        weight = torch.ones_like(exact[..., :1]) if valid is None else valid.double().unsqueeze(-1)
        count = weight.sum(1)
        mean = (exact * weight).sum(1) / count.clamp(min=1)
        squares = ((exact - mean.unsqueeze(1)).square() * weight).sum(1)
        total = (self.count + count).clamp(min=1)
        shift = mean - self.mean
        self.squares += squares + shift.square() * self.count * count / total
        self.mean += shift * count / total
        self.count += count

    def _update_by_one(self, values: Tensor) -> None:
        """The same for one value of each stream, to the same bits: numpy's calls on few numbers are cheaper."""
        count, mean, squares = self.count.numpy(), self.mean.numpy(), self.squares.numpy()
        total = count + 1
        shift = values[:, 0].numpy() - mean
        squares += shift * shift * count / total
        mean += shift / total
        count[:] = total

    def scale(self, epsilon: float = 1e-8) -> Tensor:
        """(S, width) standard deviations, sqrt(variance + epsilon); 1 for a stream without values."""
        if self.count.device.type == "cpu":  # numpy's calls on few numbers are cheaper; its roots are rounded otherwise
            variance = torch.from_numpy(self.squares.numpy() / np.maximum(self.count.numpy(), 1) + epsilon)
            if self.count.numpy().all():
                return variance.sqrt()
        else:
            variance = self.squares / self.count.clamp(min=1) + epsilon
        return torch.where(self.count > 0, variance.sqrt(), 1.0)

    def state(self, position: int) -> dict[str, Tensor]:
        """The numbers of one stream, copied."""
        return {name: getattr(self, name)[position].clone() for name in ("count", "mean", "squares")}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for name in ("count", "mean", "squares"):
            getattr(self, name)[position].copy_(state[name])
