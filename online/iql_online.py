"""IQL fine-tuning: the losses of offline IQL continue on the dataset and the replay buffer."""

from __future__ import annotations

import dataclasses

from surefoot.core.engine.agent import algorithm_of, require
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.offline.iql import IQL, IQLConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class IQLOnlineConfig(OffPolicyConfig, IQLConfig):
    """Settings of IQL fine-tuning: IQL's, and half of each batch from the dataset."""

    initial_steps: int = 5_000
    initial_actions: str = "policy"
    offline_fraction: float = 0.5
    actor_schedule: str = "constant"

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        draws = self.actor == "gaussian"
        needed = "gaussian, in the iql run that it starts from too: a deterministic actor explores nothing"
        require(draws, algorithm_of(self), "actor", self.actor, needed)


class IQLOnline(IQL, OffPolicyAgent):
    """IQL of Kostrikov, Nair and Levine, section 5.3: fine-tuned online by the same losses, the data kept.

    `init=` an `iql` run gives all networks. The authors' code puts the data into the replay buffer and draws from it
    uniformly; here `offline_fraction` of each batch are rows of the data, half by default, so that few new rows
    are seen often: with a warm-up much shorter than the default the policy follows its own noise for a while.
    """

    name = "iql_online"
    Config = IQLOnlineConfig
    requires = Requires(data="required")
    warm_start = WarmStart(
        networks=("actor", "normalizer", "value", "critic", "target_critic"), moments=("iql", "iql_online")
    )
    PRESETS = {"official": IQL.PRESETS["official"], "corl": IQL.PRESETS["corl"]}  # noqa: RUF012
    config: IQLOnlineConfig
