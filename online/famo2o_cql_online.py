"""FamO2O over CQL, fine-tuned: the same losses, at the coefficients that the balance model picks."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.offline.famo2o_cql import FamO2OCQL, FamO2OCQLConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class FamO2OCQLOnlineConfig(OffPolicyConfig, FamO2OCQLConfig):
    """Settings of FamO2O fine-tuning over CQL: FamO2O's, and half of each batch from the dataset."""

    initial_steps: int = 5_000
    initial_actions: str = "policy"
    offline_fraction: float = 0.5


class FamO2OCQLOnline(FamO2OCQL, OffPolicyAgent):
    """FamO2O of Wang et al. (NeurIPS 2023) over CQL, online: as offline, but with the balance model's beta = b(s).

    It is detached in all losses but the balance model's own. `init=` a `famo2o_cql` run gives all networks. As in
    `famo2o_online`, `offline_fraction` of each batch is the dataset's.
    """

    name = "famo2o_cql_online"
    Config = FamO2OCQLOnlineConfig
    requires = Requires(data="required")
    warm_start = WarmStart(
        networks=("actor", "normalizer", "balance", "critic", "target_critic", "temperature"),
        moments=("famo2o_cql", "famo2o_cql_online"),
    )
    config: FamO2OCQLOnlineConfig

    def coefficients(self, batch: Batch, noise: dict[str, Tensor], where: str) -> Tensor:
        """(B,) that the universal policy reads at `observations` or `next_observations`: the balance model's."""
        return self.balance(batch[where]).detach()

    def coefficient_noise(self, *where: str) -> dict[str, Noise]:
        """Nothing is drawn."""
        return {}
