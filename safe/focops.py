"""FOCOPS: first-order steps towards the optimal policy in a trust region."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, require
from surefoot.core.losses.masked import reduce
from surefoot.core.losses.policy_gradient import log_ratio, ratio, ratio_metrics
from surefoot.online.ppo import PPO
from surefoot.safe.constraint.constrained import Penalised
from surefoot.safe.ppo_lag import PRESETS, PPOLagConfig


@dataclasses.dataclass(frozen=True)
class FOCOPSConfig(PPOLagConfig):
    """Settings of FOCOPS."""

    trust_region: float = option(
        0.02, "eta: samples further than this divergence from the old policy are left out", range="> 0"
    )
    focops_temperature: float = option(1.5, "what the advantage is divided by", range="> 0")
    largest_multiplier: float | None = 2.0

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        clips = "left alone: focops clips no ratio, trust_region leaves samples out"
        require(self.clip == PPOLagConfig.clip, "focops", "clip", self.clip, clips)


class FOCOPS(Penalised, PPO):
    r"""FOCOPS of Zhang, Vuong and Ross, "First Order Constrained Optimization in Policy Space" (2020).

    .. math:: L_\pi = E\, 1[KL_i \le \eta]\, (KL(\pi \| \pi_k)_i - \tfrac{1}{1.5} \rho_i A_i), \qquad
        A = (A_r - \lambda A_c) / (1 + \lambda)

    Every term belongs to its own sample. The reference code subtracts a (B,) from a (B, 1) and so averages over B x B
    pairs: each sample's divergence is set against the mean of all others' advantages, and which samples the trust
    region leaves out no longer depends on their own advantage (PKU-Alignment/Safe-Policy-Optimization). Here shapes are
    (B,), and a test holds that slip against them.
    """

    name = "focops"
    Config = FOCOPSConfig
    PRESETS = PRESETS
    corrects_staleness = False  # the divergence is from the policy that acted
    config: FOCOPSConfig

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """PPO's, and what the policy that acted gave."""
        return super().columns(block) | {"behaviour": self.behaviour(block["observations"])}

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Divergence less the weighted advantage of each sample within the trust region."""
        c, mask = self.config, batch.get("mask")
        log_prob, entropies, outputs = self.evaluate(batch)
        log_ratios = log_ratio(log_prob, batch["behaviour_log_prob"], mask)
        divergence = self.actor.divergence(outputs, self.actor.from_rows(batch["behaviour"]))
        terms = focops_terms(divergence, log_ratios, batch["advantages"], c.trust_region, c.focops_temperature)
        entropy = reduce(entropies, mask)
        metrics = {**ratio_metrics(log_ratios, mask=mask), "kl": reduce(divergence.detach(), mask), "entropy": entropy}
        loss = reduce(terms, mask)
        return loss if c.entropy_coefficient == 0 else loss - c.entropy_coefficient * entropy, metrics


def focops_terms(
    divergence: Tensor, log_ratios: Tensor, advantages: Tensor, trust_region: float, temperature: float
) -> Tensor:
    """(B,) terms 1[KL <= eta] (KL - rho A / temperature).

    Args:
        divergence: (B,) KL(policy || policy that acted), in nats, with gradient.
        log_ratios: (B,) with gradient.
        advantages: (B,) penalised.
        trust_region: eta.
        temperature: 1.5 in the paper.
    """
    inside = (divergence.detach() <= trust_region).to(divergence.dtype)
    return inside * (divergence - ratio(log_ratios) * advantages / temperature)
