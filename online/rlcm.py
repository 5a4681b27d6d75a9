"""RLCM: PPO on a flow's chain whose steps are actions of their own, each with a ratio that is clipped by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.chains import CHAIN
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, ratio_metrics
from surefoot.core.losses.policy_gradient.ratios import limited_log_ratio
from surefoot.online.base.on_policy_agent import in_parts, kept_of
from surefoot.online.reinflow import FAR, ReinFlow, ReinFlowConfig


@dataclasses.dataclass(frozen=True)
class RLCMConfig(ReinFlowConfig):
    """Settings of RLCM: ReinFlow's, where ratios and log-densities are those of a step, not of the chain."""

    transition: str = option(
        "consistency", "noise of a step: consistency, flow_sde (pi_RL) or reinflow (noise that is learned)"
    )
    ratio_normalization: str = option(
        "mean", "reduction of a step's log-density: mean over its numbers, or joint (then clip .1 to .2)"
    )
    clip: float = option(1e-4, "the ratio of each step is held within 1 - clip and 1 + clip")
    entropy_coefficient: float = option(
        0.0, "weight of the entropy of a number of a step, which only learned noise can change"
    )


class RLCM(ReinFlow):
    r"""Oertell et al., "RL for Consistency Models: Faster Reward Guided Text-to-Image Generation" (2024), for control.

    Each step of the chain x_0, ..., x_K is an action, and all earn what the chunk earns that they end in. With the
    log-density of a step as a mean over its D numbers,

    .. math::
        \rho_k &= \exp \tfrac1D \big( \log N(x_{k+1}; \mu_k, \sigma_k^2) - \log N(x_{k+1}; \hat\mu_k, \hat\sigma_k^2)
        \big) \\
        L &= E\, \frac1K \sum_k \max(-A \rho_k, -A\,\mathrm{clip}(\rho_k, 1 \pm \epsilon)) - c_e H

    so that a step which has gone far is clipped alone, where ReinFlow clips the chain. The first place has no part in
    it. Chains are ReinFlow's, as are critic, regulariser and warm-up. The preset `pi_rl` is the other of pi_RL's two
    methods (Chen et al., 2025): the stochastic equation with the flow's marginals, and the ratio of all numbers of a
    step. Differences from the published RLCM: advantages are GAE's with a critic, where there each prompt's rewards
    are standardised; and the last step, which has no noise there, has the floor's.
    """

    name = "rlcm"
    Config: ClassVar[type] = RLCMConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "rlcm": {},
        "pi_rl": {"transition": "flow_sde", "ratio_normalization": "joint", "clip": 0.2},
    }
    config: RLCMConfig

    @property
    def share(self) -> float:
        """What a step's log-density is multiplied by."""
        return 1 / self.decision_dim if self.config.ratio_normalization == "mean" else 1.0

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and the log-density (T, N, K) of each step."""
        columns, kept = {**self.acted(block), **self.advantages(block)}, kept_of(block)

        def of_rows(observations: Tensor, chain: Tensor) -> Tensor:
            found: Tensor = self.actor.evaluate(observations, chain[:, -1], {CHAIN: chain}).outputs.log_densities
            return found * self.share

        columns["behaviour_log_prob"] = in_parts(of_rows, block["observations"], kept[CHAIN])
        return columns | {name: block[name] for name in ("moving",) if name in block}

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped surrogate of every step of each chain, less the entropy bonus, and the distance from the clone."""
        c, rows = self.config, batch.get("mask")
        mask = None if rows is None else rows.unsqueeze(-1)
        parts = self.evaluate(batch).outputs
        log_prob = parts.log_densities * self.share
        logs, cut = limited_log_ratio(log_prob, batch["behaviour_log_prob"], c.log_prob_limit)
        advantages = normalise(batch["advantages"], rows).unsqueeze(-1)
        terms, clipped = clip_surrogate(logs, advantages, c.clip, mask=mask)
        entropy = reduce(parts.entropies / self.decision_dim, mask)
        loss = reduce(terms, mask) - c.entropy_coefficient * entropy
        metrics = {
            **ratio_metrics(logs, clipped, mask),
            "kl_chain": ratio_metrics(logs.sum(-1) / self.share, mask=rows)["kl_k3"],
            "entropy": entropy,
            "deviation": parts.deviation(self.decision_dim),
            "ratio_far": reduce((logs.detach().expm1().abs() > FAR).to(logs.dtype), mask),
        }
        if c.log_prob_limit is not None:
            metrics["cut"] = reduce(cut, mask)
        if c.clone_coefficient > 0:
            metrics["clone_distance"] = distance = self.clone_distance(batch["observations"], noise["start"])
            loss = loss + c.clone_coefficient * reduce(distance, rows)
        if "moving" in batch:
            loss = loss * batch["moving"].mean()
        return loss, metrics
