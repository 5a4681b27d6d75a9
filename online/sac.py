"""SAC: an actor that maximises return and entropy, soft critics, and a temperature that keeps the entropy."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import Source, Stores
from surefoot.core.engine.traits import Teams
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.temperature import FORMS, Temperature
from surefoot.online.base.agents import NStepConfig, OffPolicyAgent, OffPolicyConfig, bootstrapped, rows_of_steps
from surefoot.online.bonuses.attach import bonus_entries, bonus_of, counting, with_bonus
from surefoot.online.bonuses.config import BonusConfig


@dataclasses.dataclass(frozen=True)
class SoftConfig(OffPolicyConfig, EncoderConfig):
    """Settings of SAC and its relatives; the defaults are stable-baselines3's."""

    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, after each of their steps", range="[0, 1]")
    critic_loss_over: str = option(
        "half_sum",
        "reduction of the critics' losses: mean, sum or half_sum of the critics' mean squared errors",
        choices=ensembles.REDUCTIONS,
    )
    temperature: float = option(1.0, "temperature at the start: the weight of the policy's entropy", range="> 0")
    temperature_form: str = option("log", "form of the learned temperature: log, exp or softplus", choices=FORMS)
    learn_temperature: bool = option(True, "whether the temperature is learned")
    target_entropy: float | None = option(
        None,
        "entropy that the temperature aims at, in nats; null: target_entropy_per_dimension for each action dimension",
    )
    target_entropy_per_dimension: float = option(
        -1.0, "entropy that the temperature aims at, for each action dimension, in nats"
    )
    log_std_range: tuple[float, float] = option(
        (-20.0, 2.0), "range of the policy's log standard deviation", rising=True
    )
    actor_learning_rate: float = option(3e-4, "learning rate of the actor", range=">= 0")
    critic_learning_rate: float = option(3e-4, "learning rate of the critics", range=">= 0")
    temperature_learning_rate: float = option(3e-4, "learning rate of the temperature", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")


@dataclasses.dataclass(frozen=True)
class SACConfig(SoftConfig, NStepConfig, BonusConfig):
    """Settings of SAC: targets may be of several steps, and rewards may have a bonus."""


class SAC(OffPolicyAgent):
    r"""SAC of Haarnoja et al., "Soft Actor-Critic Algorithms and Applications".

    .. math::
        y &= r + \gamma (1 - d)\, (\min_i \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        L_Q &= \tfrac12 \textstyle\sum_i E\, (Q_i(s, a) - y)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)], \quad a \sim \pi(s) \\
        L_\alpha &= -\log\alpha\; E\, [\log\pi(a|s) + \bar H]

    With `n_step` above 1 the target has the rewards of n steps, without the entropies of the actions between, as in
    stable-baselines3. With more critics and critic steps it is `redq`. The preset `cleanrl` has CleanRL's rates, losses
    and ranges, but steps the actor once a step, where CleanRL steps it twice every two, and clamps log deviations,
    which CleanRL squashes.
    """

    name = "sac"
    teams = Teams(trains=True)
    Config: ClassVar[type] = SACConfig
    PRESETS = {  # noqa: RUF012
        "sb3": {},
        "zoo": {"initial_steps": 10_000},
        "cleanrl": {
            "initial_steps": 5_000,
            "critic_loss_over": "sum",
            "critic_learning_rate": 1e-3,
            "temperature_learning_rate": 1e-3,
            "temperature_form": "exp",
            "log_std_range": (-5.0, 2.0),
        },
    }
    config: SoftConfig

    def build(self) -> None:
        """Actor, twin critics with their targets, temperature."""
        c, sizes = self.config, (self.features, self.decision_dim)
        self.actor: TanhGaussianActor = TanhGaussianActor(*sizes, c.hidden, log_std_range=c.log_std_range)
        self.critic = Critic(*sizes, c.hidden, 2)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature, c.temperature_form)
        self.bonus = bonus_of(self)

    def annotate(self, batch: Batch) -> Batch:
        """Rows of several steps as one; rewards with the bonus."""
        return with_bonus(self, rows_of_steps(self, batch))

    def _replay(self, stores: Stores, rows: Source) -> Source:
        """As of any off-policy agent, with visits where a bonus is of them."""
        return counting(self, stores, super()._replay(stores, rows))

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        c = self.config
        return c.target_entropy_per_dimension * self.decision_dim if c.target_entropy is None else c.target_entropy

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of a next action."""
        following = batch["next_observations"]
        action, log_density = self.actor.draw(following, noise["next_action"])
        next_q = ensembles.minimum(self.target_critic(torch.cat([following, action], -1)))
        next_value = next_q - self.temperature() * log_density
        return bootstrapped(batch, next_value, self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of both critics to the targets."""
        target = self.targets(batch, noise)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, self.config.critic_loss_over), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and value of the policy's own actions, reparameterised."""
        observations = batch["observations"]
        action, log_density = self.actor.draw(observations, noise["action"])
        value = ensembles.minimum(self.critic(torch.cat([observations, action], -1)))
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy is above its target."""
        _, log_density = self.actor.draw(batch["observations"], noise["action"])
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def updates(self) -> list[Update | Rule]:
        """Critics and their average; then actor and temperature at the same parameters."""
        c, size = self.config, self.decision_dim
        critic, actor, temperature = (
            Adam(rate) for rate in (c.critic_learning_rate, c.actor_learning_rate, c.temperature_learning_rate)
        )
        targets, action = {"target_critic": ("critic", c.target_rate)}, {"action": Noise("normal", size)}
        found: list[Update | Rule] = [
            Update(
                self.critic_loss,
                ("critic",),
                critic,
                target_updates=targets,
                noise={"next_action": Noise("normal", size)},
            ),
            Update(self.actor_loss, ("actor",), actor, noise=action),
        ]
        if c.learn_temperature:
            found.append(Update(self.temperature_loss, ("temperature",), temperature, noise=action, simultaneous=True))
        return [*bonus_entries(self), *found]
