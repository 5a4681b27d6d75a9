"""Robust IQL: IQL that survives corrupted data, by normalisation, Huber's loss and a quantile of critics."""

from __future__ import annotations

import copy
import dataclasses

from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.losses.value_learning import (
    advantage_weights,
    expectile_loss,
    huber_loss,
    linear_quantile,
    td_target,
)
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.offline.edac import STARTS


@dataclasses.dataclass(frozen=True)
class RIQLConfig(HistoryConfig):
    """Settings of RIQL; the defaults are the authors' shared ones."""

    sigma: float = option(
        1.0, "the Huber loss turns linear at 1 / sigma^2: a large sigma is near absolute error", range="> 0"
    )
    quantile: float = option(0.25, "quantile of the K target critics that stands for Q, alpha", range="[0, 1]")
    critics: int = option(5, "number of critics, K", range=">= 1")
    expectile: float = option(0.7, "tau of the value loss", range="(0, 1)")
    temperature: float = option(3.0, "beta: multiplies the advantage")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the targets' average, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate; the actor's falls to 0 along a cosine", range=">= 0")
    target_low: float = option(-100.0, "TD targets are clipped to [low, high]: in the authors' code, not in the paper")
    target_high: float = option(1000.0, "greatest TD target")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    initialization: str = option(
        "edac", "initial weights of the critics; corl: the authors', whose first layer starts smaller", choices=STARTS
    )
    normalization: str = option(
        "stacked",
        "normalization of observations: stacked: statistics of the corrupted observations and next observations",
        choices=NORMALIZATIONS,
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        low, high = self.target_low, self.target_high
        require(low < high, "riql", "target_low", low, f"below target_high, {high:g}")


class RIQL(Agent):
    r"""RIQL of Yang et al., "Towards Robust Offline RL under Diverse Data Corruption" (ICLR 2024).

    .. math::
        Q_\alpha(s, a) &= \alpha\text{-quantile of } \hat Q_1 ... \hat Q_K \\
        L_V &= E\, L_2^\tau(Q_\alpha(s, a) - V(s)) \\
        L_Q &= E \textstyle\frac{1}{K}\sum_i \ell_H^{1/\sigma^2}(\mathrm{clip}(r + \gamma (1 - d) V(s')) - Q_i(s, a)) \\
        L_\pi &= E \min(e^{\beta (Q_\alpha(s, a) - V(s))}, 100) \, \| \pi(s) - a \|^2

    As in the authors' code: a deterministic actor, no reward scaling, all losses at the same old parameters
    (CORL's order), and their tuned numbers are sigma, not the paper's transition point delta = 1 / sigma^2.
    """

    name = "riql"
    Config = RIQLConfig
    PRESETS = {"shared": {}}  # noqa: RUF012
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    config: RIQLConfig
    actor: DeterministicActor

    def build(self) -> None:
        """Value, K critics with targets, deterministic actor."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.value = Value(sizes[0], c.hidden)
        self.critic = Critic(*sizes, c.hidden, c.critics, c.initialization)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = DeterministicActor(*sizes, c.hidden)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Normalise observations by the statistics of the data as it is, corruption included."""
        return prepare(self, dataset, normalization=self.config.normalization)

    def annotate(self, batch: Batch) -> Batch:
        """Add the quantile of the target critics, which two losses read."""
        q = self.target_critic(batch["observation_actions"])
        quantile = linear_quantile(q, self.config.quantile)
        return {**batch, "target_q": quantile, "target_spread": ensembles.spread(q)}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V(s) on the quantile of the target critics."""
        value = self.value(batch["observations"])
        advantage = batch["target_q"] - value
        loss = expectile_loss(advantage, self.config.expectile).mean()
        return loss, {"value": value, "advantage": advantage, "target_spread": batch["target_spread"]}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Huber's loss of each critic against the same clipped target."""
        c = self.config
        next_value = self.value(batch["next_observations"])
        target = td_target(batch["rewards"], batch["terminations"], next_value, c.discount)
        q = self.critic(batch["observation_actions"])
        return huber_loss(target.clamp(c.target_low, c.target_high) - q, c.sigma**-2).mean(), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance to the data's actions, summed over dimensions, weighted by exp(advantage)."""
        advantage = batch["target_q"] - self.value(batch["observations"])
        weight = advantage_weights(advantage, self.config.temperature)
        error = self.actor(batch["observations"]) - batch["actions"]
        return (weight * error.square().sum(-1)).mean(), {"weight": weight}

    def updates(self) -> list[Update]:
        """All three at the same parameters, then the targets' average."""
        c = self.config
        adam = Adam(c.learning_rate)
        targets = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.value_loss, ("value",), adam),
            Update(self.critic_loss, ("critic",), adam, simultaneous=True, target_updates=targets),
            Update(self.actor_loss, ("actor",), Adam(c.learning_rate, schedule="cosine"), simultaneous=True),
        ]
