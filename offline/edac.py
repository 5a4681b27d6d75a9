"""SAC-N and EDAC: soft actor-critic from data, pessimistic by the minimum of many critics, which EDAC keeps diverse."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, algorithm_of, require
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.temperature import Temperature
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare

STARTS = ("edac", "corl")
"""How critics can start, of `surefoot.core.nn.networks.initialise`."""


@dataclasses.dataclass(frozen=True)
class EDACConfig(HistoryConfig):
    """Settings of EDAC; the defaults are the authors' for HalfCheetah and Walker2d."""

    critics: int = option(10, "number of critics, N", range=">= 1")
    diversity: float = option(
        1.0, "eta, weight of the critics' agreement on where a better action lies; 0 is SAC-N", range=">= 0"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the targets' average, every step", range="[0, 1]")
    temperature: float = option(1.0, "weight of the entropy at the start", range="> 0")
    target_entropy: float | None = option(
        None, "entropy that the temperature aims at, in nats; null: minus the number of action dimensions"
    )
    learning_rate: float = option(3e-4, "learning rate of everything", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers")
    log_std_range: tuple[float, float] = option(
        (-5.0, 2.0), "range of the log standard deviation of the policy, before the tanh", rising=True
    )
    initialization: str = option(
        "edac",
        "initial weights of the critics: edac (the authors'), or corl, whose first layer starts smaller",
        choices=STARTS,
    )
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        enough = self.critics >= 2 or self.diversity == 0
        require(enough, name, "critics", self.critics, ">= 2 where their diversity counts")


class EDAC(Agent):
    r"""EDAC of An, Moon, Kim and Song, "Uncertainty-Based Offline RL with Diversified Q-Ensemble" (NeurIPS 2021).

    .. math::
        y &= r + \gamma (1 - d)\, (\min_{i \le N} \hat Q_i(s', a') - \alpha \log\pi(a'|s')), \quad a' \sim \pi(s') \\
        L_Q &= \textstyle\sum_i E\, (Q_i(s, a) - y)^2
            + \eta\, \tfrac{1}{N - 1} E \sum_{i \ne j} \langle n_i, n_j \rangle, \quad
            n_i = \nabla_a Q_i(s, a) / |\nabla_a Q_i(s, a)| \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a)], \quad a \sim \pi(s) \\
        L_\alpha &= -\log\alpha\; E\, [\log\pi(a|s) + \bar H]

    As in the authors' code and CORL a step takes the temperature first, then the actor, then the critics, which see the
    new actor; and networks start with hidden biases of 0.1 and last layers near 0. The presets have N and eta of CORL's
    tables: hopper needs many critics, medium-expert data more diversity.
    """

    name = "edac"
    Config: ClassVar[type] = EDACConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "corl": {},
        "hopper": {"critics": 50},
        "medium-expert": {"diversity": 5.0},
        "maze2d": {"diversity": 0.1},
        "pen": {"critics": 20, "diversity": 10.0},
        "pen-human": {"critics": 20, "diversity": 1000.0},
        "adroit": {"critics": 50, "diversity": 200.0},
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: Any

    def build(self) -> None:
        """Actor, N critics with their targets, temperature."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.actor: TanhGaussianActor = TanhGaussianActor(*sizes, c.hidden, "edac", log_std_range=c.log_std_range)
        with torch.no_grad():
            for last in (self.actor.mlp.weights[-1], self.actor.mlp.biases[-1]):
                last.uniform_(-1e-3, 1e-3)
        self.critic = Critic(*sizes, c.hidden, c.critics, c.initialization)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(c.temperature)

    @property
    def target_entropy(self) -> float:
        """In nats, of actions in [-1, 1]."""
        wanted = self.config.target_entropy
        return -float(self.spec.action_dim) if wanted is None else float(wanted)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)

    def pessimistic(self, values: Tensor) -> Tensor:
        """(B,) what the policy maximises of (N, B) critics' values: their minimum."""
        return ensembles.minimum(values)

    def next_values(self, values: Tensor) -> Tensor:
        """What the critics' targets have of (N, B) next values: their minimum, (B,), the same for all critics."""
        return ensembles.minimum(values)

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Lowers the temperature where the policy's entropy is above its target."""
        _, log_density = self.actor.draw(batch["observations"], noise["entropy_action"])
        return self.temperature.loss(log_density, self.target_entropy), {"temperature": self.temperature()}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Entropy, weighted, and the pessimistic value of the policy's own actions, reparameterised."""
        action, log_density = self.actor.draw(batch["observations"], noise["action"])
        q = self.critic(torch.cat([batch["observations"], action], -1))
        loss = (self.temperature() * log_density - self.pessimistic(q)).mean()
        return loss, {"entropy": -log_density, "spread": ensembles.spread(q)}

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,), or (N, B) of critics with targets of their own: reward and soft value of a next action."""
        following = batch["next_observations"]
        action, log_density = self.actor.draw(following, noise["next_action"])
        next_q = self.next_values(self.target_critic(torch.cat([following, action], -1)))
        soft = next_q - self.temperature() * log_density
        return td_target(batch["rewards"], batch["terminations"], soft, self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of all critics, and how much they agree on where a better action lies."""
        target, eta = self.targets(batch, noise), self.config.diversity
        if eta == 0:
            q = self.critic(batch["observation_actions"])
            return ensembles.critic_loss(q, target, "sum"), {"q": q}
        q, gradients = self.critic.with_action_gradient(batch["observation_actions"], self.spec.action_dim)
        agreement = ensembles.diversity(gradients)
        return ensembles.critic_loss(q, target, "sum") + eta * agreement, {"q": q, "agreement": agreement}

    def updates(self) -> list[Update]:
        """Temperature, actor, critics, one after the other; then the targets' average."""
        c, size = self.config, self.spec.action_dim
        adam, targets = Adam(c.learning_rate), {"target_critic": ("critic", c.target_rate)}

        def own(name: str) -> dict[str, Noise]:
            return {name: Noise("normal", size)}

        return [
            Update(self.temperature_loss, ("temperature",), adam, noise=own("entropy_action")),
            Update(self.actor_loss, ("actor",), adam, noise=own("action")),
            Update(self.critic_loss, ("critic",), adam, noise=own("next_action"), target_updates=targets),
        ]


@dataclasses.dataclass(frozen=True)
class SACNConfig(EDACConfig):
    """Settings of SAC-N: EDAC's without the term of diversity, and so with more critics."""

    critics: int = option(
        10, "number of critics, N; enough for HalfCheetah, while Walker2d takes 20 and Hopper 200 to 500"
    )
    diversity: float = 0.0


class SACN(EDAC):
    """SAC-N of An, Moon, Kim and Song (NeurIPS 2021): EDAC without the term of diversity, so N alone is pessimistic."""

    name = "sac_n"
    Config: ClassVar[type] = SACNConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "corl": {},
        "walker2d": {"critics": 20},
        "hopper": {"critics": 200},
        "hopper-medium": {"critics": 500},
    }
