"""The head of policies that take the choice of the highest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, MLPActor
from surefoot.core.losses.value_learning import huber_loss
from surefoot.core.nn.networks import MLP, LayerNorm


class ChoiceValues(Actor):
    """Base of heads that value each choice and take the best, as a one-hot row; what they learn is their own.

    A value is made of N numbers of each choice, `estimates`: the value itself (N = 1), or a distribution of the return.
    """

    discrete = True

    @property
    def noise_dim(self) -> int:
        """0: there is nothing to draw."""
        return 0

    @property
    def weight_noise_dim(self) -> int:
        """Standard normal numbers that `estimates` draws its weights with; 0 where these are fixed."""
        return 0

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) values of all choices."""
        return self.values(self.estimates(observations), observations)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) one-hot choices, the first of equal ones; `noise` has no effect."""
        return highest(self(observations))

    def estimates(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A, N) numbers for (B, O) observations, and (1 or B, `weight_noise_dim`) noise where there is some."""
        raise TypeError(f"{type(self).__name__} must define estimates")

    def values(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """(B, A) values that (B, A, N) outputs stand for, at these observations, which may forbid some choices."""
        raise TypeError(f"{type(self).__name__} must define values")

    def target(self, outputs: Tensor, rewards: Tensor, reach: Tensor) -> Tensor:
        """(B, N) what outputs should have been, by (B, N) those of the choice that follows.

        Args:
            outputs: of the target network.
            rewards: (B,) what was earned up to there.
            reach: (B,) what discounts it, 0 where the task ended.
        """
        return rewards.unsqueeze(-1) + reach.unsqueeze(-1) * outputs

    def losses(self, outputs: Tensor, target: Tensor, error: str) -> tuple[Tensor, Tensor]:
        """(B,) losses of (B, N) outputs of the choice that was made, and (B,) the sizes of their errors.

        Args:
            outputs: of the network that learns.
            target: (B, N) as `target` gives it.
            error: "huber" or "squared", of heads whose outputs are the value itself.
        """
        difference = (outputs - target).squeeze(-1)
        loss = huber_loss(difference, 1.0) if error == "huber" else 0.5 * difference.square()
        return loss, difference.abs()

    def plain_network(self) -> MLP | None:
        """A network whose highest output is the same choice; None where there is none, as of a softmax over atoms."""
        return None


class GreedyActor(ChoiceValues, MLPActor):
    """The choice of the highest value Q(s, a) = MLP(s)_a, as a one-hot row (DQN, stream Q)."""

    kind = "greedy"

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

    def estimates(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A, 1) the values."""
        return self(observations).unsqueeze(-1)

    def values(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """(B, A) the outputs themselves."""
        return outputs.squeeze(-1)

    def plain_network(self) -> MLP | None:
        """Its own."""
        return self.mlp


def highest(scores: Tensor) -> Tensor:
    """(..., A) one-hot rows of the highest of (..., A) scores, the first of equal ones."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def of_choice(outputs: Tensor, choices: Tensor) -> Tensor:
    """(B, N) those of (B, A, N) outputs that belong to (B, A) one-hot choices."""
    return (outputs * choices.unsqueeze(-1)).sum(-2)
