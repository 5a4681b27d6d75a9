"""TRPO: natural-gradient steps within a bound on the divergence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.traits import Teams
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.value_learning import value_loss
from surefoot.online.base.natural_gradient import Surface, TrustRegionConfig, natural_step
from surefoot.online.base.on_policy_agent import OnPolicyAgent


@dataclasses.dataclass(frozen=True)
class TRPOConfig(TrustRegionConfig):
    """Settings of TRPO."""

    learning_rate: float = option(1e-3, "learning rate of the critic", range=">= 0")
    entropy_coefficient: float = option(0.0, "weight of the policy's entropy in what the step climbs", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.max_kl > 0, "trpo", "max_kl", self.max_kl, "> 0")
        require(self.damping >= 0, "trpo", "damping", self.damping, ">= 0")
        require(self.conjugate_steps >= 1, "trpo", "conjugate_steps", self.conjugate_steps, ">= 1")
        require(self.backtracks >= 1, "trpo", "backtracks", self.backtracks, ">= 1")


class TRPO(OnPolicyAgent):
    r"""TRPO of Schulman et al., "Trust Region Policy Optimization" (2015).

    .. math::
        \max_\theta E\, \rho A + c_H E\, H(\pi_\theta) \quad \text{with} \quad E\, KL(\pi_k \| \pi_\theta) \le \delta

    (the paper has :math:`c_H = 0`) by one step along :math:`F^{-1} g`, found by conjugate gradients, of the length at
    which the quadratic model of the divergence is :math:`\delta`, halved until divergence and gain are as they should
    be. The critic is fitted after.
    """

    name = "trpo"
    teams = Teams(trains=True)
    Config = TRPOConfig
    config: TRPOConfig

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and what the policy that acted gave."""
        columns = self.advantages(block)
        columns["advantages"] = normalise(columns["advantages"], block.get("mask"))
        columns["behaviour"] = self.behaviour(block["observations"])
        return self.acted(block) | columns

    def policy_step(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The actor's new parameters by their full names, from all rows of a block; the old ones where no step is good.

        Source: Schulman et al., section 6 and appendix C.
        """
        surface = Surface(self.actor, batch)
        found, metrics = natural_step(
            lambda flat: self.gain(surface, flat, batch["advantages"]), surface.divergence, surface.start, self.config
        )
        return surface.named(found), metrics

    def gain(self, surface: Surface, flat: Tensor, advantages: Tensor) -> Tensor:
        """() what the step climbs, at (P,) parameters: the surrogate and, where it counts, the entropy."""
        found, bonus = surface.surrogate(flat, advantages), self.config.entropy_coefficient
        return found if bonus == 0 else found + bonus * surface.entropy(flat)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value."""
        mask, value = batch.get("mask"), self.value(batch["observations"])
        return reduce(value_loss(value, batch["returns"], mask=mask), mask), {"value": value}

    def updates(self) -> list[Update | Rule]:
        """The actor on the whole block, then the critic."""
        return [
            Rule(self.policy_step, ("actor",), on="block"),
            Update(self.critic_loss, ("value",), Adam(self.config.learning_rate)),
        ]
