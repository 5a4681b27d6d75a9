"""TD3+BC: TD3 whose actor is also pulled to the data's actions."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Vision
from surefoot.core.losses.value_learning import smoothed_actions, td_target
from surefoot.core.nn.networks import Critic
from surefoot.data.dataset import Dataset
from surefoot.data.decision_source import decisions_of
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare


@dataclasses.dataclass(frozen=True)
class TD3BCConfig(EncoderConfig, HistoryConfig):
    """Settings of TD3+BC; the defaults are the paper's."""

    alpha: float = option(2.5, "weight of Q against cloning; 0 is behaviour cloning", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(
        0.005, "rate of the averages of critics and actor, only when the actor is stepped", range="[0, 1]"
    )
    target_noise: float = option(0.2, "standard deviation added to the target actor's action", range=">= 0")
    target_noise_clip: float = option(0.5, "bound of the target actor's noise", range=">= 0")
    actor_every: int = option(2, "critic steps per actor step", range=">= 1")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)


class TD3BC(Agent):
    r"""TD3+BC of Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (NeurIPS 2021).

    .. math::
        L_Q &= E \textstyle\sum_i (r + \gamma (1 - d) \min_j \hat Q_j(s', \hat\pi(s') + \epsilon) - Q_i(s, a))^2 \\
        L_\pi &= -\lambda\, E\, Q_1(s, \pi(s)) + E\, \| \pi(s) - a \|^2 / A,
        \quad \lambda = \alpha / E |Q_1(s, \pi(s))|

    The distance is averaged over action dimensions, as in the authors' code.
    """

    name = "td3bc"
    Config = TD3BCConfig
    PRESETS = {"paper": {}}  # noqa: RUF012
    vision = Vision(histories=True)
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    config: TD3BCConfig

    def build(self) -> None:
        """Twin critics and actor, with targets of both."""
        sizes = (self.features, self.spec.action_dim)
        self.critic = Critic(*sizes, self.config.hidden, 2)
        self.actor: DeterministicActor = DeterministicActor(*sizes, self.config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows, with as many observations as are read."""
        return {MAIN: decisions_of(stores, 1, history=self.frames)}

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against the target policy, smoothed by clipped noise."""
        c = self.config
        action = self.target_actor(batch["next_observations"])
        next_action = smoothed_actions(action, noise["target_noise"], c.target_noise, c.target_noise_clip)
        next_q = self.target_critic(torch.cat([batch["next_observations"], next_action], -1)).amin(0)
        target = td_target(batch["rewards"], batch["terminations"], next_q, c.discount)
        q = self.critic(batch["observation_actions"])
        return (q - target).square().mean(-1).sum(), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Minus the normalised value of the policy's actions, plus their distance to the data's."""
        action = self.actor(batch["observations"])
        q = self.critic.first(torch.cat([batch["observations"], action], -1))
        scale = self.config.alpha / q.abs().mean().detach()
        cloning = (action - batch["actions"]).square().mean()
        return cloning - scale * q.mean(), {"cloning": cloning}

    def updates(self) -> list[Update]:
        """Critics at every step; actor and targets at every second."""
        c = self.config
        adam = Adam(c.learning_rate)
        targets = {"target_critic": ("critic", c.target_rate), "target_actor": ("actor", c.target_rate)}
        smoothing = {"target_noise": Noise("normal", self.spec.action_dim)}
        return [
            Update(self.critic_loss, ("critic",), adam, noise=smoothing),
            Update(self.actor_loss, ("actor",), adam, every=c.actor_every, target_updates=targets),
        ]
