"""MCQ: soft actor-critic from data whose critics value actions outside of the data as the best ones within it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.vae import VAE
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import pairs
from surefoot.offline.edac import EDAC, EDACConfig


@dataclasses.dataclass(frozen=True)
class MCQConfig(EDACConfig):
    """Settings of MCQ; sizes and rates are those of OfflineRL-Kit."""

    critics: int = 2
    diversity: float = option(0.0, "eta of EDAC's term, which MCQ does without")
    data_weight: float = option(
        0.9,
        "weight of the TD error on the data, lambda; the rest weighs pseudo targets; .5 to .95 by task",
        range="(0, 1]",
    )
    sampled_actions: int = option(
        10, "sampled actions of the behaviour model, of which the best gives the pseudo target, N", range=">= 1"
    )
    hidden: tuple[int, ...] = (400, 400)
    vae_hidden: tuple[int, ...] = option(
        (750, 750), "widths of the hidden layers of encoder and decoder of the behaviour model"
    )
    vae_learning_rate: float = option(1e-3, "learning rate of the behaviour model", range=">= 0")
    latent_limit: float = option(0.5, "samples' latents are clamped to +- this", range="> 0")


class MCQ(EDAC):
    r"""MCQ of Lyu, Ma, Li and Lu, "Mildly Conservative Q-Learning for Offline Reinforcement Learning" (NeurIPS 2022).

    .. math::
        L_Q &= \lambda \textstyle\sum_i E\, (Q_i(s, a) - y)^2
            + (1 - \lambda) \sum_i E_{s \in \{s, s'\},\, a \sim \pi(s)} (Q_i(s, a) - y')^2 \\
        y &= r + \gamma (1 - d)\, (\min_i \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        y' &= \min_i \max_{n \le N} \hat Q_i(s, a_n), \quad a_n \sim \hat\mu(s)

    The behaviour model is a variational auto-encoder, whose squared error and divergence are averaged over all numbers.
    What the policy does at the batch's states is valued as the best of N actions that the data would take there: an
    action outside of the data seems no better than those within, and needs not seem bad. With lambda = 1 this is SAC
    with the critics' minimum. A step takes the behaviour model, the critics, the actor and the temperature, each
    reading the new networks; policy and critics start as EDAC's. OfflineRL-Kit's actor drops out a tenth of its units,
    and its alpha is at most 1; here neither is so.
    """

    name = "mcq"
    Config: ClassVar[type] = MCQConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"small": {"hidden": (256, 256), "vae_hidden": (256, 256)}}

    def build(self) -> None:
        """The behaviour model beside actor, critics and temperature."""
        super().build()
        self.vae = VAE(self.spec.observation_dim, self.spec.action_dim, self.config.vae_hidden)

    def vae_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Reconstruction of the data's actions, and the divergence of their codes from the prior."""
        loss, error = self.vae.loss(batch["observations"], batch["actions"], noise["encoded"], 1.0)
        return loss, {"reconstruction": error}

    def best_of_behaviour(self, states: Tensor, latents: Tensor) -> Tensor:
        """(B,) min over critics of the highest value that N sampled actions have, of (B, N Z) normal latents."""
        count = latents.shape[-1] // self.vae.latent_dim
        many = states.unsqueeze(1).expand(-1, count, -1).reshape(-1, states.shape[-1])
        limit = self.config.latent_limit
        drawn = self.vae.decode(many, latents.reshape(-1, self.vae.latent_dim).clamp(-limit, limit))
        values = self.target_critic(pairs(many, drawn))
        return ensembles.minimum(values.reshape(values.shape[0], -1, count).amax(-1))

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The TD error on the data, and that of the policy's actions to the best of the behaviour's."""
        weight = self.config.data_weight
        loss, metrics = super().critic_loss(batch, noise)
        states = torch.cat([batch["observations"], batch["next_observations"]])
        own, latents = (torch.cat(noise[name].chunk(2, -1)) for name in ("own_action", "latents"))
        with torch.no_grad():
            action, _ = self.actor.draw(states, own)
            target = self.best_of_behaviour(states, latents)
        q = self.critic(pairs(states, action))
        outside = ensembles.critic_loss(q, target, "sum")
        return weight * loss + (1 - weight) * outside, {**metrics, "policy_q": q, "support_q": target}

    def updates(self) -> list[Update]:
        """Behaviour model, critics and their average, actor, temperature."""
        c, size, width = self.config, self.spec.action_dim, self.vae.latent_dim
        temperature, actor, critic = super().updates()
        drawn = {
            **critic.noise,
            "own_action": Noise("normal", 2 * size),
            "latents": Noise("normal", 2 * c.sampled_actions * width),
        }
        encoded = {"encoded": Noise("normal", width)}
        return [
            Update(self.vae_loss, ("vae",), Adam(c.vae_learning_rate), noise=encoded),
            dataclasses.replace(critic, noise=drawn),
            actor,
            temperature,
        ]
