"""`ChunkedAgent`: what algorithms that decide on chunks of C actions do alike, and how a flow clones chunks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from surefoot.core.actors.chunks import decisions
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Batch
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Vision
from surefoot.core.losses.flow import draw_times, flow_matching_loss, interpolate
from surefoot.core.nn.velocity import VelocityNetwork
from surefoot.data import prepare as preparation
from surefoot.data.dataset import Dataset
from surefoot.data.decision_source import decisions_of


class ChunkedAgent(Agent):
    """Base of agents whose decisions are chunks; holds the rows that they learn from, nothing of the maths.

    It reads `chunk`, `normalization` and, where there are such, `discount` and `rewards` of the configuration.
    """

    vision = Vision(annotates=False, histories=True)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and, where they are learned from, rewards; normalise observations."""
        rewards = getattr(self.config, "rewards", "none")
        return preparation.prepare(self, dataset, normalization=self.config.normalization, rewards=rewards)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows, or windows of C steps."""
        return {MAIN: decisions_of(stores, self.config.chunk, history=self.frames)}

    def annotate(self, batch: Batch) -> Batch:
        """The chunk and its target's parts (`core.actors.chunks.decisions`)."""
        return decisions(batch, getattr(self.config, "discount", 1.0), self.config.chunk)


def cloning_noise(size: int) -> dict[str, Noise]:
    """What `cloning_loss` reads, for actions of `size` numbers."""
    return {"start": Noise("normal", size), "time": Noise("uniform", 1)}


def cloning_loss(
    velocity: VelocityNetwork,
    batch: Batch,
    noise: Mapping[str, Tensor],
    weight: Tensor | None = None,
    law: str = "uniform",
) -> Tensor:
    """() flow matching on the data's actions: what all algorithms here that clone by a flow share.

    Args:
        velocity: the network.
        batch: rows of decisions (`core.actors.chunks.decisions`); what their `mask` leaves out does not count.
        noise: of `cloning_noise`.
        weight: (B,) of rows.
        law: of the times (`core.losses.flow.draw_times`).
    """
    x, target = interpolate(noise["start"], batch["actions"], time := draw_times(noise["time"].squeeze(-1), law))
    return flow_matching_loss(velocity(batch["observations"], x, time), target, weight, batch["mask"])
