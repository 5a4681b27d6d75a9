"""GCIVL: goal-conditioned implicit value learning, without action values."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Update
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.offline.goal_conditioned import GoalAgent, ValueGoalConfig, beside


@dataclasses.dataclass(frozen=True)
class GCIVLConfig(ValueGoalConfig):
    """Settings of GCIVL."""

    expectile: float = option(0.9, "tau of the value loss", range="(0, 1)")
    temperature: float = option(10.0, "alpha: multiplies the advantage in the actor's weights", range=">= 0")
    target_rate: float = option(0.005, "rate of the values' average", range="(0, 1]")


def implicit_value_loss(
    values: Tensor, target: Tensor, next_target: Tensor, rewards: Tensor, masks: Tensor, discount: float, tau: float
) -> tuple[Tensor, Tensor]:
    r"""() the loss, and the (B,) advantages that weigh it.

    :math:`A = r + \gamma m \min_i \hat V_i(s', g) - \mathrm{mean}_i \hat V_i(s, g)`, and each :math:`V_i` regresses on
    :math:`r + \gamma m \hat V_i(s', g)` with weight tau where A >= 0 and 1 - tau elsewhere: weight and error are of
    different quantities, and each value has its own target.

    Args:
        values: (2, B) of states and goals, with gradient.
        target: (2, B) of the target networks at the same.
        next_target: (2, B) of the target networks at next states.
        rewards: (B,).
        masks: (B,) 0 where the goal is met.
        discount: gamma.
        tau: expectile in (0, 1).
    """
    advantage = rewards + discount * masks * ensembles.minimum(next_target) - target.mean(0)
    weight = tau + (1 - 2 * tau) * (advantage < 0).to(advantage.dtype)
    error = rewards + discount * masks * next_target - values
    return (weight * error.square()).mean(-1).sum(), advantage


class GCIVL(GoalAgent):
    r"""GCIVL of Park et al., "OGBench" (ICLR 2025): IQL's expectile on values of states and goals alone.

    The value loss is `implicit_value_loss`; the actor clones with weights
    :math:`\min(e^{\alpha (\bar V(s', g) - \bar V(s, g))}, 100)`, the bar a mean over the pair, neither reward nor
    discount in it. All losses are differentiated at the same parameters.
    """

    name = "gcivl"
    Config: ClassVar[type] = GCIVLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    config: GCIVLConfig

    def build(self) -> None:
        """The policy, a pair of values and its average."""
        super().build()
        self.value = Critic(
            self.spec.observation_dim, self.goal_dim, self.config.hidden, 2, **self.settings_of_values()
        )
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both values, towards their own targets."""
        goals = batch["value_goals"]
        values = self.value(beside(batch["observations"], goals))
        target = self.target_value(beside(batch["observations"], goals))
        following = self.target_value(beside(batch["next_observations"], goals))
        c = self.config
        loss, advantage = implicit_value_loss(
            values, target, following, batch["goal_rewards"], batch["goal_masks"], c.discount, c.expectile
        )
        return loss, {"value": values, "advantage": advantage}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cloning, weighted by how much nearer the goal the step came."""
        goals = batch["actor_goals"]
        now, following = (self.value(beside(batch[key], goals)) for key in ("observations", "next_observations"))
        weight = advantage_weights((following - now).mean(0), self.config.temperature)
        density = self.actor.log_density(beside(batch["observations"], goals), batch["actions"])
        return -(weight * density).mean(), {"weight": weight}

    def updates(self) -> list[Update]:
        """Values and actor at the same parameters; the average lags by an update, as in the official code."""
        adam, lagging = self.adam(), {"target_value": ("value", self.config.target_rate)}
        return [
            Update(self.value_loss, ("value",), adam, pre_step_targets=lagging),
            Update(self.actor_loss, ("actor",), adam, simultaneous=True),
        ]
