"""Intrinsic curiosity: what a model can't predict of features that tell which action was taken is new."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.losses.masked import reduce
from surefoot.core.nn.networks import MLP
from surefoot.online.bonuses.bonus import Bonus, Numbers

FORWARD, INVERSE = 0.2, 0.8
"""Weights of both losses, as in the paper."""


class ICM(Bonus):
    r"""Pathak, Agrawal, Efros and Darrell, "Curiosity-driven Exploration by Self-supervised Prediction" (2017).

    .. math:: r_i = \tfrac12 \lVert \hat\phi(\phi(s), a) - \phi(s') \rVert^2

    The features phi are learned by the inverse model alone, which tells the action from phi(s) and phi(s'): the
    cross-entropy of choices, or the squared error. So what no action changes is no reason for curiosity.
    """

    kind = "icm"

    def make(self, observation_dim: int, action_dim: int) -> None:
        """Features, forward and inverse model."""
        c = self.config
        self.features = MLP(observation_dim, c.bonus_features, c.bonus_hidden)
        self.forward_model = MLP(c.bonus_features + action_dim, c.bonus_features, c.bonus_hidden)
        self.inverse_model = MLP(2 * c.bonus_features, action_dim, c.bonus_hidden)

    def _both(self, batch: Batch, numbers: Numbers) -> tuple[Tensor, Tensor]:
        seen = (self.normalised(batch[name], numbers) for name in ("observations", "next_observations"))
        first, second = (self.features(rows) for rows in seen)
        return first, second

    def _surprise(self, first: Tensor, second: Tensor, actions: Tensor) -> Tensor:
        predicted = self.forward_model(torch.cat([first.detach(), actions], -1))
        return 0.5 * (predicted - second.detach()).square().sum(-1)

    def novelty(self, batch: Batch, numbers: Numbers) -> Tensor:
        """As `Bonus.novelty`."""
        return self._surprise(*self._both(batch, numbers), batch["actions"])

    def loss(self, batch: Batch, noise: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both models' losses, weighted."""
        first, second = self._both(batch, self.numbers)
        surprise = self._surprise(first, second, batch["actions"])
        reported = self.inverse_model(torch.cat([first, second], -1))
        if self.discrete:
            inverse = -(batch["actions"] * torch.log_softmax(reported, -1)).sum(-1)
        else:
            inverse = 0.5 * (reported - batch["actions"]).square().sum(-1)
        loss = reduce(FORWARD * surprise + INVERSE * inverse, batch.get("mask"))
        return loss, {"novelty": surprise, "inverse_loss": inverse}
