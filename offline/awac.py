"""AWAC: an actor-critic whose policy clones the data's actions by their advantage over its own."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.heads import UnboundedGaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.losses.value_learning import advantage_weights, td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, pairs
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare


@dataclasses.dataclass(frozen=True)
class AWACConfig(HistoryConfig):
    """Settings of AWAC; the defaults are CORL's for Gym-MuJoCo."""

    temperature: float = option(
        3.0, "1 / lambda: multiplies the advantage, so it is an inverse temperature", range=">= 0"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate of critics and actor", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers")
    log_std_range: tuple[float, float] = option(
        (-20.0, 2.0),
        "range of the log standard deviation of the policy, whose deviation does not depend on the state",
        rising=True,
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)


class AWAC(Agent):
    r"""AWAC of Nair, Gupta, Dalal and Levine, "AWAC: Accelerating Online RL with Offline Datasets" (2020).

    .. math::
        L_Q &= E \textstyle\sum_i (r + \gamma (1 - d) \min_j \hat Q_j(s', a') - Q_i(s, a))^2, \quad a' \sim \pi(s') \\
        L_\pi &= -E \min(e^{A / \lambda}, 100) \log \pi(a | s), \quad
            A = \min_i Q_i(s, a) - \min_i Q_i(s, a_\pi), \quad a_\pi \sim \pi(s)

    As in CORL: the critics first, whose new values the advantage reads; a normal policy that is not squashed, samples
    clipped to the bounds; weights that are not divided by their sum over the batch, which the authors' code does.
    """

    name = "awac"
    Config: ClassVar[type] = AWACConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "corl": {},
        "antmaze": {"temperature": 10.0, "rewards": "minus_one"},
        "adroit": {"temperature": 10.0},
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: AWACConfig

    def build(self) -> None:
        """Twin critics with targets, actor."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.critic = Critic(*sizes, c.hidden, 2)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor: UnboundedGaussianActor = UnboundedGaussianActor(
            *sizes, c.hidden, log_std_range=c.log_std_range, activation="relu"
        )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against an action of the policy."""
        following = batch["next_observations"]
        action = self.actor.act(following, noise["next_action"]).clamp(-1, 1)
        next_q = ensembles.minimum(self.target_critic(pairs(following, action)))
        target = td_target(batch["rewards"], batch["terminations"], next_q, self.config.discount)
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "sum"), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, weighted by exp of their advantage over the policy's."""
        seen = batch["observations"]
        own = self.actor.act(seen, noise["action"]).clamp(-1, 1).detach()
        advantage = ensembles.minimum(self.critic(batch["observation_actions"]))
        advantage = advantage - ensembles.minimum(self.critic(pairs(seen, own)))
        weight = advantage_weights(advantage, self.config.temperature)
        density = self.actor.density_of(self.actor(seen), batch["actions"])
        return -(weight * density).mean(), {"weight": weight, "advantage": advantage}

    def updates(self) -> list[Update]:
        """Critics and their average, then the actor."""
        c, size = self.config, self.spec.action_dim
        adam, targets = Adam(c.learning_rate), {"target_critic": ("critic", c.target_rate)}
        return [
            Update(
                self.critic_loss,
                ("critic",),
                adam,
                noise={"next_action": Noise("normal", size)},
                target_updates=targets,
            ),
            Update(self.actor_loss, ("actor",), adam, noise={"action": Noise("normal", size)}),
        ]
