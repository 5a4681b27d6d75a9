"""`Bonus`: what every exploration bonus is, and how its numbers are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.online.bonuses.config import BonusConfig

LIMIT = 5.0
"""Bound of observations once they are normalised."""
MOST_COUNTED = 10_000_000
"""Rows that running moments count at most; later ones are then an exponential average. float32 counts them exactly."""
EPSILON = 1e-8
Numbers = Mapping[str, Tensor]
"""Name -> running moments and the like: buffers of a bonus, or what they are about to be."""


class Bonus(nn.Module):
    r"""A reward for what is new, :math:`r_i / \sigma`, which an agent learns from beside the task's.

    Observations are normalised by running moments and held within +-5. sigma is the running deviation of r_i, or, of
    rows in the order of time, of its sums :math:`c \leftarrow \gamma_i c + r_i` in each environment, as in random
    network distillation. A subclass defines `novelty`, and `loss` where it has networks to train.
    """

    kind: ClassVar[str]
    scaled: ClassVar[bool] = True
    """Whether r_i is divided by sigma, and observations are normalised."""
    learns: ClassVar[bool] = True
    """Whether it has networks to train."""
    by_choice: ClassVar[bool] = False
    """Whether it changes which choice is made while training, and no reward."""
    noise: ClassVar[Mapping[str, Noise]] = {}
    """Random numbers that `loss` reads of each row."""

    count: Tensor
    mean: Tensor
    variance: Tensor
    gain_count: Tensor
    gain_mean: Tensor
    gain_variance: Tensor
    filtered: Tensor

    def __init__(self, observation_dim: int, action_dim: int, config: BonusConfig, discrete: bool) -> None:
        """Build the networks from torch's global generator.

        Args:
            observation_dim: O.
            action_dim: A.
            config: of the agent; it has `num_envs` too.
            discrete: whether actions are one-hot choices.
        """
        super().__init__()
        self.config, self.discrete = config, discrete
        self.discount: float = vars(config).get("bonus_discount", 0.99)
        rows = int(vars(config)["num_envs"])
        zeros: dict[str, Any] = {"count": (), "mean": (observation_dim,), "gain_count": (), "gain_mean": (1,)}
        for name, shape in (zeros | {"filtered": (rows,)}).items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("variance", torch.ones(observation_dim))
        self.register_buffer("gain_variance", torch.ones(1))
        self.make(observation_dim, action_dim)

    def make(self, observation_dim: int, action_dim: int) -> None:
        """Make the networks as attributes; here none."""

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """(...,) r_i >= 0 of (..., O) rows.

        Args:
            batch: observations, actions, next_observations.
            numbers: the moments to normalise by.
        """
        raise TypeError(f"{type(self).__name__} must define novelty")

    def of_choices(self, observations: Tensor) -> Tensor:
        """(B, A) what is added to the values of all choices, of a bonus `by_choice`."""
        raise TypeError(f"{type(self).__name__} must define of_choices")

    def loss(self, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """() loss of its networks on (B, ...) rows, and metrics."""
        raise TypeError(f"{type(self).__name__} must define loss")

    @property
    def numbers(self) -> dict[str, Tensor]:
        """Its buffers, by name."""
        return dict(self.named_buffers())

    def normalised(self, observations: Tensor, numbers: Numbers) -> Tensor:
        """(..., O) observations less their running mean, by their running deviation, within +-5."""
        scaled = (observations - numbers["mean"]) / (numbers["variance"] + EPSILON).sqrt()
        return scaled.clamp(-LIMIT, LIMIT)

    def measured(self, batch: Batch) -> dict[str, Tensor]:
        """The moments once these rows are taken in: name -> new value of the buffer.

        Args:
            batch: rows (B, ...), or (T, N, ...) in the order of time; `mask` 0 where a row is no transition.
        """
        if not self.scaled:
            return {}
        numbers, following = self.numbers, batch["next_observations"]
        weight = batch["mask"] if "mask" in batch else torch.ones_like(batch["rewards"])
        own = (numbers["count"], numbers["mean"], numbers["variance"])
        numbers |= dict(zip(("count", "mean", "variance"), merged(*own, following, weight), strict=True))
        gains, found = self.novelty(batch, numbers) * weight, {}
        if gains.dim() > 1:
            sums, total = [], numbers["filtered"][: gains.shape[1]]
            for earned in gains.unbind(0):
                total = self.discount * total + earned
                sums.append(total)
            gains, found = torch.stack(sums), {"filtered": total}
        own = (numbers["gain_count"], numbers["gain_mean"], numbers["gain_variance"])
        moments = merged(*own, gains.unsqueeze(-1), weight)
        names = ("count", "mean", "variance")
        found |= dict(zip((f"gain_{name}" for name in names), moments, strict=True))
        return found | {name: numbers[name] for name in names}

    def reward(self, batch: Batch, numbers: Numbers | None = None) -> Tensor:
        """(...,) the scaled bonus of (..., O) rows, by its own moments, or by those that `measured` gave."""
        numbers = self.numbers if numbers is None else {**self.numbers, **numbers}
        found = self.novelty(batch, numbers)
        return found / (numbers["gain_variance"] + EPSILON).sqrt() if self.scaled else found


def merged(count: Tensor, mean: Tensor, variance: Tensor, values: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Count, mean and (biased) variance once more rows are taken in.

    Args:
        count: () rows so far.
        mean: (W,) of them.
        variance: (W,).
        values: (..., W) of the new rows.
        weight: (...,) 0 for rows that do not count, else 1.

    Source: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance" (parallel update).
    """
    rows, weights = values.reshape(-1, values.shape[-1]), weight.reshape(-1, 1)
    more = weights.sum()
    own = (rows * weights).sum(0) / more.clamp(min=1)
    spread = ((rows - own).square() * weights).sum(0)
    total = (count + more).clamp(min=1)
    shift = own - mean
    squares = variance * count + spread + shift.square() * count * more / total
    return (count + more).clamp(max=MOST_COUNTED), mean + shift * more / total, squares / total
