"""CPQ: actions outside the data are given high costs, and values back up through actions within the cost limit only."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.vae import VAE
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.losses.value_learning import linear_quantile, td_target
from surefoot.core.nn import ensembles
from surefoot.safe.constraint.cost_critics import (
    CostCriticAgent,
    CostCriticConfig,
    Dual,
    joined,
)


@dataclasses.dataclass(frozen=True)
class CPQConfig(CostCriticConfig):
    """Settings of CPQ; the numbers are OSRL's."""

    odd_quantile: float = option(
        0.75, "quantile of the batch's divergences: actions at or above it count as out of the data", range="[0, 1]"
    )
    odd_cost: float = option(
        1.5, "cost value that actions out of the data are pushed up to, in thresholds", range=">= 0"
    )
    penalty_gradient: bool = option(True, "false: OSRL's slip, whose penalty has no gradient to the cost critic")
    actor_learning_rate: float = option(1e-4, "learning rate of the actor", range=">= 0")


class CPQ(CostCriticAgent):
    r"""Constraints Penalized Q-learning of Xu, Zhan and Zhu (AAAI 2022).

    .. math::
        y &= r + \gamma (1 - d)\, 1[\hat Q^c(s', a') \le q_{thr}]\, \min_i \hat Q_i(s', a'), \quad a' \sim \pi(s') \\
        L_{Q^c} &= E (Q^c(s, a) - c - \gamma (1 - d) \hat Q^c(s', a'))^2 - \alpha E_{(s, a) \sim \nu} Q^c(s, a) \\
        L_\pi &= -E\, 1[Q^c(s, a) \le q_{thr}] \min_i Q_i(s, a)

    where nu holds those of the policy's actions whose code, by an auto-encoder of the data, is furthest from the prior.
    alpha rises while their mean cost value is below 1.5 q_thr. Slips of OSRL that are not here: its penalty reads the
    target critic without gradient, so that only alpha moves (`penalty_gradient=False` keeps that); the actions in it
    are drawn before the tanh; the mean over nu counts all other actions as 0; cost backups bootstrap after a
    termination; time-outs end returns. Two choices differ too: of two cost critics the maximum is used, where OSRL
    takes the minimum (`careful_costs=False`), and log alpha is stepped by Adam, where OSRL adds
    rate alpha (1.5 q_thr - mean).
    """

    name = "cpq"
    Config: ClassVar[type] = CPQConfig
    PRESETS = {"paper": {}, "small": {"sampled_actions": 4, "vae_hidden": (256, 256)}}  # noqa: RUF012
    config: CPQConfig
    actor: TanhGaussianActor

    def build(self) -> None:
        """Auto-encoder, actor, critics of reward and cost with their targets, the penalty's weight."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.vae = VAE(*sizes, c.vae_hidden)
        self.actor = TanhGaussianActor(*sizes, c.hidden)
        self.build_critics()
        self.dual = Dual()

    def cost_critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error, less the weighted cost value of actions that the data does not have."""
        c = self.config
        next_cost = self.cost_of(self.target_cost_critic(self._next_pairs(batch, noise)))
        target = td_target(batch["costs"], batch["terminations"], next_cost, c.discount)
        cost_q = self.cost_critic(batch["observation_actions"])
        td = (cost_q - target).square().mean(-1).sum()
        actions = self._sampled(batch["observations"], noise["action"]).flatten(0, 1).detach()
        pairs = joined(batch["observations"], actions)
        odd_cost = self._odd_mean(self.cost_critic(pairs) if c.penalty_gradient else self._frozen(pairs), pairs)
        weight, short = self.dual(), c.odd_cost * self.cost_threshold - odd_cost
        metrics = {"cost_q": cost_q, "odd_cost_q": odd_cost, "dual": weight}
        return td + weight * short + self.dual.loss(short), metrics

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics; a next action whose cost value is above the threshold has value 0."""
        pairs = self._next_pairs(batch, noise)
        affordable = self.cost_of(self.target_cost_critic(pairs)) <= self.cost_threshold
        next_q = torch.where(affordable, self.target_critic(pairs).amin(0), 0.0)
        target = td_target(batch["rewards"], batch["terminations"], next_q, self.config.discount)
        q = self.critic(batch["observation_actions"])
        return (q - target).square().mean(-1).sum(), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Value of the policy's actions, of the affordable ones alone."""
        observations = batch["observations"]
        actions, _ = self.actor.draw(observations, noise["own_action"])
        pairs = torch.cat([observations, actions], -1)
        affordable = self.cost_of(self.cost_critic(pairs)) <= self.cost_threshold
        q = torch.where(affordable, ensembles.minimum(self.critic(pairs)), 0.0)
        return -q.mean(), {"affordable": affordable.to(q.dtype)}

    def _odd_mean(self, cost_q: Tensor, pairs: Tensor) -> Tensor:
        """() mean over the pairs that the data has nothing like of what the cost critics, (E, n B), say of them."""
        divergence = self.vae.divergence(pairs).detach()
        odd = (divergence >= linear_quantile(divergence, self.config.odd_quantile)).to(cost_q.dtype)
        return (cost_q * odd).sum() / (odd.sum() * cost_q.shape[0])

    def _frozen(self, pairs: Tensor) -> Tensor:
        """(E, n B) of the target critics, as OSRL's penalty reads them."""
        return self.target_cost_critic(pairs).detach()

    def _next_pairs(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B, O + A) next observations with actions of the policy there."""
        actions, _ = self.actor.draw(batch["next_observations"], noise["next_action"])
        return torch.cat([batch["next_observations"], actions.detach()], -1)

    def _sampled(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(n, B, A) actions in (-1, 1)."""
        return self.actor.draw(observations, noise.unflatten(-1, (-1, self.spec.action_dim)).movedim(-2, 0))[0]

    def updates(self) -> list[Update]:
        """Auto-encoder, cost critics with the penalty's weight, critics, actor, one after the other."""
        c, size = self.config, self.spec.action_dim
        adam = Adam(c.learning_rate)
        next_action = {"next_action": Noise("normal", size)}
        several = {**next_action, "action": Noise("normal", c.sampled_actions * size)}
        encoded, own = {"encoded": Noise("normal", self.vae.latent_dim)}, {"own_action": Noise("normal", size)}
        cost_target = {"target_cost_critic": ("cost_critic", c.target_rate)}
        target = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.vae_loss, ("vae",), adam, noise=encoded),
            Update(self.cost_critic_loss, ("cost_critic", "dual"), adam, target_updates=cost_target, noise=several),
            Update(self.critic_loss, ("critic",), adam, target_updates=target, noise=next_action),
            Update(self.actor_loss, ("actor",), Adam(c.actor_learning_rate), noise=own),
        ]
