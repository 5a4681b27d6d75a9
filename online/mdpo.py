"""MDPO: mirror descent with an exact KL penalty whose weight grows over the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, require
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics
from surefoot.core.losses.value_learning import value_loss
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import EpochsConfig


@dataclasses.dataclass(frozen=True)
class MDPOConfig(EpochsConfig):
    """Settings of on-policy MDPO; the defaults are the authors' for MuJoCo."""

    policy_steps: int = option(10, "steps of the policy on the whole block; divides the critic's steps")
    epochs: int = option(5, "passes of the critic over each block")
    minibatches: int = option(16, "minibatches of each of the critic's passes")
    value_clip: float | None = option(
        0.2, "bound of the change of a value within a block, in scaled rewards; null: none"
    )
    learning_rate: float = option(3e-4, "learning rate of both, falling to 0 over the run", range=">= 0")
    epsilon: float = option(1e-5, "number added to Adam's denominator", range=">= 0")
    max_gradient_norm: float = option(
        0.5, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        steps = self.steps_per_block
        divides = self.policy_steps >= 1 and steps % self.policy_steps == 0
        fits = f"a number that divides the critic's {steps} steps (epochs x minibatches)"
        require(divides, "mdpo", "policy_steps", self.policy_steps, fits)


class MDPO(OnPolicyAgent):
    r"""On-policy MDPO of Tomar, Shani, Efroni and Ghavamzadeh, "Mirror Descent Policy Optimization" (2020).

    .. math:: L = -E\, \rho A + \tfrac{1}{t_k} E\, KL(\pi \| \pi_k), \qquad t_k = 1 - k / K

    for block k of K; A is the standardised generalised advantage at :math:`\pi_k`, and the ratio is not clipped. The
    critic is PPO's.
    """

    name = "mdpo"
    Config = MDPOConfig
    anneals = True
    config: MDPOConfig

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, what the policy that acted gave, and the weight of the divergence."""
        columns = self.advantages(block)
        columns["advantages"] = normalise(columns["advantages"], block.get("mask"))
        columns["behaviour"] = self.behaviour(block["observations"])
        columns["behaviour_log_prob"] = self.behaviour_log_prob(block)
        columns["divergence_weight"] = 1 / (1 - block["progress"])
        return self.acted(block) | columns

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Surrogate, and the divergence from the policy that acted."""
        mask = batch.get("mask")
        log_prob, entropies, outputs = self.evaluate(batch)
        log_ratios = log_ratio(log_prob, batch["behaviour_log_prob"], mask)
        terms, _ = clip_surrogate(log_ratios, batch["advantages"], None, mask=mask)
        divergence = self.actor.divergence(outputs, self.actor.from_rows(batch["behaviour"]))
        loss = reduce(terms + batch["divergence_weight"] * divergence, mask)
        entropy = reduce(entropies, mask)
        return loss, {**ratio_metrics(log_ratios, mask=mask), "kl": reduce(divergence, mask), "entropy": entropy}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped squared error of the value."""
        mask, value = batch.get("mask"), self.value(batch["observations"])
        return reduce(value_loss(value, batch["returns"], batch["values"], self.config.value_clip, mask), mask), {}

    def updates(self) -> list[Update]:
        """The critic on every minibatch; the actor on the whole block, `policy_steps` times a block."""
        c = self.config
        adam = Adam(c.learning_rate, epsilon=c.epsilon, schedule="linear", max_gradient_norm=c.max_gradient_norm)
        return [
            Update(self.critic_loss, ("value",), adam),
            Update(self.policy_loss, ("actor",), adam, "block", every=c.steps_per_block // c.policy_steps, rows=c.rows),
        ]
