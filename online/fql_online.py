"""FQL fine-tuning, with chunks or without: the same losses on windows of the dataset and the replay buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.engine.agent import require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.offline.fql import FQL, FQLConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig
from surefoot.online.loops.replay import joined_windows


@dataclasses.dataclass(frozen=True)
class FQLOnlineConfig(OffPolicyConfig, FQLConfig):
    """Settings of FQL fine-tuning: FQL's, and the data's rows beside those that are met, all drawn equally often."""

    initial_steps: int = 5_000
    initial_actions: str = "policy"
    replay_capacity: int = 2_000_000

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        only = "0: rows of the data and new ones are drawn alike"
        require(self.offline_fraction == 0, "fql_online", "offline_fraction", self.offline_fraction, only)


class FQLOnline(FQL, OffPolicyAgent):
    """FQL of Park, Li and Levine, online: the replay buffer begins with the data, and the losses continue.

    It acts by its policy of one step, in chunks from a queue where `chunk` is above 1 (QC-FQL of Li, Zhou and Levine);
    windows cross neither an episode's end nor the place where the buffer is written. Officially alpha is larger online
    in some tasks. `init=` an `fql` or `qc_fql` run gives all networks; without `dataset=` it learns from what is met
    alone.
    """

    name = "fql_online"
    Config: ClassVar[type] = FQLOnlineConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}, "qc_fql": {"chunk": 5, "alpha": 100.0}}
    acting = Acting(queues_chunks=True)
    warm_start = WarmStart(
        networks=("velocity", "student", "critic", "target_critic", "normalizer"),
        moments=("fql", "qc_fql", "fql_online"),
    )
    requires = Requires(one_vector=True)
    config: FQLOnlineConfig

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of C steps, of the data and of the buffer."""
        return {MAIN: joined_windows(stores, self.config.chunk)}

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, C A) chunks of the policy."""
        return self.student.act(observations, noise)
