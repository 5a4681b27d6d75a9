"""Policies that correct another one: a small change is added to what a frozen head says, once a plan or each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.heads import TanhGaussianActor, UnboundedGaussianActor
from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError


class ResidualActor(Actor):
    """clip(b + scale * delta(s, b)), b = base(s): an action, or several in time order, changed by at most `scale`.

    The change is the residual head's mean, or a sample of it where the base needs no noise and some is given.
    Source: Yuan et al., "Policy Decorator: Model-Agnostic Online Refinement for Large Policy Model" (2024).
    """

    kind = "residual"

    def __init__(self, base: Actor, residual: TanhGaussianActor, action_dim: int, scale: float, base_dim: int) -> None:
        """Take the parts as they are.

        Args:
            base: gives `base_dim` numbers in [-1, 1] for an observation.
            residual: reads the observation and D numbers of the base, gives D in [-1, 1].
            action_dim: D, the first of what the base gives.
            scale: alpha, at least 0: of the change.
            base_dim: at least D.

        Raises:
            ConfigError: a value out of its range; a base that remembers, or chooses among numbers.
        """
        super().__init__()
        if not scale >= 0 or base_dim < action_dim:
            raise ConfigError(
                f"a residual has scale {scale} and corrects {action_dim} of {base_dim} numbers; the scale must be 0 or "
                "more, and the base give as many numbers or more"
            )
        if base.discrete or base.has_memory:
            what = "chooses among numbers" if base.discrete else "depends on more than the present observation"
            raise ConfigError(f"the {base.kind} head {what}, and a residual corrects actions for an observation")
        self.base, self.residual = base, residual
        self.action_dim, self.scale, self.base_dim = action_dim, scale, base_dim
        self.always_samples = base.always_samples

    @property
    def noise_dim(self) -> int:
        """The base's where it can't do without noise, else the residual's."""
        return self.base.noise_dim if self.always_samples else self.residual.noise_dim

    @property
    def base_noise_dim(self) -> int:
        """Numbers that the base is given: none where it can do without."""
        return self.base.noise_dim if self.always_samples else 0

    def based(self, observations: Tensor, noise: Tensor | None) -> Tensor:
        """(B, D) what the base says, without gradient."""
        with torch.no_grad():
            return self.base.act(observations, noise if self.always_samples else None)[..., : self.action_dim]

    def corrected(self, base: Tensor, change: Tensor) -> Tensor:
        """(..., D) the sum, within the bounds of actions."""
        return (base + self.scale * change).clamp(-1, 1)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) actions for (B, O) observations."""
        base = self.based(observations, noise)
        own = None if self.always_samples else noise
        return self.corrected(base, self.residual.act(torch.cat([observations, base], -1), own))

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the base may plan more, and the residual reads what it says."""
        if name == "base":
            return observation_dim, options["base_dim"]
        return observation_dim + action_dim, action_dim


class StepResidualActor(Actor):
    """clip(b + scale * delta(s, b)) at each step, b the base's action, by whatever the base remembers.

    A base that plans chunks plays its plan, and each of its actions is changed by what is seen at its own step.
    Source: Ankile et al., "From Imitation to Refinement: Residual RL for Precise Assembly" (ResiP, 2024).
    """

    kind = "step_residual"

    def __init__(self, base: Actor, residual: UnboundedGaussianActor, scale: float) -> None:
        """Take the parts as they are.

        Args:
            base: gives A numbers in [-1, 1]; it may remember.
            residual: reads the observation and these numbers, gives A.
            scale: at least 0: of the change.

        Raises:
            ConfigError: a scale below 0, or a base that chooses among numbers.
        """
        super().__init__()
        if not scale >= 0 or base.discrete:
            raise ConfigError(f"a residual of scale {scale} of a {base.kind} head: needs 0 or more, and no choices")
        self.base, self.residual, self.scale = base, residual, scale
        self.always_samples, self.needs_outcomes = base.always_samples, base.needs_outcomes

    @property
    def noise_dim(self) -> int:
        """The base's where it can't do without noise, else the residual's."""
        return self.base.noise_dim if self.always_samples else self.residual.noise_dim

    def begin(self, rows: int) -> Memory:
        """The base's."""
        return self.base.begin(rows)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode."""
        return self.step(observations, self.begin(observations.shape[0]), noise)[0]

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`."""
        base, memory = self.base.step(observations, memory, noise if self.always_samples else None)
        own = None if self.always_samples else noise
        change = self.residual.act(torch.cat([observations, base], -1), own)
        return (base + self.scale * change).clamp(-1, 1), memory

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """As the base takes it."""
        return self.base.executed(memory, actions)

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """As the base takes it."""
        return self.base.observe_outcome(memory, rewards, costs, ended)

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the residual reads what the base says."""
        return observation_dim + (action_dim if name == "residual" else 0), action_dim
