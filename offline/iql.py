"""Implicit Q-learning: values of the best actions in the data, without ever asking for another action's value."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from surefoot.core.actors.heads import Actor, DeterministicActor, GaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.pointwise import squared_difference
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.losses.value_learning import advantage_weights, expectile_loss, td_target
from surefoot.core.nn.networks import Critic, Value
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare


@dataclasses.dataclass(frozen=True)
class IQLConfig(EncoderConfig, HistoryConfig):
    """Settings of IQL; the defaults are the official ones for Gym-MuJoCo, but that observations are normalised."""

    expectile: float = option(
        0.7, "tau of the value loss; nearer 1 is nearer the best action in the data", range="(0, 1)"
    )
    temperature: float = option(3.0, "beta: multiplies the advantage, so it is an inverse temperature", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, every step", range="[0, 1]")
    learning_rate: float = option(
        3e-4, "learning rate of all three networks; the actor's falls to 0 along a cosine", range=">= 0"
    )
    actor_schedule: str = option("cosine", "schedule of the actor's learning rate: cosine or constant")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    actor: str = option(
        "gaussian", "kind of the policy: gaussian or deterministic", choices=("gaussian", "deterministic")
    )
    log_std_min: float = option(-5.0, "least log standard deviation of the Gaussian actor", range="<= 2")
    dropout: float = option(0.0, "dropout of the actor's hidden units", range="[0, 1)")
    initialization: str = option("orthogonal", "initial weights: orthogonal (official) or torch (CORL)")
    order: str = option(
        "sequential",
        "sequential: actor and critic see the new value (official); together: the old (CORL)",
        choices=("sequential", "together"),
    )
    critic_weight: float = option(1.0, "weight of each critic's squared error; CORL has 0.5")
    rewards: str = option("return_range", "scaling of rewards", choices=REWARDS)
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class IQL(Agent):
    r"""IQL of Kostrikov, Nair and Levine (ICLR 2022).

    .. math::
        L_V &= E\, L_2^\tau(\min_i \hat Q_i(s, a) - V(s)) \\
        L_Q &= E \textstyle\sum_i (r + \gamma (1 - d) V(s') - Q_i(s, a))^2 \\
        L_\pi &= -E \min(e^{\beta (\min_i \hat Q_i(s, a) - V(s))}, 100) \log \pi(a | s)

    Official code and CORL differ, and the paper does not say: officially the value is stepped first and
    actor and critic see the new value; in CORL all three see the old one. The default is the former and
    the preset `corl` the latter, with CORL's initialization. Observations are normalised in both; the preset
    `official` leaves them as they are, as the authors' code does.
    """

    name = "iql"
    Config: ClassVar[type] = IQLConfig
    row_separable = True
    PRESETS = {  # noqa: RUF012
        "official": {"normalization": "none"},
        "corl": {
            "order": "together",
            "initialization": "torch",
            "critic_weight": 0.5,
            "log_std_min": -20.0,
            "rewards": "none",
            "normalization": "observations",
        },
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: IQLConfig

    def build(self) -> None:
        """Value, twin critics with targets, actor."""
        c, spec = self.config, self.spec
        sizes = (self.features, spec.action_dim)
        self.value = Value(self.features, c.hidden, c.initialization)
        self.critic = Critic(*sizes, c.hidden, 2, c.initialization)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor: Actor
        if c.actor == "gaussian":
            self.actor = GaussianActor(*sizes, c.hidden, c.initialization, (c.log_std_min, 2.0))
        else:
            self.actor = DeterministicActor(*sizes, c.hidden, c.initialization)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)

    def annotate(self, batch: Batch) -> Batch:
        """Add min Q of the target critics at the data's actions, which two losses read."""
        return {**batch, "target_q": self.target_critic(batch["observation_actions"]).amin(0)}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V(s) on the target critics' minimum."""
        value = self.value(batch["observations"])
        advantage = batch["target_q"] - value
        loss = expectile_loss(advantage, self.config.expectile).mean()
        return loss, {"value": value, "advantage": advantage}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against V(s')."""
        next_value = self.value(batch["next_observations"])
        target = td_target(batch["rewards"], batch["terminations"], next_value, self.config.discount)
        q = self.critic(batch["observation_actions"])
        loss = self.config.critic_weight * squared_difference(q, target).mean(-1).sum()
        return loss, {"q": q}

    def gaussian_actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, weighted by exp(advantage)."""
        weight = self._weights(batch)
        assert isinstance(self.actor, GaussianActor)
        density = self.actor.log_density(batch["observations"], batch["actions"], masks=noise.get("dropout"))
        return -(weight * density).mean(), {"weight": weight}

    def deterministic_actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance to the data's actions, summed over dimensions, weighted by exp(advantage)."""
        weight = self._weights(batch)
        error = self.actor(batch["observations"], noise.get("dropout")) - batch["actions"]
        return (weight * error.square().sum(-1)).mean(), {"weight": weight}

    def _weights(self, batch: Batch) -> Tensor:
        advantage = batch["target_q"] - self.value(batch["observations"])
        return advantage_weights(advantage, self.config.temperature)

    def updates(self) -> Sequence[Update | Rule]:
        """Value, actor, critic one after the other (official), or all three at the same parameters (CORL)."""
        c = self.config
        together = c.order == "together"
        adam = Adam(c.learning_rate)
        actor_adam = Adam(c.learning_rate, schedule=c.actor_schedule)
        keep = {"dropout": Noise("keep", sum(c.hidden), 1 - c.dropout)} if c.dropout > 0 else {}
        actor_loss = self.gaussian_actor_loss if c.actor == "gaussian" else self.deterministic_actor_loss
        targets = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.value_loss, ("value",), adam),
            Update(actor_loss, ("actor",), actor_adam, simultaneous=together, noise=keep),
            Update(self.critic_loss, ("critic",), adam, simultaneous=together, target_updates=targets),
        ]
