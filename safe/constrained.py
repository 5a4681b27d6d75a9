"""What on-policy agents under a cost constraint have in common: a cost critic, cost advantages, a multiplier.

J is the mean undiscounted cost of the last `cost_window` training episodes, d the limit of it. The cost critic has a
discount and a trace of its own, and costs are never scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.masked import normalise, reduce
from surefoot.core.networks import Value
from surefoot.core.value_learning import gae, value_loss
from surefoot.online.on_policy_agent import OnPolicyAgent, head_gain, in_parts
from surefoot.safe.multipliers import FORMS, HeldMultiplier, Lagrange, Multiplier, centred, check_gains, penalised, pid

SCALES = ("rewards", "sum", "none")


@dataclasses.dataclass(frozen=True)
class ConstraintConfig:
    """A constraint, and how costs are valued."""

    cost_limit: float = 25.0  # of the undiscounted sum of costs of an episode, on average
    cost_discount: float = 0.99
    cost_window: int = 100  # training episodes whose mean cost is compared with the limit

    def check_constraint(self, name: str) -> None:
        """Refuse values out of range."""
        finite = 0 <= self.cost_limit < float("inf")
        require(finite, name, "cost_limit", self.cost_limit, ">= 0 and finite, a sum of costs over an episode")
        require(self.cost_window >= 1, name, "cost_window", self.cost_window, ">= 1")


@dataclasses.dataclass(frozen=True)
class MultiplierConfig(ConstraintConfig):
    """A constraint that a multiplier weighs."""

    multiplier: str = "adam"  # adam, or a PID: omnisafe, fsrl, osrl or paper (safe.multipliers)
    initial_multiplier: float = 0.001  # of adam
    multiplier_rate: float = 0.035  # of adam: about the largest change of a step
    gains: tuple[float, float, float] | None = None  # of a PID: proportional, integral, derivative; None: as published
    largest_multiplier: float | None = None

    def check_constraint(self, name: str) -> None:
        """Refuse values out of range."""
        super().check_constraint(name)
        require(self.multiplier in FORMS, name, "multiplier", self.multiplier, f"one of {', '.join(FORMS)}")
        require(self.initial_multiplier >= 0, name, "initial_multiplier", self.initial_multiplier, ">= 0")
        require(self.multiplier_rate > 0, name, "multiplier_rate", self.multiplier_rate, "> 0")
        if self.gains is not None:
            check_gains(name, self.gains)
        largest = self.largest_multiplier
        require(largest is None or largest > 0, name, "largest_multiplier", largest, "None or > 0")

    @property
    def rule(self) -> Multiplier:
        """How the multiplier moves."""
        if self.multiplier == "adam":
            return Lagrange(self.multiplier_rate, self.initial_multiplier, self.largest_multiplier)
        return pid(self.multiplier, self.gains, self.largest_multiplier)


@dataclasses.dataclass(frozen=True)
class PenaltyConfig(MultiplierConfig):
    """A constraint whose advantages a multiplier adds to those of rewards."""

    cost_gae_lambda: float = 0.95
    standardise: str = "rewards"  # what is scaled to deviation 1: rewards' advantages, the penalised sum, or none

    def check_constraint(self, name: str) -> None:
        """Refuse values out of range."""
        super().check_constraint(name)
        require(0 <= self.cost_gae_lambda <= 1, name, "cost_gae_lambda", self.cost_gae_lambda, "in [0, 1]")
        require(self.standardise in SCALES, name, "standardise", self.standardise, f"one of {', '.join(SCALES)}")


class ConstrainedAgent(OnPolicyAgent):
    """An on-policy agent with a critic of costs; its config has those of `ConstraintConfig` and `cost_gae_lambda`."""

    def build(self) -> None:
        """The networks of the algorithm, and the cost critic."""
        super().build()
        c = self.config
        self.cost_window = c.cost_window  # type: ignore[attr-defined]
        self.cost_value = Value(self.spec.observation_dim, c.hidden, "orthogonal", activation=c.activation)
        head_gain(self.cost_value.mlp, 1.0)

    def cost_advantages(self, block: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(T, N) generalised advantages of costs, less their mean but not scaled, and (T, N) returns of costs.

        The published implementation calls its own standardised and centres them too: their deviation is not used, so
        that a multiplier weighs costs in their own units.
        """
        c, mask = self.config, block.get("mask")
        advantages, returns = gae(
            block["costs"],
            in_parts(self.cost_value, block["observations"]),
            in_parts(self.cost_value, block["next_observations"]),
            block["terminations"],
            block["truncations"],
            c.cost_discount,  # type: ignore[attr-defined]
            c.cost_gae_lambda,  # type: ignore[attr-defined]
            mask,
        )
        return centred(advantages, mask), returns

    def cost_critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Half the squared error of the cost critic."""
        mask, value = batch.get("mask"), self.cost_value(batch["observations"])
        return reduce(value_loss(value, batch["cost_returns"], mask=mask), mask), {"cost_value": value}

    def cost_update(self, adam: Adam) -> Update:
        """The cost critic's step, with a gradient norm of its own."""
        return Update(self.cost_critic_loss, ("cost_value",), adam)


class PenalisedAgent(ConstrainedAgent):
    r"""A constrained agent that maximises :math:`(A_r - \lambda A_c) / (1 + \lambda)`.

    The multiplier is stepped once a block, before the policy. Mixed in before an on-policy algorithm, it makes that
    algorithm's advantages the penalised ones.
    """

    def build(self) -> None:
        """The networks, and the multiplier's state."""
        super().build()
        self.multiplier = HeldMultiplier(self.config.rule)  # type: ignore[attr-defined]

    def step_multiplier(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """One step of the multiplier, by the cost of the last episodes."""
        stepped = self.multiplier.stepped(batch["cost"], self.config.cost_limit)  # type: ignore[attr-defined]
        return {f"multiplier.{name}": value for name, value in stepped.items()}, {}

    def updates(self) -> list[Update | Rule]:
        """The multiplier, then the algorithm's own."""
        return [Rule(self.step_multiplier, ("multiplier",), on="episodes"), *super().updates()]

    def advantages(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns (T, N) of a block: values, penalised advantages, returns, and returns of costs."""
        columns = super().advantages(block)
        costs, columns["cost_returns"] = self.cost_advantages(block)
        columns["advantages"] = self.combined(columns["advantages"], costs, block.get("mask"))
        return columns

    def combined(self, rewards: Tensor, costs: Tensor, mask: Tensor | None) -> Tensor:
        """(T, N) penalised advantages, by what is to be standardised."""
        how = self.config.standardise  # type: ignore[attr-defined]
        if how == "rewards":
            rewards = normalise(rewards, mask)
        found = penalised(rewards, costs, self.multiplier())
        return normalise(found, mask) if how == "sum" else found


def nan_keeps(old: Tensor, new: Tensor) -> Tensor:
    """`new`, or `old` where nothing was seen."""
    return torch.where(new.isnan(), old, new)
