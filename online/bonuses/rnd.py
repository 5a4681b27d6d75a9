"""Random network distillation: what a predictor can't say of a fixed random network's output is new."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.nn.networks import MLP
from surefoot.online.bonuses.bonus import Bonus, Numbers


class RND(Bonus):
    r"""Burda, Edwards, Storkey and Klimov, "Exploration by Random Network Distillation" (2019).

    .. math:: r_i = \lVert f(s') - \bar f(s') \rVert^2

    :math:`\bar f` is drawn once and stays; f learns to equal it on a random share of the rows. The fixed network has
    one hidden layer fewer than the predictor, which has one more of the same width as its last, as in the paper.
    """

    kind = "rnd"
    noise = {"bonus_rows": Noise("uniform", 1)}  # noqa: RUF012

    def make(self, observation_dim: int, action_dim: int) -> None:
        """The fixed network's layers as buffers, and the predictor."""
        c = self.config
        sizes = [observation_dim, *c.bonus_hidden, c.bonus_features]
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            weight = nn.init.orthogonal_(torch.empty(after, before), gain=2**0.5)
            self.register_buffer(f"fixed_{number}", weight)
        self.layers = len(sizes) - 1
        hidden = (*c.bonus_hidden, c.bonus_hidden[-1])
        self.predictor = MLP(observation_dim, c.bonus_features, hidden, initialization="orthogonal")

    def fixed(self, inputs: Tensor) -> Tensor:
        """(..., K) what the fixed network gives for normalised observations."""
        value = inputs
        for number in range(self.layers):
            value = value @ getattr(self, f"fixed_{number}").T
            value = value.relu() if number < self.layers - 1 else value
        return value

    def errors(self, following: Tensor) -> Tensor:
        """(...,) squared distances of predictions at (..., O) normalised observations."""
        return (self.predictor(following) - self.fixed(following)).square().sum(-1)

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """As `Bonus.novelty`."""
        return self.errors(self.normalised(batch["next_observations"], numbers))

    def loss(self, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared distance over the share of rows that it learns from."""
        errors = self.errors(self.normalised(batch["next_observations"], self.numbers))
        rows = (noise["bonus_rows"][..., 0] < self.config.bonus_share).to(errors.dtype)
        rows = rows * batch["mask"] if "mask" in batch else rows
        return (errors * rows).sum() / rows.sum().clamp(min=1), {"novelty": errors}
