"""TD3: a deterministic actor, twin critics, smoothed target actions, delayed policy steps."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.sources import Source, Stores
from surefoot.core.engine.traits import Teams
from surefoot.core.losses.value_learning import smoothed_actions
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.online.base.agents import NStepConfig, OffPolicyAgent, bootstrapped, rows_of_steps
from surefoot.online.bonuses.attach import bonus_entries, bonus_of, counting, with_bonus
from surefoot.online.bonuses.config import BonusConfig


@dataclasses.dataclass(frozen=True)
class TD3Config(NStepConfig, BonusConfig):
    """Settings of TD3; the defaults are CleanRL's, which are the paper's with one learning rate."""

    initial_steps: int = 25_000
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(
        0.005, "rate of the averages of critics and actor, only when the actor is stepped", range="[0, 1]"
    )
    exploration_noise: float = option(
        0.1, "standard deviation added to actions in [-1, 1] while training", range=">= 0"
    )
    target_noise: float = option(0.2, "standard deviation added to the target actor's action", range=">= 0")
    target_noise_clip: float = option(0.5, "bound of the target actor's noise", range=">= 0")
    actor_every: int = option(2, "critic steps per actor step", range=">= 1")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")


class TD3(OffPolicyAgent):
    r"""TD3 of Fujimoto, van Hoof and Meger, "Addressing Function Approximation Error in Actor-Critic Methods".

    .. math::
        L_Q &= E \textstyle\sum_i (r + \gamma (1 - d) \min_j \hat Q_j(s', \hat\pi(s') + \epsilon) - Q_i(s, a))^2,
        \quad \epsilon = \mathrm{clip}(N(0, \sigma^2), \pm c) \\
        L_\pi &= -E\, Q_1(s, \pi(s))

    With `n_step` above 1 the target has the rewards of n steps.
    """

    name = "td3"
    teams = Teams(trains=True)
    Config = TD3Config
    PRESETS = {  # noqa: RUF012
        "cleanrl": {},
        "sb3": {"learning_rate": 1e-3, "hidden": (400, 300), "initial_steps": 100, "exploration_noise": 0.0},
        "zoo": {"learning_rate": 1e-3, "hidden": (400, 300), "initial_steps": 10_000},
        "zoo-pendulum": {"learning_rate": 1e-3, "hidden": (400, 300), "initial_steps": 10_000, "discount": 0.98},
    }
    config: TD3Config

    def build(self) -> None:
        """Twin critics and actor, with targets of both."""
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.critic = Critic(*sizes, self.config.hidden, 2)
        self.actor: DeterministicActor = DeterministicActor(*sizes, self.config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.bonus = bonus_of(self)

    def annotate(self, batch: Batch) -> Batch:
        """Rows of several steps as one; rewards with the bonus."""
        return with_bonus(self, rows_of_steps(self, batch))

    def _replay(self, stores: Stores, rows: Source) -> Source:
        """As of any off-policy agent, with visits where a bonus is of them."""
        return counting(self, stores, super()._replay(stores, rows))

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) actions in [-1, 1] with normal noise added."""
        return (self.actor(observations) + self.config.exploration_noise * noise).clamp(-1, 1)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against the target policy, smoothed by clipped noise."""
        c = self.config
        action = self.target_actor(batch["next_observations"])
        next_action = smoothed_actions(action, noise["target_noise"], c.target_noise, c.target_noise_clip)
        next_q = self.target_critic(torch.cat([batch["next_observations"], next_action], -1)).amin(0)
        target = bootstrapped(batch, next_q, c.discount)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "sum"), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Minus the first critic's value of the policy's actions."""
        action = self.actor(batch["observations"])
        return -self.critic.first(torch.cat([batch["observations"], action], -1)).mean(), {}

    def updates(self) -> list[Update | Rule]:
        """Critics at every step; actor and targets at every second."""
        c = self.config
        adam = Adam(c.learning_rate)
        targets = {"target_critic": ("critic", c.target_rate), "target_actor": ("actor", c.target_rate)}
        smoothing = {"target_noise": Noise("normal", self.spec.action_dim)}
        return [
            *bonus_entries(self),
            Update(self.critic_loss, ("critic",), adam, noise=smoothing),
            Update(self.actor_loss, ("actor",), adam, every=c.actor_every, target_updates=targets),
        ]
