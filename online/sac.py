"""SAC: an actor that maximises return and entropy, soft critics, and a temperature that keeps the entropy."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from surefoot.core import ensembles
from surefoot.core.actors import TanhGaussianActor
from surefoot.core.agent import Adam, Batch, Metrics, Update, algorithm_of, require
from surefoot.core.features import EncoderConfig
from surefoot.core.networks import Critic, pairs
from surefoot.core.random import Noise
from surefoot.core.temperature import FORMS, Temperature
from surefoot.core.value_learning import td_target
from surefoot.online.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class SACConfig(OffPolicyConfig, EncoderConfig):
    """Settings of SAC; the defaults are stable-baselines3's."""

    discount: float = 0.99
    target_rate: float = 0.005  # of the critics, after each of their steps
    critics: int = 2  # E
    subset: float = 2  # M: target critics, drawn anew for each critic step, of the target's minimum; 1.5: 1 or 2
    subset_replacement: bool = False  # draw them with replacement, as zhouzypaul/wsrl does
    critic_steps: int = 1  # critic steps per training step, each on a batch of its own
    critic_loss_over: str = "half_sum"  # mean, sum or half_sum of the critics' mean squared errors
    entropy_backup: bool = True  # whether the target's value counts the entropy
    backup_actions: int = 1  # next actions that are drawn for a target, which takes the best of their values
    actor_value: str = "min"  # min or mean over all critics
    actor_rows: str = "last"  # of a training step's rows, the actor sees those of the last critic step, or all
    temperature: float = 1.0  # at the start
    temperature_form: str = "log"  # log, exp or softplus: see core.temperature
    temperature_at: str = "observations"  # the entropy is measured there, or at next_observations
    learn_temperature: bool = True
    target_entropy: float | None = None  # in nats; None: target_entropy_per_dimension for each action dimension
    target_entropy_per_dimension: float = -1.0
    log_std_range: tuple[float, float] = (-20.0, 2.0)  # of the policy's log standard deviation
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    critic_hidden: tuple[int, ...] | None = None  # of the critics, where it differs
    layer_norm_actor: bool = False
    layer_norm_critic: bool = False
    initialisation: str = "torch"

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        name = algorithm_of(self)
        require(1 <= self.subset <= self.critics, name, "subset", self.subset, f"in 1 to {self.critics} critics")
        whole = not self.subset_replacement or self.subset == int(self.subset)
        require(whole, name, "subset", self.subset, "a whole number with subset_replacement")
        require(self.critic_steps >= 1, name, "critic_steps", self.critic_steps, ">= 1")
        require(self.backup_actions >= 1, name, "backup_actions", self.backup_actions, ">= 1")
        alone = self.backup_actions == 1 or not self.entropy_backup
        require(alone, name, "backup_actions", self.backup_actions, "1, or entropy_backup false")
        require(self.temperature > 0, name, "temperature", self.temperature, "> 0")
        for field, known in (
            ("critic_loss_over", ensembles.REDUCTIONS),
            ("actor_value", ("min", "mean")),
            ("actor_rows", ("last", "all")),
            ("temperature_form", FORMS),
            ("temperature_at", ("observations", "next_observations")),
        ):
            require(getattr(self, field) in known, name, field, getattr(self, field), f"one of {', '.join(known)}")


class SAC(OffPolicyAgent):
    r"""SAC of Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", with an ensemble of critics.

    .. math::
        y &= r + \gamma (1 - d)\, (\min_{i \in S} \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        L_Q &= \tfrac12 \textstyle\sum_i E\, (Q_i(s, a) - y)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)], \quad a \sim \pi(s) \\
        L_\alpha &= -\log\alpha\; E\, [\log\pi(a|s) + \bar H]

    The random subset S of the critics, the mean over critics and several critic steps are REDQ's; `redq`, `rlpd` and
    `wsrl` are this agent with their settings. The preset `cleanrl` has CleanRL's rates, losses and ranges, but steps
    the actor once a step, where CleanRL steps it twice every two, and clamps log deviations, which CleanRL squashes.
    """

    name = "sac"
    Config = SACConfig
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
    config: SACConfig

    def build(self) -> None:
        """Actor, critics with their targets, temperature."""
        c, sizes = self.config, (self.features, self.spec.action_dim)
        start = c.initialisation
        self.actor: TanhGaussianActor = TanhGaussianActor(*sizes, c.hidden, start, c.log_std_range, c.layer_norm_actor)
        hidden = c.hidden if c.critic_hidden is None else c.critic_hidden
        self.critic = Critic(*sizes, hidden, c.critics, start, c.layer_norm_critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature, c.temperature_form)

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        c = self.config
        return c.target_entropy_per_dimension * self.spec.action_dim if c.target_entropy is None else c.target_entropy

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and soft value of a next action, or the best of some, valued by the lowest of some critics."""
        c, following = self.config, batch["next_observations"]
        members = ensembles.subset(noise["subset"], c.subset, c.subset_replacement) if "subset" in noise else None
        draws = noise["next_action"].unflatten(-1, (c.backup_actions, -1)).movedim(-2, 0)
        actions, log_densities = self.actor.sample(following, draws)
        next_q = ensembles.lowest(self.target_critic, pairs(following, actions), members)
        if c.entropy_backup:
            next_q = next_q - self.temperature() * log_densities
        return td_target(batch["rewards"], batch["terminations"], next_q.amax(0), c.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of all critics to the targets."""
        target = self.targets(batch, noise)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, self.config.critic_loss_over), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and value of the policy's own actions, reparameterised."""
        observations = self._actors_rows(batch["observations"])
        action, log_density = self.actor.sample(observations, self._actors_rows(noise["action"]))
        q = self.critic(torch.cat([observations, action], -1))
        value = ensembles.minimum(q) if self.config.actor_value == "min" else q.mean(0)
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy is above its target."""
        observations = self._actors_rows(batch[self.config.temperature_at])
        _, log_density = self.actor.sample(observations, self._actors_rows(noise["action"]))
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def _actors_rows(self, values: Tensor) -> Tensor:
        """Of (B, ...) rows of a training step, those that the actor learns from."""
        if self.config.critic_steps == 1 or self.config.actor_rows == "all":
            return values
        rows = values.shape[0] // self.config.critic_steps
        return values[-rows:]

    def updates(self) -> list[Update]:
        """Critics, each step with its target average; then actor and temperature at the same parameters."""
        c, size = self.config, self.spec.action_dim
        rows = self.batch_size * c.critic_steps
        next_noise = {
            "next_action": Noise("normal", c.backup_actions * size),
            **ensembles.subset_noise(c.critics, c.subset, c.subset_replacement),
        }
        action_noise = {"action": Noise("normal", size)}
        critic, actor, temperature = (
            Adam(rate) for rate in (c.critic_learning_rate, c.actor_learning_rate, c.temperature_learning_rate)
        )
        targets = {"target_critic": ("critic", c.target_rate)}
        updates = [
            Update(
                self.critic_loss,
                ("critic",),
                critic,
                repeat=c.critic_steps,
                rows=self.batch_size,
                then=targets,
                noise=next_noise,
            ),
            Update(self.actor_loss, ("actor",), actor, rows=rows, noise=action_noise),
        ]
        if c.learn_temperature:
            loss = self.temperature_loss
            updates.append(Update(loss, ("temperature",), temperature, rows=rows, noise=action_noise, together=True))
        return updates
