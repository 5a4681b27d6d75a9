"""A2C: one gradient step on each short block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.traits import Teams
from surefoot.core.losses.masked import reduce
from surefoot.core.losses.policy_gradient import reinforce_surrogate
from surefoot.core.losses.value_learning import value_loss
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import OnPolicyConfig


@dataclasses.dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C; the defaults are stable-baselines3's, with Adam in place of RMSprop."""

    num_envs: int = 8
    horizon: int | None = 5
    gae_lambda: float = 1.0
    normalize_observations: bool = False
    normalize_rewards: bool = False
    value_coefficient: float = option(1.0, "weight of half the squared error of the value", range=">= 0")
    entropy_coefficient: float = option(0.0, "weight of the policy's entropy")
    learning_rate: float = option(7e-4, "learning rate", range=">= 0")
    schedule: str = option(
        "constant",
        "schedule of the learning rate: constant, or linear: to 0 over the run",
        choices=("constant", "linear"),
    )
    epsilon: float = option(1e-5, "number added to Adam's denominator", range=">= 0")
    max_gradient_norm: float = option(
        0.5, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )

    @property
    def steps_per_block(self) -> int:
        """One."""
        return 1


class A2C(OnPolicyAgent):
    r"""Advantage actor-critic, the synchronous form of Mnih et al., "Asynchronous Methods for Deep RL" (2016).

    .. math:: L = -E\, A \log \pi(a|s) - c_e H(\pi) + \tfrac{c_v}{2} E (V - R)^2

    It is PPO with one epoch, one minibatch and no clip, whose ratio is 1.
    """

    name = "a2c"
    teams = Teams(trains=True)
    Config = A2CConfig
    config: A2CConfig

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages and returns."""
        return {**self.acted(block), **self.advantages(block)}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Policy gradient, entropy bonus and squared error of the value."""
        c, mask = self.config, batch.get("mask")
        log_prob, entropies, _ = self.evaluate(batch)
        policy = reduce(reinforce_surrogate(log_prob, batch["advantages"], mask=mask), mask)
        entropy = reduce(entropies, mask)
        value = self.value(batch["observations"])
        critic = reduce(value_loss(value, batch["returns"], mask=mask), mask)
        loss = policy + c.value_coefficient * critic
        if c.entropy_coefficient != 0:
            loss = loss - c.entropy_coefficient * entropy
        return loss, {"policy_loss": policy, "critic_loss": critic, "entropy": entropy, "value": value}

    def updates(self) -> list[Update]:
        """One step of actor and critic."""
        c = self.config
        adam = Adam(c.learning_rate, epsilon=c.epsilon, schedule=c.schedule, max_gradient_norm=c.max_gradient_norm)
        return [Update(self.loss, ("actor", "value"), adam)]
