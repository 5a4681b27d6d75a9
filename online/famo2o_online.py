"""FamO2O fine-tuning: the same losses on data and replay, at the coefficients that the balance model picks."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.offline.famo2o import FamO2O, FamO2OConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class FamO2OOnlineConfig(OffPolicyConfig, FamO2OConfig):
    """Settings of FamO2O fine-tuning: FamO2O's, and half of each batch from the dataset."""

    initial_steps: int = 5_000
    initial_actions: str = "policy"
    offline_fraction: float = 0.5


class FamO2OOnline(FamO2O, OffPolicyAgent):
    """FamO2O of Wang et al. (NeurIPS 2023), online: as offline, but with beta ~ b(s), detached, in the policy's loss.

    As in LeapLabTHU/FamO2O, b is that before its own step, and these draws are not those of its loss.
    `init=` a `famo2o` run gives all networks. The authors' one buffer begins with the dataset in it and is drawn from
    uniformly; here `offline_fraction` of each batch is the dataset's.
    """

    name = "famo2o_online"
    Config = FamO2OOnlineConfig
    requires = Requires(data="required")
    warm_start = WarmStart(
        networks=("actor", "normalizer", "balance", "temperature", "value", "critic", "target_critic"),
        moments=("famo2o", "famo2o_online"),
    )
    coefficient_noise = Noise("normal", 1)
    config: FamO2OOnlineConfig

    def coefficients(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) at which the universal policy is trained: drawn from the balance model."""
        return self.balance.sample(batch["observations"], noise["coefficient"])[0]
