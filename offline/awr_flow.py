"""Weighted flow cloning: a flow that clones what turned out better than usual, by soft weights or by a selection."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunks import decisions, in_chunks
from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.value_learning import advantage_weights
from surefoot.core.nn.networks import Value
from surefoot.core.nn.velocity import network_of
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare, returns_to_go
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent


@dataclasses.dataclass(frozen=True)
class AWRFlowConfig(EncoderConfig, HistoryConfig):
    """Settings of advantage-weighted flow cloning."""

    inverse_temperature: float = option(
        3.0,
        "inverse temperature, beta, of advantages in standard deviations of the batch's; 10 in DPPO's AWR",
        range=">= 0",
    )
    weight_limit: float = option(100.0, "greatest weight of a row", range="> 0")
    chunk: int = option(1, "C: actions that are cloned and played at once", range=">= 1")
    flow_steps: int = option(10, "steps of the sampler, K", range=">= 1")
    discount: float = option(0.99, "discount factor", range="[0, 1)")
    network: str = option("mlp", "network: mlp or embedded (ReinFlow's)")
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class AWRFlow(ChunkedAgent):
    r"""Advantage-weighted regression (Peng et al., 2019) of a flow on a fixed dataset.

    .. math::
        L_V &= E (G - V(s))^2, \quad A = (G - V(s) - m) / \sigma \text{ over the batch} \\
        L_v &= E\, \min(e^{\beta A}, w)\, |v(s, x_t, t) - (a - x_0)|^2

    G is (1 - discount) times the discounted sum of rewards to the recorded end of the episode. A flow trained with
    weights w(s, a) draws the density mu(a|s) w(s, a), normalised, of the data's mu: no guidance is needed to sample.
    """

    name = "awr_flow"
    Config: ClassVar[type] = AWRFlowConfig
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "returns_to_go")
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: AWRFlowConfig

    def build(self) -> None:
        """Value and flow."""
        c, width = self.config, self.features
        self.value = Value(width, c.hidden)
        size = self.decision_dim
        self.velocity = network_of(c.network, width, size, c.hidden, c.chunk)

    @property
    def actor(self) -> Actor:
        """What acts: the flow, from a queue where it gives chunks."""
        c = self.config
        head = FlowActor(self.velocity, self.decision_dim, c.flow_steps)
        return in_chunks(head, c.chunk, self.spec.action_dim)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations, add the column of returns."""
        ready = prepare(self, dataset, normalization=self.config.normalization)
        returns = (1 - self.config.discount) * returns_to_go(ready, self.config.discount)
        return ready.replace(extras={**ready.extras, "returns_to_go": returns.astype(np.float32)})

    def annotate(self, batch: Batch) -> Batch:
        """The chunk, and the return from its first step on."""
        returns = batch["returns_to_go"] if "mask" not in batch else batch["returns_to_go"][..., 0]
        return {**decisions(batch, self.config.discount, self.config.chunk), "returns": returns}

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of V against the returns."""
        value = self.value(batch["observations"])
        return (batch["returns"] - value).square().mean(), {"value": value}

    def weights(self, advantages: Tensor) -> Tensor:
        """(B,) weights of (B,) advantages."""
        c = self.config
        standard = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-6)
        return advantage_weights(standard, c.inverse_temperature, c.weight_limit)

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching, weighted by how much better than V(s) it turned out."""
        weight = self.weights(batch["returns"] - self.value(batch["observations"])).detach()
        return chunked.cloning_loss(self.velocity, batch, noise, weight), {"weight": weight}

    def updates(self) -> list[Update]:
        """The value first; the flow then sees the new one."""
        adam = Adam(self.config.learning_rate)
        drawn = chunked.cloning_noise(self.decision_dim)
        return [Update(self.value_loss, ("value",), adam), Update(self.flow_loss, ("velocity",), adam, noise=drawn)]


@dataclasses.dataclass(frozen=True)
class RAFTFlowConfig(AWRFlowConfig):
    """Settings of ranked flow cloning."""

    share: float = option(0.25, "share of each batch that is cloned, the best advantages first", range="(0, 1]")
    rest: float = option(0.0, "weight of the others; some keeps the flow from narrowing too far", range="[0, 1]")


class RAFTFlow(AWRFlow):
    """Reward-ranked fine-tuning (Dong et al., "RAFT", 2023) of a flow on a fixed dataset: the best share is cloned.

    RAFT ranks several samples of one context. A dataset has one action a state, so rows are ranked by how much better
    than V(s) they turned out, within each batch; `inverse_temperature` and `weight_limit` have no effect.
    """

    name = "raft_flow"
    Config: ClassVar[type] = RAFTFlowConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    config: RAFTFlowConfig

    def weights(self, advantages: Tensor) -> Tensor:
        """(B,) 1 for the best share of (B,) advantages, `rest` for the others."""
        kept = math.ceil(self.config.share * len(advantages))
        least = advantages.topk(kept).values[-1]
        return (advantages >= least).to(advantages.dtype) * (1 - self.config.rest) + self.config.rest
