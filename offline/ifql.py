"""IFQL: a flow clones the data, and of some actions that it draws the one acts that IQL's critics like best."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.value_learning import expectile_loss
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, LayerNorm, Value
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class IFQLConfig(EncoderConfig, HistoryConfig):
    """Settings of IFQL; the defaults are the official ones."""

    expectile: float = option(0.9, "tau of the value loss; .95 on puzzle-3x3, .7 on humanoidmaze", range="(0, 1)")
    samples: int = option(32, "N actions of which the best by the critics acts", range=">= 1")
    chunk: int = option(1, "C: actions that are decided at once; 5 in manipulation", range=">= 1")
    flow_steps: int = option(10, "steps of the flow, K", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, which lags by one update", range="[0, 1]")
    critics: int = option(2, "number of critics", range=">= 1")
    aggregate: str = option(
        "min",
        "aggregate of the critics, for choosing and in the value's target: min or mean",
        choices=ensembles.AGGREGATES,
    )
    deviations: float = option(
        0.0, "with mean: standard deviations of the critics that are taken off it, in the target", range=">= 0"
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((512, 512, 512, 512), "widths of the hidden layers")
    layer_norm_actor: bool = option(False, "layer norm of the flow, after each activation, as the critics have them")
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        ensembles.check_aggregate("ifql", self.aggregate, self.deviations)


class IFQL(ChunkedAgent):
    r"""IFQL, the flow counterpart of IDQL, of Park, Li and Levine, "Flow Q-Learning" (ICML 2025).

    .. math::
        L_V &= E\, L_2^\tau(\min_i \hat Q_i(s, a) - V(s)) \\
        L_Q &= E \textstyle\sum_i (r + \gamma (1 - d) V(s') - Q_i(s, a))^2 \\
        \pi(s) &= \arg\max_{a_n} \min_i Q_i(s, a_n), \quad a_n = F(s, z_n), \quad z_n \sim \mathcal N(0, I)

    and the flow F clones the data (`core.losses.flow`). One optimiser steps all three networks, so that the critics see
    the old value; the target critics follow the critics from before the step. The present critics choose. The official
    sampler takes one observation at a time: given a batch of N rows it is silently wrong. Ours takes any number.
    """

    name = "ifql"
    Config: ClassVar[type] = IFQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: IFQLConfig

    def build(self) -> None:
        """The flow, the value, critics and their targets."""
        c, size, width = self.config, self.decision_dim, self.features
        norm: LayerNorm = "after" if c.layer_norm_actor else False
        self.velocity = PlainVelocity(width, size, c.hidden, velocity_layer_norm=norm)
        self.value = Value(width, c.hidden, "xavier", "after", activation="gelu_tanh")
        self.critic = Critic(width, size, c.hidden, c.critics, "xavier", "after", activation="gelu_tanh")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    @property
    def actor(self) -> Actor:
        """What acts: the best of N actions by the present critics."""
        c = self.config
        size = self.decision_dim
        chooser = FlowActor(
            self.velocity, size, c.flow_steps, samples=c.samples, critic=self.critic, aggregate=c.aggregate
        )
        return in_chunks(chooser, c.chunk, self.spec.action_dim)

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching on the data's chunks; what is behind an episode's end does not count."""
        return chunked.cloning_loss(self.velocity, batch, noise), {}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V(s) on the target critics."""
        c = self.config
        target = ensembles.aggregate(self.target_critic(batch["observation_actions"]), c.aggregate, c.deviations)
        value = self.value(batch["observations"])
        advantage = target - value
        loss = (batch["valid"] * expectile_loss(advantage, c.expectile)).mean()
        return loss, {"value": value, "advantage": advantage}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of the critics against V(s'), summed over them."""
        target = batch["rewards"] + batch["reach"] * self.value(batch["next_observations"])
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "sum", batch["valid"]), {"q": q}

    def updates(self) -> list[Update]:
        """All at the same parameters, as one optimiser over the sum; the target critics lag."""
        c, adam = self.config, Adam(self.config.learning_rate)
        lag = {"target_critic": ("critic", c.target_rate)}
        size = self.decision_dim
        return [
            Update(self.flow_loss, ("velocity",), adam, noise=chunked.cloning_noise(size)),
            Update(self.value_loss, ("value",), adam, simultaneous=True),
            Update(self.critic_loss, ("critic",), adam, simultaneous=True, pre_step_targets=lag),
        ]
