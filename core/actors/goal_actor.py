"""Policy heads that are asked for a goal: around any head, a normal of deviation 1, and one of two levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor, MLPActor
from surefoot.core.actors.memory import GOAL, Memory
from surefoot.core.actors.memory_actors import WrappingActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.distributions import gaussian_log_density
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.normalizer import Normalizer

SMALL_OUTPUTS = 0.1
"""Gain of last layers that begin near 0: Glorot's uniform rule at a hundredth of its variance (OGBench)."""


def with_small_outputs(mlp: MLP) -> MLP:
    """The network, its last layer drawn anew near 0."""
    nn.init.xavier_uniform_(mlp.weights[-1], gain=SMALL_OUTPUTS)
    nn.init.zeros_(mlp.biases[-1])
    return mlp


class UnitGaussianActor(MLPActor):
    """Normal with mean MLP(s), not squashed, and deviation 1; actions are clipped to [-1, 1] when acting."""

    kind = "unit_gaussian"

    def __init__(
        self, observation_dim: int, action_dim: int, hidden: Sequence[int] = (512, 512, 512), activation: str = "relu"
    ) -> None:
        super().__init__()
        own = {"initialization": "xavier", "activation": activation}
        self.mlp = with_small_outputs(MLP(observation_dim, action_dim, hidden, **own))  # type: ignore[arg-type]

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) means."""
        return self.mlp(observations)

    def log_density(self, observations: Tensor, actions: Tensor, sample_aux: Any = None) -> Tensor:
        """(B,) log-density of (B, A) actions, in nats."""
        return unit_log_density(actions, self(observations))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions, or samples from (B, A) standard normal `noise`; clipped to [-1, 1]."""
        mean = self(observations)
        return (mean if noise is None else mean + noise).clamp(-1, 1)


def unit_log_density(values: Tensor, mean: Tensor) -> Tensor:
    """(B,) log-density in nats of (B, A) values under a normal of deviation 1."""
    return gaussian_log_density(values, mean, torch.zeros_like(mean))


class GoalEncoder(nn.Module):
    """phi(s, g): a direction in R^D, of length sqrt(D), that says where the goal lies as seen from the state."""

    def __init__(
        self, observation_dim: int, goal_dim: int, width: int, hidden: Sequence[int], activation: str = "gelu_tanh"
    ) -> None:
        super().__init__()
        own = {"initialization": "xavier", "activation": activation, "layer_norm": "after"}
        self.mlp = MLP(observation_dim + goal_dim, width, hidden, **own)  # type: ignore[arg-type]

    def forward(self, states_goals: Tensor) -> Tensor:
        """(..., D) for (..., O + G) states and goals side by side."""
        return on_sphere(self.mlp(states_goals))


def on_sphere(values: Tensor) -> Tensor:
    """(..., D) values scaled to length sqrt(D)."""
    return values / values.norm(dim=-1, keepdim=True).clamp(min=1e-12) * math.sqrt(values.shape[-1])


class SubgoalActor(Actor):
    """Two levels: one names a direction phi for a state and a goal, the other the action for a state and a phi.

    Both are normals of deviation 1. It reads states and goals side by side; the upper level is asked at each step.
    Source: Park, Ghosh, Eysenbach and Levine, "HIQL" (NeurIPS 2023).
    """

    kind = "subgoal"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        goal_dim: int,
        width: int = 10,
        hidden: Sequence[int] = (512, 512, 512),
        activation: str = "gelu_tanh",
    ) -> None:
        """Read `observation_dim` numbers, of which the last `goal_dim` are the goal."""
        super().__init__()
        self.goal_dim, self.width, self.hidden, self.activation = goal_dim, width, tuple(hidden), activation
        states = observation_dim - goal_dim
        own = {"initialization": "xavier", "activation": activation}
        self.high = with_small_outputs(MLP(observation_dim, width, hidden, **own))  # type: ignore[arg-type]
        self.low = with_small_outputs(MLP(states + width, action_dim, hidden, **own))  # type: ignore[arg-type]

    @property
    def noise_dim(self) -> int:
        """A: a number for each dimension of the action; the upper level gives its mean."""
        return int(self.low.biases[-1].shape[-1])

    def direction(self, states_goals: Tensor) -> Tensor:
        """(B, D) mean of the upper level, not scaled."""
        return self.high(states_goals)

    def action(self, states: Tensor, direction: Tensor) -> Tensor:
        """(B, A) mean of the lower level for (B, D) directions."""
        return self.low(torch.cat([states, direction], -1))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions on the way to the mean direction, or samples; clipped to [-1, 1]."""
        states = observations[..., : observations.shape[-1] - self.goal_dim]
        mean = self.action(states, on_sphere(self.direction(observations)))
        return (mean if noise is None else mean + noise).clamp(-1, 1)


class GoalActor(WrappingActor):
    """A head that reads the normalised observation and, beside it, the normalised goal that its episode began with.

    The goal is in the memory, in the environment's units: `Policy.reset(goal=...)` and whoever runs episodes write it
    there. Where none is given, `goal` is taken, if one was set by `fix`; else the goal is NaN, and acting is refused.
    """

    kind = "goal"
    order = ("goal_dim", "inner")
    goal_dim: int
    goal: Tensor
    """(G,) the goal of episodes that are given none, in the environment's units."""
    fixed: Tensor
    """() 1 where `goal` counts."""

    def __init__(self, inner: Actor, goal_dim: int) -> None:
        """Wrap a head of O + G inputs, goals behind observations."""
        if goal_dim < 1:
            raise ConfigError(f"goal_dim is {goal_dim}; a goal has at least one number")
        super().__init__(inner, goal_dim=goal_dim)
        self.normalizer = Normalizer(goal_dim)
        self.register_buffer("goal", torch.zeros(goal_dim))
        self.register_buffer("fixed", torch.zeros(()))

    def _begin(self, rows: int) -> Memory:
        if "goal" not in self._buffers:  # while it is made
            return {GOAL: self._zeros(rows, self.goal_dim)}
        goal = torch.where(self.fixed > 0, self.goal, torch.full_like(self.goal, math.nan))
        return {GOAL: goal.expand(rows, -1).clone()}

    def fix(self, goal: Tensor) -> None:
        """Ask for one (G,) goal, in the environment's units, wherever none is given."""
        self.goal.copy_(goal)
        self.fixed.fill_(1)

    def forward(self, observations: Tensor, goals: Tensor) -> Any:
        """What the inner head gives for normalised observations (B, O) and goals (B, G)."""
        return self.inner(torch.cat([observations, goals], -1))

    def log_density(self, observations: Tensor, actions: Tensor, sample_aux: Any = None) -> Tensor:
        """(B,) as the inner head's, for (B, O + G) normalised observations with their goals."""
        return self.inner.log_density(observations, actions, sample_aux)

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the goal stays."""
        goals = self.normalizer(memory[GOAL])
        return self.inner.step(torch.cat([observations, goals], -1), memory, noise)

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the inner head reads the goal too."""
        return observation_dim + options["goal_dim"], action_dim
