"""DSRL-NA: DSRL whose critic values chunks of actions, from which a critic of noise is distilled."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.traits import Acting
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, pairs
from surefoot.online.dsrl import DSRL, DSRLConfig


@dataclasses.dataclass(frozen=True)
class DSRLNAConfig(DSRLConfig):
    """Settings of DSRL-NA: DSRL's, and how often the critic of noise learns."""

    noise_critic_every: int = option(
        2, "training steps for one of the critic of noise; officially 20 for 10 of it", range=">= 1"
    )
    noise_critic_learning_rate: float = option(3e-4, "learning rate of the critic of noise", range=">= 0")


class DSRLNA(DSRL):
    r"""The noise-aliased form of Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space RL" (2025).

    Different noise w leads the flow F to the same chunk c, and what is learned of a chunk should be learned for all
    noise that leads to it. A critic Q of chunks learns from what was played, and a critic Q_w of noise from Q, at noise
    that no one needs to have chosen:

    .. math::
        y &= r + \gamma (1 - d) \big( \min_i \hat Q_i(s', F(s', b u')) - \alpha \log\pi(u'|s') \big), \quad
        u' \sim \pi(s') \\
        L_Q &= \tfrac12 \textstyle\sum_i E\, (Q_i(s, c) - y)^2 \\
        L_w &= \tfrac12 \textstyle\sum_i E\, \big( Q_{w,i}(s, w / b) - Q_i(s, F(s, w)) \big)^2, \quad
        w \sim \mathcal N(0, I) \\
        L_\pi &= E\, [\alpha \log\pi(u|s) - \min_i Q_{w,i}(s, u)], \quad u \sim \pi(s)

    A row of the buffer holds the chunk that was played, not the choice that led to it. Each critic of noise follows the
    critic of chunks of its own number, so that their minimum stays one.
    """

    name = "dsrl_na"
    Config: ClassVar[type[DSRLNAConfig]] = DSRLNAConfig
    acting = Acting(stores_played=True)
    config: DSRLNAConfig

    def build(self) -> None:
        """DSRL's networks, of which the critics value chunks, and critics of noise."""
        super().build()
        self.noise_critic = Critic(self.features, self.decision_dim, self.config.hidden, 2)

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of the chunk that a next choice leads to."""
        following = batch["next_observations"]
        choice, log_density = self.actor.draw(following, noise["next_action"])
        next_q = ensembles.minimum(self.target_critic(pairs(following, self.played(following, choice))))
        next_value = next_q - self.temperature() * log_density
        return td_target(batch["rewards"], batch["terminations"], next_value, self.config.discount)

    def noise_critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of each critic of noise to what its critic of chunks says of where the noise leads."""
        observations, choice = batch["observations"], noise["noise"] / self.config.reach
        with torch.no_grad():
            q = self.critic(pairs(observations, self.played(observations, choice)))
        found = self.noise_critic(pairs(observations, choice))
        return ensembles.critic_loss(found, q, "half_sum"), {"noise_q": found}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, by the critics of noise: nothing is differentiated through the flow."""
        observations = batch["observations"]
        choice, log_density = self.actor.draw(observations, noise["action"])
        value = ensembles.minimum(self.noise_critic(pairs(observations, choice)))
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def updates(self) -> list[Update | Rule]:
        """SAC's, then the critics of noise."""
        c, drawn = self.config, {"noise": Noise("normal", self.decision_dim)}
        adam, every = Adam(c.noise_critic_learning_rate), c.noise_critic_every
        return [
            *super().updates(),
            Update(self.noise_critic_loss, ("noise_critic",), adam, every=every, noise=drawn),
        ]
