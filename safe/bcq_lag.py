"""BCQ-Lagrangian: a policy perturbs actions sampled from a model of the data, under a cost limit."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

from torch import Tensor

from surefoot.core.actors.vae import VAE, Perturbation, PerturbedActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Descent, Metrics, Update
from surefoot.core.engine.traits import WarmStart
from surefoot.safe.constraint.cost_critics import (
    AssignedMultiplier,
    CostCriticAgent,
    CostCriticConfig,
    mixed_td_loss,
    repeated,
    rows_of,
)
from surefoot.safe.constraint.multipliers import pid


@dataclasses.dataclass(frozen=True)
class BCQLagConfig(CostCriticConfig):
    """Settings of BCQ-Lagrangian; the numbers are OSRL's."""

    mixing: float = option(0.75, "weight of the careful one of two critics in the targets", range="[0, 1]")
    gains: tuple[float, float, float] = option(
        (0.1, 0.003, 0.001), "gains of the multiplier's PID, over critic values", range=">= 0"
    )
    perturbation: float = option(0.05, "phi: how far an action may be moved", range="[0, 1]")
    latent_limit: float = option(0.5, "latents that actions are decoded from are clamped to this", range="> 0")


class BCQLag(CostCriticAgent):
    r"""BCQ (Fujimoto, Meger and Precup, 2019) with a cost critic and a multiplier, as OSRL combines them.

    .. math::
        a_k &= \xi_{\hat\phi}(s', D(s', z_k)), \quad k \le n \\
        y &= r + \gamma (1 - d) \max_k [.75 \min_i \hat Q_i(s', a_k) + .25 \max_i \hat Q_i(s', a_k)] \\
        y_c &= c + \gamma (1 - d) \tfrac1n \textstyle\sum_k [.75 \max_i \hat Q^c_i(s', a_k) + .25 \min_i ...] \\
        L_\xi &= E [-\min_i Q_i(s, a) + \lambda (\max_i Q^c_i(s, a) - q_{thr})], \quad a = \xi_\phi(s, D(s, z))

    where lambda is a PID over E Q^c - q_thr, stepped once a training step. Slips of OSRL that are not here: its cost
    backup bootstraps after a termination and takes the largest of the n actions' costs, not a policy's (here the mean
    over the policy's own draws); its cost target trusts the lower critic most; time-outs end its returns. Two critics
    of each kind, where OSRL has two pairs.
    """

    name = "bcq_lag"
    Config: ClassVar[type] = BCQLagConfig
    PRESETS = {"osrl": {}, "small": {"sampled_actions": 4, "vae_hidden": (256, 256)}}  # noqa: RUF012
    warm_start = WarmStart(networks=("vae", "perturbation", "normalizer"))
    config: BCQLagConfig

    def build(self) -> None:
        """Auto-encoder, perturbation, critics of reward and cost with their targets, multiplier."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.vae = VAE(*sizes, c.vae_hidden)
        self.perturbation = Perturbation(*sizes, c.hidden, c.perturbation)
        self.build_critics()
        self.target_perturbation = copy.deepcopy(self.perturbation).requires_grad_(False)
        self.multiplier = AssignedMultiplier(pid("osrl", c.gains))

    @property
    def actor(self) -> PerturbedActor:
        """The decoder and the perturbation as one head."""
        return PerturbedActor(self.vae.decoder, self.perturbation, self.config.latent_limit)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD errors of both pairs of critics, at n drawn next actions."""
        actions = self._drawn(batch["next_observations"], noise["next_latent"], self.target_perturbation)
        return mixed_td_loss(self, batch, actions, self.config.mixing)

    def multiplier_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The PID's step, from the mean cost value of the policy's actions."""
        _, cost_q = self._values(batch["observations"], noise["latent"])
        return self.multiplier.loss(cost_q.mean(), self.cost_threshold), {"policy_cost_q": cost_q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Value of the perturbed actions, and their cost value above the threshold, weighted."""
        q, cost_q = self._values(batch["observations"], noise["latent"])
        weight = self.multiplier()
        return -q.mean() + weight * (cost_q.mean() - self.cost_threshold), {"multiplier": weight}

    def _values(self, observations: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) value and cost value of the policy's actions."""
        return self.values(observations, self._drawn(observations, latents, self.perturbation))

    def _drawn(self, observations: Tensor, latents: Tensor, perturbation: Perturbation) -> Tensor:
        """(n B, A) actions from (B, n Z) standard normal latents."""
        latents = rows_of(latents, self.vae.latent_dim).clamp(-self.config.latent_limit, self.config.latent_limit)
        observations = repeated(observations, len(latents) // len(observations))
        return perturbation(observations, self.vae.decode(observations, latents))

    def updates(self) -> list[Update]:
        """Auto-encoder, critics, multiplier, perturbation, one after the other."""
        c, width = self.config, self.vae.latent_dim
        adam = Adam(c.learning_rate)
        latent = {"latent": Noise("normal", width)}
        targets = {
            "target_critic": ("critic", c.target_rate),
            "target_cost_critic": ("cost_critic", c.target_rate),
        }
        several = {"next_latent": Noise("normal", c.sampled_actions * width)}
        moved = {"target_perturbation": ("perturbation", c.target_rate)}
        return [
            Update(self.vae_loss, ("vae",), adam, noise={"encoded": Noise("normal", width)}),
            Update(self.critic_loss, ("critic", "cost_critic"), adam, target_updates=targets, noise=several),
            Update(self.multiplier_loss, ("multiplier",), Descent(), noise=latent),
            Update(self.actor_loss, ("perturbation",), adam, target_updates=moved, noise=latent),
        ]
