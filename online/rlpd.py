"""RLPD: REDQ with layer norm, half of whose every batch comes from a dataset."""

from __future__ import annotations

import dataclasses

from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.online.sac import SAC, SACConfig
from surefoot.online.wsrl import ENSEMBLE, WSRLConfig


@dataclasses.dataclass(frozen=True)
class RLPDConfig(SACConfig):
    """Settings of RLPD; the defaults are those of ikostrikov/rlpd on locomotion, where they differ from SAC's."""

    initial_steps: int = 5_000
    offline_fraction: float = 0.5
    critics: int = 10
    critic_steps: int = 20
    critic_loss_over: str = "mean"
    actor_value: str = "mean"
    temperature_form: str = "exp"
    target_entropy_per_dimension: float = -0.5
    layer_norm_critic: bool = True
    rewards: str = "none"  # of the dataset and of the environment: none or minus_one


class RLPD(SAC):
    r"""RLPD of Ball, Smith, Kostrikov and Levine, "Efficient Online RL with Offline Data" (ICML 2023).

    The losses are REDQ's. Rows of the dataset have the even places of each batch and rows of the replay buffer the
    odd ones, so that every critic step sees as many of both. The preset `wsrl` is the baseline of that name in
    zhouzypaul/wsrl, which shares WSRL's settings and keeps the data.
    """

    name = "rlpd"
    Config = RLPDConfig
    data = "required"
    PRESETS = {  # noqa: RUF012
        "locomotion": {},
        "antmaze": {"hidden": (256, 256, 256), "entropy_backup": False, "subset": 1, "rewards": "minus_one"},
        "adroit": {"hidden": (256, 256, 256), "entropy_backup": False},
        "wsrl": {
            **{field.name: field.default for field in dataclasses.fields(WSRLConfig)},
            **ENSEMBLE,
            "offline_fraction": 0.5,
        },
    }
    config: RLPDConfig

    def prepare(self, dataset: Dataset) -> Dataset:
        """The dataset as rows to learn from; the replay buffer's rewards go through the same map."""
        return prepare(self, dataset, rewards=self.config.rewards)
