"""GCIQL: goal-conditioned implicit Q-learning."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Update
from surefoot.core.losses.extraction import ddpg_bc_loss
from surefoot.core.losses.value_learning import expectile_loss
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value
from surefoot.offline.goal_conditioned import GoalAgent, ValueGoalConfig, beside


@dataclasses.dataclass(frozen=True)
class GCIQLConfig(ValueGoalConfig):
    """Settings of GCIQL; the strength of cloning is the task's (docs/goals.md has OGBench's)."""

    expectile: float = option(0.9, "tau of the value loss", range="(0, 1)")
    cloning: float = option(
        0.3,
        "weight of cloning, alpha, in nats: .003 point mazes, .3 ant mazes, .1 humanoids, 1 cube, scene and puzzle",
        range=">= 0",
    )
    target_rate: float = option(0.005, "rate of the critics' average", range="(0, 1]")


class GCIQL(GoalAgent):
    r"""GCIQL of Park et al., "OGBench" (ICLR 2025).

    .. math::
        L_V &= E\, L_2^\tau(\min_i \hat Q_i(s, a, g) - V(s, g)) \\
        L_Q &= E \textstyle\sum_i (r + \gamma m V(s', g) - Q_i(s, a, g))^2

    and the actor ascends :math:`\min_i Q_i` and clones (`core.losses.extraction.ddpg_bc_loss`). All losses are
    differentiated at the same parameters.
    """

    name = "gciql"
    Config: ClassVar[type] = GCIQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "point": {"cloning": 0.003},
        "ant": {"cloning": 0.3},
        "humanoid": {"cloning": 0.1, "discount": 0.995},
        "manipulation": {"cloning": 1.0},
    }
    config: GCIQLConfig

    def build(self) -> None:
        """The policy, a value, a pair of critics and its average."""
        super().build()
        c, spec = self.config, self.spec
        self.value = Value(self.both, c.hidden, **self.settings_of_values())
        self.critic = Critic(self.both, spec.action_dim, c.hidden, 2, **self.settings_of_values())
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression on the target critics' minimum."""
        pairs = beside(batch["observations"], batch["value_goals"])
        value = self.value(pairs)
        advantage = ensembles.minimum(self.target_critic(beside(pairs, batch["actions"]))) - value
        return expectile_loss(advantage, self.config.expectile).mean(), {"value": value, "advantage": advantage}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of both critics."""
        goals = batch["value_goals"]
        following = self.value(beside(batch["next_observations"], goals))
        target = batch["goal_rewards"] + self.config.discount * batch["goal_masks"] * following
        q = self.critic(beside(beside(batch["observations"], goals), batch["actions"]))
        return ensembles.critic_loss(q, target.detach(), "sum"), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Ascend the critics at the mean action, clipped, and clone."""
        pairs = beside(batch["observations"], batch["actor_goals"])
        q = ensembles.minimum(self.critic(beside(pairs, self.actor.inner.act(pairs))))
        density = self.actor.log_density(pairs, batch["actions"])
        return ddpg_bc_loss(q, density, self.config.cloning), {"q_policy": q, "log_density": density}

    def updates(self) -> list[Update]:
        """Value, critics and actor at the same parameters; the average lags by an update, as in the official code."""
        adam, lagging = self.adam(), {"target_critic": ("critic", self.config.target_rate)}
        return [
            Update(self.value_loss, ("value",), adam),
            Update(self.critic_loss, ("critic",), adam, simultaneous=True, pre_step_targets=lagging),
            Update(self.actor_loss, ("actor",), adam, simultaneous=True),
        ]
