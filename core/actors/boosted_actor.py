"""Choices by boosted trees, which can be read: each tree asks a few questions of the observation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation
from surefoot.core.actors.heads import Choices
from surefoot.core.nn.boosted import Trees


class BoostedActor(Choices, Actor):
    """One of A choices with probabilities softmax(F(s)), F the first A outputs of trees; the last one is the value."""

    kind = "boosted"
    discrete = True

    def __init__(self, observation_dim: int, action_dim: int, capacity: int = 4000, depth: int = 4) -> None:
        super().__init__()
        self.capacity, self.depth, self.choices = capacity, depth, action_dim
        self.trees = Trees(action_dim + 1, capacity, depth)

    @property
    def noise_dim(self) -> int:
        """A: a number for each choice."""
        return self.choices

    def of_outputs(self, outputs: Tensor) -> Tensor:
        """(..., A) log-probabilities of (..., A + 1) outputs of the trees."""
        return torch.log_softmax(outputs[..., : self.choices], -1)

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) log-probabilities."""
        return self.of_outputs(self.trees(observations))

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Log-probability and entropy; nothing needs to be kept."""
        return self.of(self(observations), actions)

    def of(self, outputs: Tensor, actions: Tensor) -> Evaluation:
        """The same of (B, A) log-probabilities."""
        return Evaluation(self.density_of(outputs, actions), self.entropy_of(outputs), outputs)
