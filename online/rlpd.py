"""RLPD: REDQ with layer norm; half of each batch comes from a dataset."""

from __future__ import annotations

import dataclasses

from surefoot.core.base.options import option
from surefoot.core.engine.traits import Requires
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.online.redq import REDQ, REDQConfig
from surefoot.online.wsrl import ENSEMBLE, WSRLConfig

ONLY_WSRL = ("backup_actions", "subset_replacement")
"""Options of WSRL that its baseline does not need."""


@dataclasses.dataclass(frozen=True)
class RLPDConfig(REDQConfig):
    """Settings of RLPD; the defaults are those of ikostrikov/rlpd on locomotion, where they differ from REDQ's."""

    offline_fraction: float = 0.5
    critic_loss_over: str = "mean"
    temperature_form: str = "exp"
    target_entropy_per_dimension: float = -0.5
    layer_norm_critic: bool = True
    layer_norm_epsilon: float = option(1e-6, "number that both layer norms add to the variance; flax's")
    initialization: str = "xavier"
    rewards: str = option("none", "scaling of rewards of the dataset and of the environment: none or minus_one")


class RLPD(REDQ):
    r"""RLPD of Ball, Smith, Kostrikov and Levine, "Efficient Online RL with Offline Data" (ICML 2023).

    The losses are REDQ's. Rows of the dataset have the even places of each batch and rows of the replay buffer the
    odd ones, so that every critic step sees as many of both. The preset `wsrl` is the baseline of that name in
    zhouzypaul/wsrl, which shares WSRL's settings and keeps the data.
    """

    name = "rlpd"
    Config = RLPDConfig
    requires = Requires(data="required")
    PRESETS = {  # noqa: RUF012
        "locomotion": {},
        "antmaze": {"hidden": (256, 256, 256), "entropy_backup": False, "subset": 1, "rewards": "minus_one"},
        "adroit": {"hidden": (256, 256, 256), "entropy_backup": False},
        "wsrl": {
            **{field.name: field.default for field in dataclasses.fields(WSRLConfig) if field.name not in ONLY_WSRL},
            **ENSEMBLE,
            "offline_fraction": 0.5,
        },
    }
    config: RLPDConfig

    def prepare(self, dataset: Dataset) -> Dataset:
        """The dataset as rows to learn from; the replay buffer's rewards go through the same map."""
        return prepare(self, dataset, rewards=self.config.rewards)
