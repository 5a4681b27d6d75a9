"""BEAR-Lagrangian: a policy kept near the data by maximum mean discrepancy, under a cost limit."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.vae import VAE
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Descent, Metrics, Update
from surefoot.safe.constraint.cost_critics import (
    AssignedMultiplier,
    CostCriticAgent,
    CostCriticConfig,
    Dual,
    mixed_td_loss,
    repeated,
    rows_of,
)
from surefoot.safe.constraint.multipliers import pid


@dataclasses.dataclass(frozen=True)
class BEARLagConfig(CostCriticConfig):
    """Settings of BEAR-Lagrangian; the numbers are OSRL's."""

    mixing: float = option(0.75, "weight of the careful one of two critics in the targets", range="[0, 1]")
    gains: tuple[float, float, float] = option(
        (0.1, 0.003, 0.001), "gains of the multiplier's PID, over critic values", range=">= 0"
    )
    largest_discrepancy: float = option(
        0.05, "largest discrepancy of the policy's actions from the data's, as `discrepancy` measures it", range=">= 0"
    )
    kernel_width: float = option(50.0, "sigma of exp(-|x - y|^2 / (2 sigma))", range="> 0")
    latent_limit: float = option(0.5, "latents that actions are decoded from are clamped to this")
    actor_learning_rate: float = option(
        1e-3, "learning rate of the actor and of the discrepancy's weight", range=">= 0"
    )


def discrepancy(first: Tensor, second: Tensor, width: float) -> Tensor:
    """(B,) maximum mean discrepancy of two sets of samples: sqrt(k_xx + k_yy - 2 k_xy + 1e-6), Gaussian kernel.

    Args:
        first: (n, B, A) samples of each of B distributions.
        second: (m, B, A).
        width: sigma of exp(-|x - y|^2 / (2 sigma)).

    Source: Gretton et al., "A Kernel Two-Sample Test"; the form of Kumar et al.'s BEAR.
    """

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        squares = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
        return (-squares / (2 * width)).exp().mean((0, 1))

    return (kernel(first, first) + kernel(second, second) - 2 * kernel(first, second) + 1e-6).sqrt()


class BEARLag(CostCriticAgent):
    r"""BEAR (Kumar et al., 2019) with a cost critic and a multiplier, as OSRL combines them.

    .. math::
        y &= r + \gamma (1 - d) \max_k [.75 \min_i \hat Q_i(s', a_k) + .25 \max_i ...], \quad a_k \sim \hat\pi(s') \\
        y_c &= c + \gamma (1 - d) \tfrac1n \textstyle\sum_k [.75 \max_i \hat Q^c_i(s', a_k) + .25 \min_i ...] \\
        L_\pi &= E [-\min_i Q_i(s, a) + \alpha (MMD - \epsilon) + \lambda (\max_i Q^c_i(s, a) - q_{thr})]

    with MMD between n actions of the policy and n of an auto-encoder of the data, both before the tanh; alpha rises
    while it is above epsilon (by Adam, in steps of the actor's rate, where OSRL ascends by hand). Slips of OSRL that
    are not here: as in BCQ-Lagrangian, cost backups that bootstrap after a termination and take the largest of the
    n costs, the minimum of the cost critics, and time-outs that end returns.
    """

    name = "bear_lag"
    Config: ClassVar[type] = BEARLagConfig
    PRESETS = {  # noqa: RUF012
        "osrl": {},
        "small": {"sampled_actions": 4, "vae_hidden": (256, 256), "actor_learning_rate": 1e-4},
    }
    config: BEARLagConfig
    actor: TanhGaussianActor

    def build(self) -> None:
        """Auto-encoder, actor, critics of reward and cost with their targets, both weights."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.vae = VAE(*sizes, c.vae_hidden)
        self.actor = TanhGaussianActor(*sizes, c.hidden)
        self.build_critics()
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.multiplier = AssignedMultiplier(pid("osrl", c.gains))
        self.dual = Dual()

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD errors of both pairs of critics, at n next actions of the target policy."""
        actions = self._sampled(self.target_actor, batch["next_observations"], noise["next_action"])
        return mixed_td_loss(self, batch, actions.flatten(0, 1), self.config.mixing)

    def multiplier_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The PID's step, from the mean cost value of the policy's actions."""
        _, cost_q = self.values(batch["observations"], self._unsquashed(batch, noise)[0].tanh())
        return self.multiplier.loss(cost_q.mean(), self.cost_threshold), {"policy_cost_q": cost_q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Value of an action, its cost value above the threshold and the discrepancy above its bound, weighted."""
        c, observations = self.config, batch["observations"]
        unsquashed = self._unsquashed(batch, noise)
        q, cost_q = self.values(observations, unsquashed[0].tanh())
        latents = rows_of(noise["latent"], self.vae.latent_dim).clamp(-c.latent_limit, c.latent_limit)
        decoded = self.vae.decode_unsquashed(repeated(observations, c.sampled_actions), latents)
        distance = discrepancy(decoded.unflatten(0, (c.sampled_actions, -1)), unsquashed, c.kernel_width)
        excess, weight = distance.mean() - c.largest_discrepancy, self.multiplier()
        loss = -q.mean() + self.dual() * excess + weight * (cost_q.mean() - self.cost_threshold)
        return loss + self.dual.loss(excess), {"discrepancy": distance, "multiplier": weight, "dual": self.dual()}

    def _unsquashed(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(n, B, A) of the policy, before the tanh."""
        mean, log_std = self.actor(batch["observations"])
        return mean + log_std.exp() * noise["action"].unflatten(-1, (-1, self.spec.action_dim)).movedim(-2, 0)

    def _sampled(self, actor: TanhGaussianActor, observations: Tensor, noise: Tensor) -> Tensor:
        """(n, B, A) actions."""
        return actor.draw(observations, noise.unflatten(-1, (-1, self.spec.action_dim)).movedim(-2, 0))[0]

    def updates(self) -> list[Update]:
        """Auto-encoder, critics, multiplier, actor with the discrepancy's weight, one after the other."""
        c, width, several = self.config, self.vae.latent_dim, self.config.sampled_actions * self.spec.action_dim
        adam = Adam(c.learning_rate)
        targets = {
            "target_critic": ("critic", c.target_rate),
            "target_cost_critic": ("cost_critic", c.target_rate),
        }
        action = {"action": Noise("normal", several)}
        both = {**action, "latent": Noise("normal", c.sampled_actions * width)}
        next_action = {"next_action": Noise("normal", several)}
        slow = Adam(c.actor_learning_rate)
        moved = {"target_actor": ("actor", c.target_rate)}
        return [
            Update(self.vae_loss, ("vae",), adam, noise={"encoded": Noise("normal", width)}),
            Update(self.critic_loss, ("critic", "cost_critic"), adam, target_updates=targets, noise=next_action),
            Update(self.multiplier_loss, ("multiplier",), Descent(), noise=action),
            Update(self.actor_loss, ("actor", "dual"), slow, target_updates=moved, noise=both),
        ]
