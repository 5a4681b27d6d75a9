"""HIQL: one value of goals, and a policy of two levels that is taken from it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.goal_actor import GoalActor, GoalEncoder, SubgoalActor, unit_log_density
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Update, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.nn.networks import Critic
from surefoot.offline.gcivl import implicit_value_loss
from surefoot.offline.goal_conditioned import ACTIVATION, GoalAgent, ValueGoalConfig, beside


@dataclasses.dataclass(frozen=True)
class HIQLConfig(ValueGoalConfig):
    """Settings of HIQL."""

    expectile: float = option(0.7, "tau of the value loss", range="(0, 1)")
    low_temperature: float = option(3.0, "inverse temperature of the lower level's weights", range=">= 0")
    high_temperature: float = option(
        3.0, "inverse temperature of the upper level's weights; both 10 on data of explorers", range=">= 0"
    )
    subgoal_steps: int = option(
        25, "steps to a subgoal, k; 100 in humanoid mazes, 10 on cube, scene and puzzle", range=">= 1"
    )
    latent: int = option(10, "width of the directions that the upper level names, D", range=">= 1")
    target_rate: float = option(0.005, "rate of the values' average", range="(0, 1]")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        whole = not self.goal_columns
        require(whole, name, "goal_columns", self.goal_columns, "left out: subgoals are whole observations")


class HIQL(GoalAgent):
    r"""HIQL of Park, Ghosh, Eysenbach and Levine, "HIQL: Offline Goal-Conditioned RL with Latent States as Actions"
    (NeurIPS 2023), with OGBench's settings.

    Values are :math:`V_i(s, \phi([s; g]))`, learned by GCIVL's loss, which alone trains :math:`\phi`; the average has
    last layers of its own and the newest :math:`\phi`, as the official code shares the module. The upper level
    regresses on :math:`\phi([s; s_{t+k}])`, the lower one on the action, given :math:`\phi` of the observation k steps
    ahead; each row is weighted by :math:`\min(e^{\alpha A}, 100)`, A the rise of the value on the way.
    """

    name = "hiql"
    Config: ClassVar[type] = HIQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "explore": {"low_temperature": 10.0, "high_temperature": 10.0, "actor_goals": (0.0, 0.0, 1.0)},
        "humanoid": {"subgoal_steps": 100, "discount": 0.995},
        "manipulation": {"subgoal_steps": 10},
    }
    config: HIQLConfig

    def build(self) -> None:
        """phi, a pair of values on it with their average, and a policy of two levels."""
        c, spec = self.config, self.spec
        states = spec.observation_dim
        self.phi = GoalEncoder(states, self.goal_dim, c.latent, c.hidden, ACTIVATION)
        self.value = Critic(states, c.latent, c.hidden, 2, **self.settings_of_values())
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        inner = SubgoalActor(self.both, spec.action_dim, self.goal_dim, c.latent, c.hidden, ACTIVATION)
        self.actor = GoalActor(inner, self.goal_dim)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows with goals, waypoints and subgoals."""
        return {MAIN: self.goal_rows(stores, self.config.subgoal_steps)}

    def _values(self, observations: Tensor, goals: Tensor, network: Critic | None = None) -> Tensor:
        """(2, B)."""
        return (network or self.value)(beside(observations, self.phi(beside(observations, goals))))

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both values and phi, towards the average's values."""
        goals, c = batch["value_goals"], self.config
        values = self._values(batch["observations"], goals)
        with torch.no_grad():  # phi is trained by the values alone, not by their targets
            target = self._values(batch["observations"], goals, self.target_value)
            following = self._values(batch["next_observations"], goals, self.target_value)
        loss, advantage = implicit_value_loss(
            values, target, following, batch["goal_rewards"], batch["goal_masks"], c.discount, c.expectile
        )
        return loss, {"value": values, "advantage": advantage}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both levels, each weighted by the rise of the value on its way."""
        c, now, levels = self.config, batch["observations"], self.actor.inner
        assert isinstance(levels, SubgoalActor)
        way, goals, subgoals = batch["waypoints"], batch["actor_goals"], batch["subgoals"]
        rise = (self._values(batch["next_observations"], way) - self._values(now, way)).mean(0)
        low_weight = advantage_weights(rise, c.low_temperature)
        low = unit_log_density(batch["actions"], levels.action(now, self.phi(beside(now, way))))
        rise = (self._values(subgoals, goals) - self._values(now, goals)).mean(0)
        high_weight = advantage_weights(rise, c.high_temperature)
        high = unit_log_density(self.phi(beside(now, subgoals)), levels.direction(beside(now, goals)))
        reported = {"low_weight": low_weight, "high_weight": high_weight, "low_density": low, "high_density": high}
        return -(low_weight * low).mean() - (high_weight * high).mean(), reported

    def updates(self) -> list[Update]:
        """Values and actor at the same parameters; the average lags by an update, as in the official code."""
        adam, lagging = self.adam(), {"target_value": ("value", self.config.target_rate)}
        return [
            Update(self.value_loss, ("value", "phi"), adam, pre_step_targets=lagging),
            Update(self.actor_loss, ("actor",), adam, simultaneous=True),
        ]
