"""What algorithms that decide on chunks of C actions do alike: a class takes these functions as its methods.

`prepare = chunked.prepare` in a class body makes the function a method, so that nobody needs a common parent. They
read `chunk`, `discount`, `normalization` and `rewards` of the agent's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surefoot.core.agent import Batch, Metrics
from surefoot.core.chunks import decisions
from surefoot.core.sources import MAIN, Source, Stores
from surefoot.data import prepare as preparation
from surefoot.data.dataset import Dataset
from surefoot.data.sources import chunk_source
from surefoot.offline.flow_bc import cloning_loss


def prepare(self: Any, dataset: Dataset) -> Dataset:
    """Scale actions and rewards, normalise observations."""
    config = self.config
    return preparation.prepare(self, dataset, normalization=config.normalization, rewards=config.rewards)


def sources(self: Any, stores: Stores) -> Mapping[str, Source]:
    """Rows, or windows of C steps."""
    return {MAIN: chunk_source(stores, self.config.chunk)}


def annotate(self: Any, batch: Batch) -> Batch:
    """The chunk and its target's parts (`core.chunks.decisions`)."""
    return decisions(batch, self.config.discount, self.config.chunk)


def flow_loss(self: Any, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
    """Flow matching on the data's chunks; what is behind an episode's end does not count."""
    return cloning_loss(self.velocity, batch, noise), {}
