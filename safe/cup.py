"""CUP: improve the return, then project back towards the constraint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, require
from surefoot.core.engine.features import named
from surefoot.core.engine.traits import Requires
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio, ratio_metrics
from surefoot.online.base.on_policy_agent import in_parts
from surefoot.online.ppo import PPO
from surefoot.safe.constraint.constrained import add_penalty, cost_advantages, with_costs
from surefoot.safe.constraint.multipliers import HeldMultiplier
from surefoot.safe.ppo_lag import PRESETS, PPOLagConfig


@dataclasses.dataclass(frozen=True)
class CUPConfig(PPOLagConfig):
    """Settings of CUP."""

    largest_multiplier: float | None = 2.0
    projection_kl: float | None = option(0.01, "divergence that ends the projection's epochs", range="> 0")
    projection_weight: float | None = option(
        None, "weight of the costs in the projection; null: (1 - g l) / (1 - g), of the cost's discount g and trace l"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        given = self.projection_weight
        fine = given > 0 if given is not None else self.cost_discount < 1
        require(fine, "cup", "projection_weight", given, "> 0, and a number where cost_discount is 1")
        fits = "rewards: the two kinds of advantages are never added"
        require(self.standardize == "rewards", "cup", "standardize", self.standardize, fits)
        require(self.schedule != "adaptive", "cup", "schedule", self.schedule, "linear or constant")

    @property
    def weight(self) -> float:
        """Of the cost's surrogate in the projection."""
        if self.projection_weight is not None:
            return self.projection_weight
        return (1 - self.cost_discount * self.cost_gae_lambda) / (1 - self.cost_discount)


class CUP(PPO):
    r"""CUP of Yang et al., "Constrained Update Projection Approach to Safe Policy Optimization" (2022).

    .. math::
        \text{improve} \quad & E \max(-A_r \rho, -A_r\,\mathrm{clip}(\rho, 1 \pm \epsilon)) \to \pi' \\
        \text{project} \quad & E\, [\lambda \tfrac{1 - \gamma \lambda_g}{1 - \gamma} \rho A_c + KL(\pi \| \pi')]

    Both from one block, each with all epochs and its own early stop; rho is always to the policy that acted. The
    critics are fitted in both.
    """

    name = "cup"
    Config = CUPConfig
    requires = Requires(costs=True)
    PRESETS = {name: one for name, one in PRESETS.items() if one.get("schedule") != "adaptive"}  # noqa: RUF012
    config: CUPConfig
    multiplier: HeldMultiplier

    def build(self) -> None:
        """PPO's networks, the cost critic, and the multiplier's state."""
        super().build()
        add_penalty(self)

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """PPO's on rewards alone, and what the projection will read; `projecting` is 0."""
        columns = super().columns(block)
        columns["advantages"] = normalise(columns["advantages"], block.get("mask"))
        columns["cost_advantages"], columns["cost_returns"] = cost_advantages(self, block)
        columns["behaviour"] = self.behaviour(block["observations"])
        columns["multiplier"] = self.multiplier().expand_as(block["costs"])
        columns["projecting"] = torch.zeros_like(block["costs"])
        return columns

    def begin_projection(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Columns with the improved policy to project from; `projecting` is 1."""
        behaviour = self.behaviour(self.seen(batch)).squeeze(0)
        return {"behaviour": behaviour, "projecting": torch.ones_like(batch["projecting"])}, {}

    def seen(self, batch: Batch) -> Tensor:
        """(1, R, O) observations of (R, ...) rows, or the features of their arrays by the encoder as it is."""
        if self.encoder is None or not self.encodes_anew:
            return batch["observations"].unsqueeze(0)
        arrays = named(batch, self.encoder, "observations")

        def features(*parts: Tensor) -> Tensor:
            return self.encode(dict(zip(arrays, parts, strict=True)))

        return in_parts(features, *(array.unsqueeze(0) for array in arrays.values()))

    def updates(self) -> list[Update | Rule]:
        """PPO-Lag's twice: to improve, and to project."""
        multiplier, *steps = with_costs(self, super().updates())
        return [multiplier, *steps, Rule(self.begin_projection, on="block"), *steps]

    def stop_at(self, group: int) -> float | None:
        """The divergence that ends the epochs: from the policy that acted, then from the improved one."""
        return self.config.target_kl if group == 0 else self.config.projection_kl

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """To improve or to project; `kl_k3` is the divergence that ends the epochs."""
        c, mask, projecting = self.config, batch.get("mask"), batch["projecting"]
        log_prob, entropies, outputs = self.evaluate(batch)
        log_ratios = log_ratio(log_prob, batch["behaviour_log_prob"], mask)
        improve, clipped = clip_surrogate(log_ratios, batch["advantages"], c.clip, mask=mask)
        divergence = self.actor.divergence(outputs, self.actor.from_rows(batch["behaviour"]))
        costs = batch["multiplier"] * c.weight * ratio(log_ratios) * batch["cost_advantages"]
        project = costs + divergence
        entropy = reduce(entropies, mask)
        metrics = {**ratio_metrics(log_ratios, clipped, mask), "entropy": entropy}
        away = reduce(divergence.detach() * projecting, mask)
        metrics["kl_k3"] = metrics["kl_k3"] * (1 - projecting.amax()) + away
        loss = reduce((1 - projecting) * improve + projecting * project, mask)
        return loss if c.entropy_coefficient == 0 else loss - c.entropy_coefficient * entropy, metrics
