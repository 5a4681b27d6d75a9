"""Q-chunking: critics of whole chunks, and a policy that takes the best of some chunks of a cloned flow."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import in_chunks
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import WarmStart
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, LayerNorm, pairs
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent
from surefoot.offline.fql import FQL, FQLConfig


@dataclasses.dataclass(frozen=True)
class QCConfig(EncoderConfig, HistoryConfig):
    """Settings of QC; the defaults are the official ones."""

    samples: int = option(32, "N chunks of which the best by the critics acts and is bootstrapped from", range=">= 1")
    chunk: int = option(5, "C: actions that are decided at once; 1 is best-of-N without chunks", range=">= 1")
    flow_steps: int = option(10, "steps of the flow, K", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, which lags by one update", range="[0, 1]")
    critics: int = option(2, "number of critics", range=">= 1")
    aggregate: str = option(
        "mean", "aggregate of the critics, for choosing and in the target: mean or min", choices=ensembles.AGGREGATES
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((512, 512, 512, 512), "widths of the hidden layers")
    layer_norm_actor: bool = option(False, "layer norm of the flow, after each activation, as the critics have them")
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)


class QC(ChunkedAgent):
    r"""QC of Li, Zhou and Levine, "Reinforcement Learning with Action Chunking" (NeurIPS 2025).

    A flow v clones chunks c of C actions (`core.losses.flow`). Of N chunks that it draws, the critics choose:

    .. math::
        \pi(s) &= \arg\max_{c_n} \overline Q(s, c_n), \quad c_n = F(s, z_n), \quad z_n \sim \mathcal N(0, I) \\
        L_Q &= E\, w\, (R + \gamma^C \hat{\overline Q}(s', \pi(s')) - Q_i(s, c))^2

    with R and the weight w of `core.actors.chunks.chunk_target`, which says where they differ from the official ones.
    The present critics choose, also in the target, where the averaged ones then value what was chosen. The divergence
    of the best of N from the flow is at most log N - (N - 1) / N, so N holds the policy near the data. One optimiser
    steps both networks, and the target critics follow the critics from before the step, as in the official code.
    """

    name = "qc"
    Config: ClassVar[type] = QCConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}, "best_of_n": {"chunk": 1, "samples": 4}}
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: QCConfig

    def build(self) -> None:
        """The flow over chunks, critics of chunks and their targets."""
        c, size, width = self.config, self.decision_dim, self.features
        norm: LayerNorm = "after" if c.layer_norm_actor else False
        self.velocity = PlainVelocity(width, size, c.hidden, velocity_layer_norm=norm)
        self.critic = Critic(width, size, c.hidden, c.critics, "xavier", "after", activation="gelu_tanh")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    @property
    def chooser(self) -> FlowActor:
        """The best of N chunks by the present critics."""
        c = self.config
        size = self.decision_dim
        return FlowActor(
            self.velocity, size, c.flow_steps, samples=c.samples, critic=self.critic, aggregate=c.aggregate
        )

    @property
    def actor(self) -> Actor:
        """What acts: the chosen chunk, from a queue."""
        return in_chunks(self.chooser, self.config.chunk, self.spec.action_dim)

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching on the data's chunks; what is behind an episode's end does not count."""
        return chunked.cloning_loss(self.velocity, batch, noise), {}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error against the best of N chunks, averaged over the critics."""
        c, following = self.config, batch["next_observations"]
        with torch.no_grad():
            chosen = self.chooser.act(following, noise["next"])
            next_q = ensembles.aggregate(self.target_critic(pairs(following, chosen)), c.aggregate)
            target = batch["rewards"] + batch["reach"] * next_q
        q = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, "mean", batch["valid"]), {"q": q, "next_q": next_q}

    def updates(self) -> list[Update]:
        """Both at the same parameters, as one optimiser over the sum; the target critics lag."""
        c, adam = self.config, Adam(self.config.learning_rate)
        size = self.decision_dim
        draws = {"next": Noise("normal", c.samples * size)}
        lag = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.flow_loss, ("velocity",), adam, noise=chunked.cloning_noise(size)),
            Update(self.critic_loss, ("critic",), adam, noise=draws, simultaneous=True, pre_step_targets=lag),
        ]


@dataclasses.dataclass(frozen=True)
class QCFQLConfig(FQLConfig):
    """Settings of QC-FQL: FQL's, with the official chunk and its alpha for cube-triple."""

    alpha: float = option(100.0, "weight of the distance to the flow's chunks; 300 in scene and puzzle-3x3")
    chunk: int = option(5, "C: actions that are decided at once")


class QCFQL(FQL):
    """QC-FQL of the same paper: FQL whose actions are chunks. The official code ignores its `normalize_q_loss`."""

    name = "qc_fql"
    Config: ClassVar[type] = QCFQLConfig
