"""MDPO: mirror descent with an exact KL penalty whose weight grows over the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, require
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics
from surefoot.core.losses.value_learning import value_loss
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import EpochsConfig


@dataclasses.dataclass(frozen=True)
class MDPOConfig(EpochsConfig):
    """Settings of on-policy MDPO; the defaults are the authors' for MuJoCo."""

    policy_steps: int = 10  # on the whole block; divides the critic's steps
    epochs: int = 5  # of the critic
    minibatches: int = 16  # of each of its epochs
    value_clip: float | None = 0.2
    learning_rate: float = 3e-4  # falls to 0 over the run, of both
    epsilon: float = 1e-5  # of Adam
    max_gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values out of range."""
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
