"""REDQ: SAC with ten critics, targets by the minimum of a random two, and twenty critic updates per step."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, pairs
from surefoot.core.nn.temperature import Temperature
from surefoot.online.base.agents import CounterfactualConfig, OffPolicyAgent
from surefoot.online.sac import SoftConfig


@dataclasses.dataclass(frozen=True)
class REDQConfig(SoftConfig, CounterfactualConfig):
    """Settings of REDQ; the defaults are those of watchernyu/REDQ, where they differ from SAC's."""

    initial_steps: int = 5_000
    critics: int = option(10, "number of critics, E")
    subset: float = option(
        2, "M: target critics, drawn anew for each critic step, of the target's minimum; 1.5: 1 or 2"
    )
    critic_steps: int = option(20, "critic steps per training step, each on a batch of its own", range=">= 1")
    critic_loss_over: str = "sum"
    entropy_backup: bool = option(True, "whether the target's value counts the entropy")
    actor_value: str = option(
        "mean", "value that the actor climbs: min or mean over all critics", choices=("min", "mean")
    )
    actor_rows: str = option(
        "last",
        "rows of a training step that the actor sees: last, those of the last critic step, or all",
        choices=("last", "all"),
    )
    temperature_at: str = option(
        "observations",
        "where the entropy is measured: at observations or at next_observations",
        choices=("observations", "next_observations"),
    )
    critic_hidden: tuple[int, ...] | None = option(None, "widths of the critics' hidden layers; null: as `hidden`")
    layer_norm_actor: bool = option(False, "layer norm in the actor's network")
    layer_norm_critic: bool = option(False, "layer norm in the critics' networks")
    layer_norm_epsilon: float = option(
        1e-5, "number that both layer norms add to the variance; flax's is 1e-6", range="[1e-12, 1]"
    )
    initialization: str = option("xavier", "initial weights")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(1 <= self.subset <= self.critics, name, "subset", self.subset, f"in 1 to {self.critics} critics")


class REDQ(OffPolicyAgent):
    r"""REDQ of Chen, Wang, Zhou and Ross, "Randomized Ensembled Double Q-Learning" (ICLR 2021).

    .. math::
        y &= r + \gamma (1 - d)\, (\min_{i \in S} \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad |S| = 2 \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2 \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \tfrac1{10} \textstyle\sum_i Q_i(s, a)]

    Each of the critic steps has a batch and a subset S of its own; actor and temperature learn from the last batch.
    The temperature is SAC's. The presets have the target entropies that MBPO and REDQ use for gymnasium's tasks.
    """

    name = "redq"
    Config: ClassVar[type] = REDQConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "hopper": {"target_entropy": -1.0},
        "halfcheetah": {"target_entropy": -3.0},
        "walker2d": {"target_entropy": -3.0},
        "ant": {"target_entropy": -4.0},
        "humanoid": {"target_entropy": -2.0},
    }
    config: REDQConfig

    def build(self) -> None:
        """Actor, critics with their targets, temperature."""
        c, sizes = self.config, (self.features, self.drawn_dim)
        start = c.initialization
        self.actor: TanhGaussianActor = TanhGaussianActor(
            *sizes, c.hidden, start, c.log_std_range, c.layer_norm_actor, norm_epsilon=c.layer_norm_epsilon
        )
        hidden = c.hidden if c.critic_hidden is None else c.critic_hidden
        self.critic = Critic(*sizes, hidden, c.critics, start, c.layer_norm_critic, c.layer_norm_epsilon)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature, c.temperature_form)

    @property
    def drawn_dim(self) -> int:
        """Numbers of an action that the actor draws and the critics value: all of them."""
        return self.spec.action_dim

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        c = self.config
        return c.target_entropy_per_dimension * self.drawn_dim if c.target_entropy is None else c.target_entropy

    def subset_noise(self) -> dict[str, Noise]:
        """What `members` reads."""
        return ensembles.subset_noise(self.config.critics, self.config.subset)

    def members(self, noise: dict[str, Tensor]) -> Tensor | None:
        """(M, E) the random subset of critics, the same for the whole batch; None where it is all of them."""
        return ensembles.subset(noise["subset"], self.config.subset) if "subset" in noise else None

    def asked(self, critic: Critic, noise: dict[str, Tensor], at: str) -> Callable[..., Tensor]:
        """The critics as the losses ask them for values of pairs `at`: "next_action", "stored" or "action"."""
        return critic

    def next_values(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) soft value of a next action, the lowest of a random few critics."""
        following = batch["next_observations"]
        action, log_density = self.actor.draw(following, noise["next_action"])
        critic = self.asked(self.target_critic, noise, "next_action")
        next_q = ensembles.lowest(critic, pairs(following, action), self.members(noise))
        return next_q - self.temperature() * log_density if self.config.entropy_backup else next_q

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of all critics to the targets."""
        c, next_values = self.config, self.next_values(batch, noise)
        target = td_target(batch["rewards"], batch["terminations"], next_values, c.discount)
        q = self.asked(self.critic, noise, "stored")(batch["observation_actions"])
        return ensembles.critic_loss(q, target, c.critic_loss_over), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and value of the policy's own actions, reparameterised."""
        observations = self.actors_rows(batch["observations"])
        noise = {name: self.actors_rows(numbers) for name, numbers in noise.items()}
        action, log_density = self.actor.draw(observations, noise["action"])
        q = self.asked(self.critic, noise, "action")(torch.cat([observations, action], -1))
        value = ensembles.minimum(q) if self.config.actor_value == "min" else q.mean(0)
        return (self.temperature() * log_density - value).mean(), {"entropy": -log_density}

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy is above its target."""
        observations = self.actors_rows(batch[self.config.temperature_at])
        _, log_density = self.actor.draw(observations, self.actors_rows(noise["action"]))
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def actors_rows(self, values: Tensor) -> Tensor:
        """Of (B, ...) rows of a training step, those that the actor learns from."""
        steps = self.config.critic_steps
        every = steps == 1 or self.config.actor_rows == "all"
        return values if every else values[-(values.shape[0] // steps) :]

    def updates(self) -> list[Update | Rule]:
        """Critics, each step with its target average; then actor and temperature at the same parameters."""
        c, size = self.config, self.drawn_dim
        rows = self.batch_size * c.critic_steps
        action = {"action": Noise("normal", size)}
        critic = Update(
            self.critic_loss,
            ("critic",),
            Adam(c.critic_learning_rate),
            repeat=c.critic_steps,
            rows=self.batch_size,
            target_updates={"target_critic": ("critic", c.target_rate)},
            noise={"next_action": Noise("normal", size), **self.subset_noise()},
        )
        actor = Update(self.actor_loss, ("actor",), Adam(c.actor_learning_rate), rows=rows, noise=action)
        if not c.learn_temperature:
            return [critic, actor]
        adam = Adam(c.temperature_learning_rate)
        return [
            critic,
            actor,
            Update(self.temperature_loss, ("temperature",), adam, rows=rows, noise=action, simultaneous=True),
        ]
