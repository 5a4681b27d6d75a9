"""REINFORCE: Monte Carlo returns instead of a critic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, require
from surefoot.core.engine.traits import Teams
from surefoot.core.losses.masked import masked_mean, normalise, reduce
from surefoot.core.losses.policy_gradient import reinforce_surrogate
from surefoot.core.losses.value_learning import mc_return
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import OnPolicyConfig


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    """Settings of REINFORCE."""

    num_envs: int = 8
    horizon: int | None = 500
    normalize_observations: bool = False
    normalize_rewards: bool = False
    entropy_coefficient: float = option(0.0, "weight of the policy's entropy")
    learning_rate: float = option(3e-3, "learning rate", range=">= 0")
    schedule: str = option(
        "constant",
        "schedule of the learning rate: constant, or linear: to 0 over the run",
        choices=("constant", "linear"),
    )
    epsilon: float = option(1e-5, "number added to Adam's denominator", range=">= 0")
    max_gradient_norm: float = option(
        0.5, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.discount < 1, "reinforce", "discount", self.discount, "below 1: episodes that are cut continue")
        usual = OnPolicyConfig.gae_lambda
        needed = f"left at {usual:g}: returns are whole, without a critic"
        require(self.gae_lambda == usual, "reinforce", "gae_lambda", self.gae_lambda, needed)

    @property
    def steps_per_block(self) -> int:
        """One."""
        return 1


class Reinforce(OnPolicyAgent):
    r"""REINFORCE of Williams (1992), with returns normalised over the block.

    .. math:: L = -E\, \frac{G - \bar G}{\sigma_G} \log \pi(a|s) - c_e H(\pi)

    There is no critic. A return that is cut, by a time limit or the end of the block, is continued by the mean return
    of the block itself: with :math:`G = G^0 + w \bar G`, w the discount left at the cut,
    :math:`\bar G = E G^0 / (1 - E w)`.
    """

    name = "reinforce"
    teams = Teams(trains=True)
    Config = ReinforceConfig
    config: ReinforceConfig

    def build(self) -> None:
        """An actor alone."""
        self.build_actor()

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Normalised returns."""
        returns = block_returns(block, self.config.discount)
        return {**self.acted(block), "advantages": normalise(returns, block.get("mask"))}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Policy gradient and entropy bonus."""
        c, mask = self.config, batch.get("mask")
        log_prob, entropies, _ = self.evaluate(batch)
        loss = reduce(reinforce_surrogate(log_prob, batch["advantages"], mask=mask), mask)
        entropy = reduce(entropies, mask)
        if c.entropy_coefficient != 0:
            loss = loss - c.entropy_coefficient * entropy
        return loss, {"entropy": entropy}

    def updates(self) -> list[Update]:
        """One step of the actor."""
        c = self.config
        adam = Adam(c.learning_rate, epsilon=c.epsilon, schedule=c.schedule, max_gradient_norm=c.max_gradient_norm)
        return [Update(self.loss, ("actor",), adam)]


def block_returns(block: Mapping[str, Tensor], discount: float) -> Tensor:
    """(T, N) discounted returns, those that are cut going on with their own mean."""
    ends, mask = (block["terminations"], block["truncations"]), block.get("mask")
    rewards = block["rewards"]
    met = mc_return(rewards, *ends, discount, mask=mask)
    left = mc_return(torch.zeros_like(rewards), *ends, discount, torch.ones_like(rewards), mask)
    mean = masked_mean(met, mask) / (1 - masked_mean(left, mask))
    return met + left * mean
