"""Normalisers with fixed statistics, which are saved with the policy; and the running moments of streams."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.nn.native import native

EPSILON = 1e-8
"""Added to running variances."""
FIT_ROWS = 262_144
"""Rows whose statistics are computed at once."""


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

    def fit(self, *values: Tensor, epsilon: float = 1e-3) -> None:
        """Take mean and standard deviation (population, plus `epsilon`) of the rows of all (N, width) values."""
        self.take(*moments(*values), epsilon)

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


def moments(*values: Tensor) -> tuple[Tensor, Tensor]:
    """(width,) mean and standard deviation (population), in float64, of the rows of all (N, width) values.

    At most `FIT_ROWS` rows are taken at once, so that no copy of all rows is made.
    """
    if sum(map(len, values)) <= FIT_ROWS:
        exact = torch.cat(values).double()
        return exact.mean(0), exact.std(0, correction=0)
    found = RunningMoments(1, values[0].shape[1])
    for some in values:
        for rows in some.split(FIT_ROWS):
            found.update(rows.unsqueeze(0))
    return found.mean[0], (found.squares[0] / found.count[0]).sqrt()


def merge(
    count: Tensor, mean: Tensor, squares: Tensor, more: Tensor | int, more_mean: Tensor, more_squares: Tensor
) -> None:
    """Take further values into a count, a mean and a sum of squared deviations, in place.

    Source: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance" (parallel update).
    """
    total = (count + more).clamp(min=1)
    shift = more_mean - mean
    squares += more_squares + shift.square() * count * more / total
    mean += shift * more / total
    count += more


class RunningMoments:
    """Count, mean and sum of squared deviations of S streams at once, in float64, merged batch by batch (`merge`)."""

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
        merge(self.count, self.mean, self.squares, count, mean, squares)

    def _update_by_one(self, values: Tensor) -> None:
        """The same for one value of each stream, to the same bits: numpy's calls on few numbers are cheaper."""
        count, mean, squares = self.numbers()
        total = count + 1
        shift = values[:, 0].numpy() - mean
        squares += shift * shift * count / total
        mean += shift / total
        count[:] = total

    def by_one(self, mean: Tensor, scale: Tensor, limit: float) -> native.RunningNormalizer | None:
        """`update` by one value of each stream, `scale` and `normalised` in one native call; None where there is none.

        Args:
            mean: (S, width) float32 that is to follow the mean.
            scale: likewise.
            limit: of `normalised`.
        """
        moments = (self.count, self.mean, self.squares)
        if not native.RunningNormalizer.fits(moments, (mean, scale)):
            return None
        return native.RunningNormalizer(moments, (mean, scale), EPSILON, limit)

    def numbers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count, mean and squares as numpy sees them, on a CPU: not copied."""
        return self.count.numpy(), self.mean.numpy(), self.squares.numpy()

    def scale(self, epsilon: float = EPSILON) -> Tensor:
        """(S, width) standard deviations, sqrt(variance + epsilon); 1 for a stream without values."""
        if self.count.device.type == "cpu":  # numpy's calls on few numbers are cheaper; its roots are rounded otherwise
            count, _, squares = self.numbers()
            variance = torch.from_numpy(squares / np.maximum(count, 1) + epsilon)
            if count.all():
                return variance.sqrt()
        else:
            variance = self.squares / self.count.clamp(min=1) + epsilon
        return torch.where(self.count > 0, variance.sqrt(), 1.0)

    def state(self, position: int) -> dict[str, Tensor]:
        """The numbers of one stream, copied."""
        return {name: getattr(self, name)[position].clone() for name in ("count", "mean", "squares")}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        for name in ("count", "mean", "squares"):
            getattr(self, name)[position].copy_(state[name])
