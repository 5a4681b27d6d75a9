"""What the goal-conditioned algorithms share: options, rows with goals, the head that is asked for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.goal_actor import GoalActor, UnitGaussianActor
from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Adam, Agent, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.data.dataset import Dataset
from surefoot.data.goals import GoalRows, episodes_of, goal_shares
from surefoot.data.prepare import NORMALIZATIONS, prepare

ACTIVATION = "gelu_tanh"
"""As seohongpark/ogbench has it."""


@dataclasses.dataclass(frozen=True)
class GoalConfig(Options):
    """Options of all goal-conditioned algorithms; the defaults are OGBench's."""

    discount: float = option(
        0.99,
        "discount factor of values, and of how far ahead goals lie; .995 in giant and humanoid mazes",
        range="(0, 1)",
    )
    learning_rate: float = option(3e-4, "learning rate", range="> 0")
    hidden: tuple[int, ...] = option((512, 512, 512), "widths of the hidden layers")
    goal_columns: tuple[int, ...] = option(
        (), "numbers of the observation that are the goal; none: the whole observation"
    )
    actor_goals: tuple[float, ...] = option(
        (0.0, 1.0, 0.0), "shares of own, later and any observations as the actor's goals"
    )
    normalization: str = option("none", "normalization of observations and goals", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(
            len(set(self.goal_columns)) == len(self.goal_columns) and min(self.goal_columns, default=0) >= 0,
            name,
            "goal_columns",
            self.goal_columns,
            "different numbers >= 0",
        )
        goal_shares(name, self.actor_goals, False, "actor_goals")


@dataclasses.dataclass(frozen=True)
class ValueGoalConfig(GoalConfig):
    """Options of those that learn values of goals."""

    value_goals: tuple[float, ...] = option((0.2, 0.5, 0.3), "shares of own, later (geometric) and any observations")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        goal_shares(algorithm_of(self), self.value_goals, True, "value_goals")


class GoalAgent(Agent):
    """Base of agents that are given a goal: an observation, or some of its numbers, that is to be reached.

    Rewards of the data are not read, nor are terminations: a row's reward is -1 until it is its goal, and then 0.
    Observations and goals go into networks side by side.
    """

    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "next_observations")
    config: GoalConfig
    actor: GoalActor
    negative = True
    """Whether rewards are -1 until the goal; else 0, then 1."""

    @property
    def goal_dim(self) -> int:
        """G: numbers of a goal."""
        return len(self.config.goal_columns) or self.spec.observation_dim

    @property
    def both(self) -> int:
        """O + G."""
        return self.spec.observation_dim + self.goal_dim

    @property
    def value_goals(self) -> tuple[float, ...]:
        """Shares of goals of values."""
        return getattr(self.config, "value_goals", (0.0, 1.0, 0.0))

    def build(self) -> None:
        """The head of the policy; a subclass adds its values."""
        for column in self.config.goal_columns:
            require(
                column < self.spec.observation_dim,
                self.name,
                "goal_columns",
                self.config.goal_columns,
                f"below {self.spec.observation_dim}, the width of observations",
            )
        inner = UnitGaussianActor(self.both, self.spec.action_dim, self.config.hidden, ACTIVATION)
        self.actor = GoalActor(inner, self.goal_dim)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations; goals are normalised as the numbers that they are."""
        ready = prepare(self, dataset, normalization=self.config.normalization)
        columns = list(self.config.goal_columns) or list(range(self.spec.observation_dim))
        for name in ("mean", "scale"):
            getattr(self.actor.normalizer, name).copy_(getattr(self.normalizer, name)[columns])
        return ready

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows with goals."""
        return {MAIN: self.goal_rows(stores)}

    def goal_rows(self, stores: Stores, steps: int | None = None) -> GoalRows:
        """Rows with goals by this agent's shares; `steps` as of `GoalRows`."""
        c = self.config
        return GoalRows(
            stores.data,
            episodes_of(stores),
            value=goal_shares(self.name, self.value_goals, True, "value_goals"),
            actor=goal_shares(self.name, c.actor_goals, False, "actor_goals"),
            discount=c.discount,
            columns=c.goal_columns,
            negative=self.negative,
            steps=steps,
        )

    def adam(self) -> Adam:
        """The one optimiser's settings."""
        return Adam(self.config.learning_rate)

    def settings_of_values(self) -> dict[str, Any]:
        """How networks of values are built: Glorot's uniform rule, layer norm behind each activation."""
        return {"initialization": "xavier", "layer_norm": "after", "activation": ACTIVATION}


def beside(observations: Tensor, goals: Tensor) -> Tensor:
    """(..., O + G) observations and goals side by side."""
    return torch.cat([observations, goals], -1)
