"""The head of policies whose last action is a choice, as a gripper's close, stay and open, beside continuous ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.greedy_actor import GreedyActor, highest
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.errors import ConfigError


class ChoiceActor(Actor):
    """Continuous actions of one network, and behind them the choice of the highest value of another.

    Source: the grasp critic of Luo et al., "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
    Reinforcement Learning" (HIL-SERL, 2024).
    """

    kind = "with_choice"

    def __init__(self, free: TanhGaussianActor, choice: GreedyActor, choices: int) -> None:
        """Take the parts as they are.

        Args:
            free: of A - 1 numbers.
            choice: values of K choices.
            choices: K, at least 2.

        Raises:
            ConfigError: fewer than 2 choices.
        """
        super().__init__()
        if choices < 2:
            raise ConfigError(f"choices is {choices}: a choice is among 2 or more")
        self.free, self.choice, self.choices = free, choice, choices

    @property
    def noise_dim(self) -> int:
        """A - 1: the choice is not drawn."""
        return self.free.noise_dim

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions in [-1, 1], samples of (B, A - 1) noise, the last one among K evenly spaced numbers."""
        values = self.choice(observations)
        return torch.cat([self.free.act(observations, noise), chosen_action(highest(values))], -1)

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the choice is among K."""
        return observation_dim, int(options["choices"]) if name == "choice" else action_dim - 1


def choice_of(actions: Tensor, choices: int) -> Tensor:
    """(..., K) one-hot rows of the choice that is nearest to (...,) actions in [-1, 1].

    Choice k of K stands for -1 + 2 k / (K - 1). Of three the middle one takes both borders, -0.5 and 0.5 (rounding half
    to even); of an even number a border belongs to the upper choice.
    """
    half = (choices - 1) / 2
    place = torch.round(actions * half) + half if choices % 2 else torch.floor(actions * half) + choices // 2
    numbers = torch.arange(
        choices, dtype=actions.dtype, device=actions.device
    )  # one_hot would ask a GPU for the largest
    return (place.clamp(0, choices - 1).unsqueeze(-1) == numbers).to(actions.dtype)


def chosen_action(one_hot: Tensor) -> Tensor:
    """(..., 1) the action in [-1, 1] that (..., K) one-hot rows stand for."""
    count = one_hot.shape[-1]
    values = torch.arange(count, dtype=one_hot.dtype, device=one_hot.device) * (2 / (count - 1)) - 1
    return (one_hot * values).sum(-1, keepdim=True)
