"""Policies around a flow: one that chooses the noise from which it draws its action, and one that edits the action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.errors import ConfigError


class SteeredActor(Actor):
    """flow(s, reach * w) of w in [-1, 1] that another head chooses: the mean one, or with noise a sample.

    Source: Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (DSRL, 2025).
    """

    kind = "steered"

    def __init__(self, steering: TanhGaussianActor, flow: FlowActor, reach: float) -> None:
        """Take the parts as they are.

        Args:
            steering: gives D numbers in [-1, 1].
            flow: of D numbers, without a choice among several.
            reach: b > 0, of the noise in deviations.

        Raises:
            ConfigError: a flow that chooses among several samples, or a reach that is not above 0.
        """
        super().__init__()
        if flow.samples != 1 or not reach > 0:
            raise ConfigError(f"a flow of {flow.samples} samples is steered with reach {reach}; needs 1, and above 0")
        self.steering, self.flow, self.reach = steering, flow, reach

    @property
    def noise_dim(self) -> int:
        """D, of the choice."""
        return self.steering.noise_dim

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) actions for (B, O) observations."""
        return self.decoded(observations, self.steering.act(observations, noise))

    def decoded(self, observations: Tensor, choices: Tensor) -> Tensor:
        """(B, D) actions that (B, D) choices in [-1, 1] lead to."""
        return self.flow.flow(observations, self.reach * choices)


class EditedActor(Actor):
    """clip(F(s, z) + c e(s, F(s, z))): a flow's action, changed by at most c in each number by another head's mean.

    Source: Li and Levine, "Q-learning with Adjoint Matching" (QAM-E, 2026).
    """

    kind = "edited"
    always_samples = True

    def __init__(self, flow: FlowActor, edit: TanhGaussianActor, scale: float) -> None:
        """Take the parts as they are.

        Args:
            flow: of D numbers.
            edit: of O + D numbers, gives D in [-1, 1].
            scale: c > 0.

        Raises:
            ConfigError: a scale that is not above 0.
        """
        super().__init__()
        if not scale > 0:
            raise ConfigError(f"edits are of scale {scale}; must be above 0")
        self.flow, self.edit, self.scale = flow, edit, scale

    @property
    def noise_dim(self) -> int:
        """The flow's."""
        return self.flow.noise_dim

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) of (B, O) observations and the flow's noise, which it can't do without."""
        flowed = self.flow.act(observations, noise)
        return (flowed + self.scale * self.edit.act(torch.cat([observations, flowed], -1))).clamp(-1, 1)

    def edited(self, observations: Tensor, flowed: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D) actions, not clipped, edited by (B, D) standard normal noise, and the edits' log-densities (B,)."""
        drawn, log_density = self.edit.draw(torch.cat([observations, flowed], -1), noise)
        return flowed + self.scale * drawn, log_density

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: edits read the flow's action too."""
        return observation_dim + (action_dim if name == "edit" else 0), action_dim
