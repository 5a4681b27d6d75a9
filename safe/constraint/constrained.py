"""What on-policy agents under a cost constraint have in common: a cost critic, cost advantages, a multiplier.

J is the mean undiscounted cost of the last `cost_window` training episodes, d the limit of it. The cost critic has a
discount and a trace of its own, and costs are never scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.traits import Requires
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.value_learning import value_loss
from surefoot.core.nn.networks import Value
from surefoot.online.base.on_policy_agent import OnPolicyAgent, head_gain, in_parts
from surefoot.safe.constraint.multipliers import (
    FORMS,
    HeldMultiplier,
    Lagrange,
    Multiplier,
    centred,
    penalised,
    pid,
)

READ_BY = {"initial_multiplier": FORMS[:2], "multiplier_rate": FORMS[:1], "gains": FORMS[1:]}
"""Option -> rules of the multiplier that read it."""
SCALES = ("rewards", "sum", "none")


@dataclasses.dataclass(frozen=True)
class ConstraintConfig(Options):
    """A constraint, and how costs are valued."""

    cost_limit: float = option(25.0, "limit of the undiscounted sum of costs of an episode, on average", range=">= 0")
    cost_discount: float = option(0.99, "discount factor of costs", range="[0, 1]")
    cost_window: int = option(100, "training episodes whose mean cost is compared with the limit", range=">= 1")


@dataclasses.dataclass(frozen=True)
class MultiplierConfig(ConstraintConfig):
    """A constraint that a multiplier weighs."""

    multiplier: str = option(
        "adam", "how the multiplier is updated: adam, or a PID: omnisafe, fsrl, osrl or paper", choices=FORMS
    )
    initial_multiplier: float = option(
        0.001, "multiplier at the start, of adam and of omnisafe, whose integral it is", range=">= 0"
    )
    multiplier_rate: float = option(
        0.035, "learning rate of the multiplier with adam: about the largest change of a step", range="> 0"
    )
    gains: tuple[float, float, float] | None = option(
        None, "gains of a PID: proportional, integral, derivative; null: as published", range=">= 0"
    )
    largest_multiplier: float | None = option(None, "largest multiplier; null: none", range="> 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        highest = math.inf if self.largest_multiplier is None else self.largest_multiplier
        fits = self.initial_multiplier <= highest
        limits = "at most largest_multiplier"
        require(fits, name, "initial_multiplier", self.initial_multiplier, limits)
        for field, rules in READ_BY.items():
            default = type(self).__dataclass_fields__[field].default
            read = self.multiplier in rules or getattr(self, field) == default
            words = f"left at {default}: multiplier={self.multiplier} does not read it, {' and '.join(rules)} would"
            require(read, name, field, getattr(self, field), words)

    @property
    def rule(self) -> Multiplier:
        """How the multiplier moves."""
        if self.multiplier == "adam":
            return Lagrange(self.multiplier_rate, self.initial_multiplier, self.largest_multiplier)
        return pid(self.multiplier, self.gains, self.largest_multiplier, self.initial_multiplier)


@dataclasses.dataclass(frozen=True)
class PenaltyConfig(MultiplierConfig):
    """A constraint whose advantages a multiplier adds to those of rewards."""

    cost_gae_lambda: float = option(0.95, "lambda of the generalised cost advantages", range="[0, 1]")
    standardize: str = option(
        "rewards", "what is scaled to deviation 1: rewards' advantages, the penalised sum, or none", choices=SCALES
    )


def add_cost_critic(agent: Any) -> None:
    """Give an on-policy agent a critic of costs; its config has those of `ConstraintConfig` and `cost_gae_lambda`."""
    c = agent.config
    agent.cost_window = c.cost_window
    agent.cost_value = Value(agent.features, c.hidden, "orthogonal", activation=c.activation)
    head_gain(agent.cost_value.mlp, 1.0)


def add_penalty(agent: Any) -> None:
    """Give an on-policy agent a critic of costs and a multiplier; its config has those of `PenaltyConfig`."""
    add_cost_critic(agent)
    agent.multiplier = HeldMultiplier(agent.config.rule)


def cost_advantages(agent: Any, block: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(T, N) generalised advantages of costs, less their mean but not scaled, and (T, N) returns of costs.

    The published implementation calls its own standardised and centres them too: their deviation is not used, so
    that a multiplier weighs costs in their own units.
    """
    c = agent.config
    values, following = (in_parts(agent.cost_value, block[name]) for name in ("observations", "next_observations"))
    advantages, returns = agent.generalised(
        block, block["costs"], values, following, c.cost_discount, c.cost_gae_lambda
    )
    return centred(advantages, block.get("mask")), returns


def cost_update(agent: Any, critic: Any) -> Update:
    """The cost critic's step, taken as that of the `critic` of rewards: half its squared error, with its own norm."""

    def cost_critic_loss(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        mask, value = batch.get("mask"), agent.cost_value(batch["observations"])
        return reduce(value_loss(value, batch["cost_returns"], mask=mask), mask), {"cost_value": value}

    return dataclasses.replace(critic, loss=cost_critic_loss, trains=("cost_value",))


def multiplier_rule(agent: Any) -> Rule:
    """One step of the agent's `multiplier`, before the policy's, by the cost of the last episodes."""

    def step_multiplier(batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        stepped = agent.multiplier.stepped(batch["cost"], agent.config.cost_limit)
        return {f"multiplier.{name}": value for name, value in stepped.items()}, {}

    return Rule(step_multiplier, ("multiplier",), on="episodes")


def penalised_columns(agent: Any, block: Mapping[str, Tensor], columns: Batch) -> Batch:
    r"""The columns of `OnPolicyAgent.advantages` with :math:`(A_r - \lambda A_c) / (1 + \lambda)`, and cost returns."""
    how, mask, rewards = agent.config.standardize, block.get("mask"), columns["advantages"]
    costs, cost_returns = cost_advantages(agent, block)
    if how == "rewards":
        rewards = normalise(rewards, mask)
    found = penalised(rewards, costs, agent.multiplier())
    return {**columns, "advantages": normalise(found, mask) if how == "sum" else found, "cost_returns": cost_returns}


def with_costs(agent: Any, steps: list[Any]) -> list[Any]:
    """The multiplier's step, those of an on-policy algorithm, and the cost critic's as its critic's, the last one."""
    return [multiplier_rule(agent), *steps, cost_update(agent, steps[-1])]


class Penalised(OnPolicyAgent):
    """What stands before an on-policy algorithm that learns from penalised advantages; its config: `PenaltyConfig`'s.

    To its networks come a critic of costs and the multiplier. Its advantages become those of `penalised_columns`. The
    multiplier's rule stands before its updates, and behind them the cost critic's, with a gradient norm of its own.
    """

    requires = Requires(costs=True)
    multiplier: HeldMultiplier

    def build(self) -> None:
        """The networks, the critic of costs, and the multiplier's state."""
        super().build()
        add_penalty(self)

    def advantages(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns (T, N) of a block: values, penalised advantages, returns, and returns of costs."""
        return penalised_columns(self, block, super().advantages(block))

    def updates(self) -> list[Update | Rule]:
        """The multiplier's rule, the algorithm's own updates, then the cost critic's."""
        return with_costs(self, [*super().updates()])


def nan_keeps(old: Tensor, new: Tensor) -> Tensor:
    """`new`, or `old` where nothing was seen."""
    return torch.where(new.isnan(), old, new)
