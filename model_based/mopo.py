"""MOPO: imagined rewards are lowered by what the model itself says of its uncertainty."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig
from surefoot.world_models.dynamics import Outcome
from surefoot.world_models.ensemble import uncertainty

UNCERTAINTIES = ("aleatoric", "pairwise", "std")


@dataclasses.dataclass(frozen=True)
class MOPOConfig(ImaginedSACConfig):
    """Settings of MOPO."""

    penalty: float = option(2.5, "weight of the penalty, lambda; the paper's are 0.5 to 5, by task", range=">= 0")
    uncertainty: str = option(
        "aleatoric", "u: aleatoric (the paper's), pairwise or std (of the members' next states)", choices=UNCERTAINTIES
    )


class MOPO(ImaginedSAC):
    r"""MOPO of Yu et al., "MOPO: Model-based Offline Policy Optimization" (NeurIPS 2020).

    .. math:: \tilde r(s, a) = \hat r(s, a) - \lambda u(s, a), \quad u = \max_e \lVert \sigma_e(s, a) \rVert_2

    The deviations are those of all outputs, the reward included, in the units of the data; neither `normalization` nor
    `model_normalize_targets` changes them, so that a lambda means the same with them and without. Only imagined rewards
    are lowered. Without a penalty it is its base, bit for bit. Other uncertainties: Lu, Ball, Parker-Holder, Osborne
    and Roberts, "Revisiting Design Choices in Offline Model Based Reinforcement Learning" (ICLR 2022).
    """

    name = "mopo"
    Config: ClassVar[type] = MOPOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "halfcheetah-medium": {"rollouts": 50_000, "penalty": 0.5, "actor_schedule": "cosine"},
        "hopper-medium": {"rollouts": 50_000, "penalty": 5.0, "actor_schedule": "cosine"},
        "pointmaze": {"rollouts": 50_000, "rollout_length": 1, "penalty": 2.5},
    }
    config: MOPOConfig

    def uncertainty(self, states: Tensor, actions: Tensor) -> Tensor:
        """(B,) u of (B, S) states and (B, A) actions."""
        found, size, scale = self.model.predict_all(states, actions), self.spec.observation_dim, self.normalizer.scale
        if self.config.uncertainty == "aleatoric":
            return uncertainty.max_aleatoric(torch.cat([found.std[..., :size] * scale, found.std[..., size:]], -1))
        measure = uncertainty.pairwise_difference if self.config.uncertainty == "pairwise" else uncertainty.ensemble_std
        return measure(found.mean[..., :size] * scale)

    def judge(self, states: Tensor, actions: Tensor, outcome: Outcome) -> Outcome:
        """The outcome with its reward lowered."""
        if self.config.penalty == 0:
            return outcome
        lowered = outcome.rewards - self.config.penalty * self.uncertainty(states, actions)
        return outcome._replace(rewards=lowered)
