"""QC fine-tuning: it acts by the best of several cloned chunks, and all networks continue to learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from surefoot.core.engine.agent import require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.offline.qc import QC, QCConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig
from surefoot.online.loops.replay import joined_windows


@dataclasses.dataclass(frozen=True)
class QCOnlineConfig(OffPolicyConfig, QCConfig):
    """Settings of QC fine-tuning: QC's, and the data's rows beside those that are met, all drawn equally often."""

    initial_steps: int = 5_000
    initial_actions: str = "policy"
    replay_capacity: int = 2_000_000

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        only = "0: rows of the data and new ones are drawn alike"
        require(self.offline_fraction == 0, "qc_online", "offline_fraction", self.offline_fraction, only)


class QCOnline(QC, OffPolicyAgent):
    """QC of Li, Zhou and Levine, "Reinforcement Learning with Action Chunking", online.

    The replay buffer begins with the data, the flow continues cloning what is in it, and the best of N chunks by the
    present critics is played to its end, or the episode's. Windows cross neither an episode's end nor the place where
    the buffer is written; the official buffer mixes old and new rows there. `init=` a `qc` run gives all networks.
    """

    name = "qc_online"
    Config: ClassVar[type] = QCOnlineConfig
    acting = Acting(queues_chunks=True)
    warm_start = WarmStart(networks=("velocity", "critic", "target_critic", "normalizer"), moments=("qc", "qc_online"))
    requires = Requires(one_vector=True)
    config: QCOnlineConfig

    @property
    def explore_dim(self) -> int:
        """Of N chunks."""
        return self.config.samples * self.decision_dim

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of C steps, of the data and of the buffer."""
        return {MAIN: joined_windows(stores, self.config.chunk)}

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, C A) the best chunk of N."""
        return self.chooser.act(observations, noise)
