"""Off-policy MDPO: mirror descent on a replay buffer; a KL penalty keeps the policy near an earlier one."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.losses.distributions import gaussian_log_density, tanh_log_determinant
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class MDPOOffPolicyConfig(OffPolicyConfig):
    """Settings of off-policy MDPO; the defaults are the authors', and SAC's where they are not known to us."""

    initial_steps: int = 10_000
    divergence_weight: float = option(1.0, "weight of the divergence from the proximal policy, c", range=">= 0")
    entropy_weight: float = option(0.2, "weight of the entropy, lambda", range=">= 0")
    refresh_every: int = option(
        1_000, "training steps after which the present policy becomes the proximal one", range=">= 1"
    )
    regularization: float = option(1e-3, "weight of the squared means and log deviations before the tanh", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the value's average, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate of everything", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    log_std_range: tuple[float, float] = option(
        (-20.0, 2.0), "range of the policy's log standard deviation", rising=True
    )


class MDPOOffPolicy(OffPolicyAgent):
    r"""Off-policy MDPO of Tomar, Shani, Efroni and Ghavamzadeh, "Mirror Descent Policy Optimization" (2020).

    .. math::
        L_\pi &= E\, [c \log\pi(a|s) + (\lambda - c) \log\pi_k(a|s) - Q_1(s, a)] + \rho\, E\, (\mu^2 + \log^2\sigma),
        \quad a \sim \pi(s) \\
        L_V &= \tfrac12 E\, (V(s) - \min_i Q_i(s, a) + \lambda \log\pi(a|s))^2 \\
        L_Q &= \tfrac12 \textstyle\sum_i E\, (Q_i(s, a) - r - \gamma (1 - d)\, \hat V(s'))^2

    The first is c KL(pi || pi_k) with the entropy linearised at pi_k, the proximal policy: that of the last multiple of
    `refresh_every` training steps; mu and sigma are those before the tanh. With c = lambda it is SAC with a fixed
    temperature and a value network. The actor's loss is that of manantomar/Mirror-Descent-Policy-Optimization.
    That code also keeps a copy of Q_1 from the same step, and has a variant with Tsallis' logarithm: neither is here.
    The factors of a half are ours, and nothing to Adam.
    """

    name = "mdpo_off"
    Config = MDPOOffPolicyConfig
    config: MDPOOffPolicyConfig

    def build(self) -> None:
        """Actor and the proximal one, value with its average, twin critics."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.actor: TanhGaussianActor = TanhGaussianActor(*sizes, c.hidden, log_std_range=c.log_std_range)
        self.proximal_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.value = Value(sizes[0], c.hidden)
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.critic = Critic(*sizes, c.hidden, 2)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of both critics to the average value that follows."""
        following = self.target_value(batch["next_observations"])
        target = td_target(batch["rewards"], batch["terminations"], following, self.config.discount)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "half_sum"), {"q": q}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance to the lower critic's value of the policy's action and the entropy's worth."""
        observations = batch["observations"]
        action, log_density = self.actor.draw(observations, noise["action"])
        q = ensembles.minimum(self.critic(torch.cat([observations, action], -1)))
        target = (q - self.config.entropy_weight * log_density).detach()
        value = self.value(observations)
        return 0.5 * (value - target).square().mean(), {"value": value, "entropy": -log_density}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The first critic's value of the policy's actions, and how far the policy is from the proximal one."""
        c, observations = self.config, batch["observations"]
        mean, log_std = self.actor(observations)
        unsquashed = mean + log_std.exp() * noise["action"]
        stretch = tanh_log_determinant(unsquashed)
        log_density = gaussian_log_density(unsquashed, mean, log_std) - stretch
        proximal_log_density = gaussian_log_density(unsquashed, *self.proximal_actor(observations)) - stretch
        q = self.critic.first(torch.cat([observations, torch.tanh(unsquashed)], -1))
        held = c.divergence_weight * log_density + (c.entropy_weight - c.divergence_weight) * proximal_log_density
        small = mean.square().mean() + log_std.square().mean()
        return (held - q).mean() + c.regularization * small, {"divergence": log_density - proximal_log_density}

    def updates(self) -> list[Update | Rule]:
        """All at the same parameters, then the value's average; now and then the policy becomes the proximal one."""
        adam, action = Adam(self.config.learning_rate), {"action": Noise("normal", self.spec.action_dim)}
        targets = {"target_value": ("value", self.config.target_rate)}
        return [
            Update(self.actor_loss, ("actor",), adam, noise=action),
            Update(self.critic_loss, ("critic",), adam, simultaneous=True),
            Update(self.value_loss, ("value",), adam, simultaneous=True, target_updates=targets, noise=action),
            Rule(every=self.config.refresh_every, target_updates={"proximal_actor": ("actor", 1.0)}),
        ]
