"""Heads of policies that choose among allowed actions alone: their observations end with a mask of the choices.

The mask is the last A of the features that a head reads, 1 where a choice is allowed and 0 where it is not. A forbidden
choice has probability 0, and its logit or value no gradient. Source: Huang and Ontañón, "A Closer Look at Invalid
Action Masking in Policy Gradient Algorithms" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import CategoricalActor

FORBIDDEN = -1e9
"""Logit or value of a forbidden choice: finite, so that 0 times it is 0, and far below any other."""


def allowed(features: Tensor, choices: int) -> Tensor:
    """(..., A) bool: the mask that (..., F) features end with."""
    return features[..., -choices:] > 0.5


def masked(scores: Tensor, features: Tensor) -> Tensor:
    """(..., A) scores, `FORBIDDEN` where the mask that (..., F) features end with does not allow the choice."""
    return torch.where(allowed(features, scores.shape[-1]), scores, torch.full_like(scores, FORBIDDEN))


class MaskedCategoricalActor(CategoricalActor):
    """One of the allowed choices, with probabilities softmax(MLP(s)) over these; actions are one-hot rows.

    Where a mask allows nothing, as after an episode's end, all choices count as equally likely.
    """

    kind = "masked_categorical"

    def logits(self, observations: Tensor) -> Tensor:
        """(B, A) scores before they are normalised."""
        return masked(super().logits(observations), observations)


class MaskedGreedyActor(GreedyActor):
    """The allowed choice of the highest value Q(s, a) = MLP(s)_a, as a one-hot row."""

    kind = "masked_greedy"

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) values of all choices, `FORBIDDEN` of those that are not allowed."""
        return masked(super().forward(observations), observations)
