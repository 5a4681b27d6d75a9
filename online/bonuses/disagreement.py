"""Disagreement: where models of the next observation say different things, there is something to learn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.losses.masked import reduce
from surefoot.core.nn.networks import MLP
from surefoot.online.bonuses.bonus import Bonus, Numbers


class Disagreement(Bonus):
    r"""Pathak, Gandhi and Gupta, "Self-Supervised Exploration via Disagreement" (2019), on observations.

    .. math:: r_i = \tfrac1O \textstyle\sum_o \operatorname{Var}_k \hat s'_k(s, a)_o

    with the biased variance over K models. Noise that no model can predict is no reason for it: all learn its mean.
    """

    kind = "disagreement"

    def make(self, observation_dim: int, action_dim: int) -> None:
        """The models, which start apart."""
        c = self.config
        inputs = observation_dim + action_dim
        self.models = MLP(inputs, observation_dim, c.bonus_hidden, members=c.bonus_members)

    def predictions(self, batch: Batch, numbers: Numbers) -> Tensor:
        """(K, B, O) normalised next observations of (B, ...) rows."""
        found: Tensor = self.models(torch.cat([self.normalised(batch["observations"], numbers), batch["actions"]], -1))
        return found

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """As `Bonus.novelty`."""
        shape = batch["actions"].shape[:-1]
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ("observations", "actions")}
        return spread(self.predictions(flat, numbers)).reshape(shape)

    def loss(self, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Sum over the models of their mean squared errors."""
        predictions = self.predictions(batch, self.numbers)
        errors = (predictions - self.normalised(batch["next_observations"], self.numbers)).square().mean(-1).sum(0)
        return reduce(errors, batch.get("mask")), {"novelty": spread(predictions)}


def spread(predictions: Tensor) -> Tensor:
    """(B,) mean over the last dimension of the biased variance over the first of (K, B, O).

    >>> spread(torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]], [[2.0, 5.0]]])).round(decimals=4)
    tensor([1.3333])
    """
    return predictions.var(0, correction=0).mean(-1)
