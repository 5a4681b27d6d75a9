"""Discrete CQL: double DQN on fixed data, the values of choices pushed down wherever the data has others."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import GreedyActor, highest
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import Requires
from surefoot.core.losses.value_learning import huber_loss, td_target
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare


@dataclasses.dataclass(frozen=True)
class DiscreteCQLConfig(EncoderConfig):
    """Settings of discrete CQL; with `cql_weight` 0 it is DQN from data."""

    cql_weight: float = option(1.0, "weight of the conservative term, in rewards; 0: double DQN alone", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the target network at each training step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    max_gradient_norm: float | None = option(
        10.0, "largest norm of the gradient, which is scaled down to it; null: as it is", range="> 0"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class DiscreteCQL(Agent):
    r"""CQL(H) of Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (NeurIPS 2020), equation 4.

    .. math::
        y &= r + \gamma (1 - d)\, \hat Q(s', a^*), \quad a^* = \arg\max_a Q(s', a) \\
        L &= E\, h(Q(s, a) - y) + \alpha\, E\, [\log \textstyle\sum_{a'} e^{Q(s, a')} - Q(s, a)],
        \quad h(x) = \tfrac12 x^2 \text{ for } |x| < 1, \text{ else } |x| - \tfrac12

    The sum over choices is exact. The first term is that of double DQN (van Hasselt, Guez and Silver, 2016), where the
    paper's experiments with choices have QR-DQN's. The policy that leaves is greedy.
    """

    name = "discrete_cql"
    Config: ClassVar[type] = DiscreteCQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"dqn": {"cql_weight": 0.0}}
    requires = Requires(discrete=True, continuous=False)
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: DiscreteCQLConfig

    def build(self) -> None:
        """Values of all choices, and their target."""
        values = GreedyActor(self.features, self.spec.action_dim, self.config.hidden)
        self.critic: GreedyActor = values
        self.target_critic = copy.deepcopy(values).requires_grad_(False)

    @property
    def actor(self) -> GreedyActor:
        """The greedy policy."""
        return self.critic

    def prepare(self, dataset: Dataset) -> Dataset:
        """Normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization)

    def targets(self, batch: Batch) -> Tensor:
        """(B,) reward and the target's value of the choice that the values prefer next."""
        following = batch["next_observations"]
        best = highest(self.critic(following))
        next_values = (self.target_critic(following) * best).sum(-1)
        return td_target(batch["rewards"], batch["terminations"], next_values, self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Huber's loss of the TD error, and how far the soft maximum over all choices is above the data's."""
        values = self.critic(batch["observations"])
        q = (values * batch["actions"]).sum(-1)
        gap = torch.logsumexp(values, -1) - q
        loss = huber_loss(q - self.targets(batch), 1.0) + self.config.cql_weight * gap
        return loss.mean(), {"q": q, "cql_gap": gap}

    def updates(self) -> list[Update]:
        """The values, then their target."""
        c = self.config
        adam = Adam(c.learning_rate, max_gradient_norm=c.max_gradient_norm)
        return [
            Update(self.critic_loss, ("critic",), adam, target_updates={"target_critic": ("critic", c.target_rate)})
        ]
