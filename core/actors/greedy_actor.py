"""The head of policies that take the choice of the highest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import MLPActor
from surefoot.core.nn.networks import MLP, LayerNorm


class GreedyActor(MLPActor):
    """The choice of the highest value Q(s, a) = MLP(s)_a, as a one-hot row (DQN, stream Q)."""

    kind = "greedy"
    discrete = True

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        activation: str = "relu",
        layer_norm: LayerNorm = False,
    ) -> None:
        super().__init__()
        own: dict[str, Any] = {"initialization": initialization, "activation": activation, "layer_norm": layer_norm}
        self.mlp = MLP(observation_dim, action_dim, hidden, **own)

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) values of all choices."""
        return self.mlp(observations)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) one-hot choices, the first of equal ones; `noise` has no effect."""
        return highest(self(observations))

    @property
    def noise_dim(self) -> int:
        """0: there is nothing to draw."""
        return 0


def highest(scores: Tensor) -> Tensor:
    """(..., A) one-hot rows of the highest of (..., A) scores, the first of equal ones."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
