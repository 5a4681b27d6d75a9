"""IDQL: a diffusion model clones the data, and of some actions that it draws IQL's critics choose."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import decisions, in_chunks
from surefoot.core.actors.diffusion import DiffusionActor, Schedule
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import Vision, WarmStart
from surefoot.core.losses.value_learning import expectile_loss
from surefoot.core.nn.networks import Critic, Value
from surefoot.core.nn.noise_networks import ResidualNoise
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class IDQLConfig(EncoderConfig, HistoryConfig):
    """Settings of IDQL; the defaults are those published for Gym-MuJoCo."""

    expectile: float = option(0.7, "tau of the value loss; .9 in mazes", range="(0, 1)")
    samples: int = option(64, "N actions of which the best by the target critics acts", range=">= 1")
    diffusion_steps: int = option(5, "steps of diffusion, T", range=">= 1")
    chunk: int = option(1, "C: actions that are decided at once", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, every step", range="[0, 1]")
    average_rate: float = option(0.001, "rate of the noise network's average, which acts", range="[0, 1]")
    learning_rate: float = option(
        3e-4, "learning rate of all networks; the noise network's falls to 0 along a cosine", range=">= 0"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of values and critics")
    width: int = option(256, "width of the noise network")
    blocks: int = option(3, "blocks of the noise network")
    dropout: float = option(0.1, "dropout of the noise network", range="[0, 1)")
    rewards: str = option("return_range", "scaling of rewards; minus_one for mazes", choices=REWARDS)
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)


class IDQL(ChunkedAgent):
    r"""IDQL of Hansen-Estruch et al., "Implicit Q-Learning as an Actor-Critic Method with Diffusion Policies" (2023).

    .. math::
        L_\epsilon &= E\, \|\epsilon_\theta(s, a_t, t) - \epsilon\|^2 \\
        L_V &= E\, L_2^\tau(\min_i \hat Q_i(s, a) - V(s)), \quad
        L_Q = E \textstyle\sum_i (r + \gamma (1 - d) V(s') - Q_i(s, a))^2 \\
        \pi(s) &= \arg\max_{a_n} \min_i \hat Q_i(s, a_n), \quad a_n \sim \mu(\cdot | s)

    One after the other, as in the official code: noise network, value, critics with the new value; the averaged noise
    network draws, and the target critics choose. The distance is summed over the numbers of an action. The paper also
    draws among the N by the implicit policy's weights, tau where Q > V and 1 - tau elsewhere; the code's evaluation,
    and ours, takes the best. Networks are those of the official code's first learner: its latest revision has a layer
    norm before the value's first layer, Xavier's weights, swish and wider embeddings in the noise network, and batches
    of 512.
    """

    name = "idql"
    Config: ClassVar[type] = IDQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "gym": {},
        "antmaze": {"expectile": 0.9, "rewards": "minus_one"},
    }
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    warm_start = WarmStart(networks=("noise_network", "normalizer"))
    vision = Vision(annotates=True)
    config: IDQLConfig

    def build(self) -> None:
        """Value, critics and their targets; the noise network and its average."""
        c, size, width = self.config, self.decision_dim, self.features
        self.schedule = Schedule.vp(c.diffusion_steps)
        self.value = Value(width, c.hidden, "orthogonal")
        self.critic = Critic(width, size, c.hidden, 2, "orthogonal")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.noise_network = ResidualNoise(width, size, c.width, c.blocks)
        self.average_noise_network = copy.deepcopy(self.noise_network).requires_grad_(False)

    @property
    def actor(self) -> Actor:
        """What acts: the best of N actions of the averaged network, by the target critics."""
        c = self.config
        size = self.decision_dim
        head = DiffusionActor(self.average_noise_network, self.schedule, size, self.target_critic, c.samples, "highest")
        return in_chunks(head, c.chunk, self.spec.action_dim)

    def annotate(self, batch: Batch) -> Batch:
        """The chunk, its target's parts, and the lower target critic there."""
        found = decisions(batch, self.config.discount, self.config.chunk)
        return {**found, "target_q": self.target_critic(found["observation_actions"]).amin(0)}

    def noise_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the noise in noisy actions, summed over their numbers that are in the data."""
        steps = self.schedule.step_of(noise["step"].squeeze(-1))
        noisy = self.schedule.noisy(batch["actions"], noise["noise"], steps)
        predicted = self.noise_network(noisy, batch["observations"], steps, noise.get("dropout"))
        return (batch["mask"] * (predicted - noise["noise"]).square()).sum(-1).mean(), {}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V(s) on the lower target critic."""
        value = self.value(batch["observations"])
        loss = (batch["valid"] * expectile_loss(batch["target_q"] - value, self.config.expectile)).mean()
        return loss, {"value": value}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against the new V(s')."""
        target = batch["rewards"] + batch["reach"] * self.value(batch["next_observations"])
        q = self.critic(batch["observation_actions"])
        return (batch["valid"] * (q - target).square()).mean(-1).sum(), {"q": q}

    def updates(self) -> list[Update]:
        """Noise network, value, critics, each after the other."""
        c, adam = self.config, Adam(self.config.learning_rate)
        drawn = {"noise": Noise("normal", self.decision_dim), "step": Noise("uniform", 1)}
        if c.dropout > 0 and self.noise_network.dropped > 0:
            drawn["dropout"] = Noise("keep", self.noise_network.dropped, 1 - c.dropout)
        average = {"average_noise_network": ("noise_network", c.average_rate)}
        falling = Adam(c.learning_rate, schedule="cosine")
        return [
            Update(self.noise_loss, ("noise_network",), falling, target_updates=average, noise=drawn),
            Update(self.value_loss, ("value",), adam),
            Update(self.critic_loss, ("critic",), adam, target_updates={"target_critic": ("critic", c.target_rate)}),
        ]
