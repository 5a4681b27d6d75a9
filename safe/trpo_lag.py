"""TRPO-Lag and TRPO-PID: natural steps along penalised advantages."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surefoot.online.trpo import TRPO, TRPOConfig
from surefoot.safe.constraint.constrained import Penalised, PenaltyConfig


@dataclasses.dataclass(frozen=True)
class TRPOLagConfig(PenaltyConfig, TRPOConfig):
    """Settings of TRPO-Lag: TRPO's, for blocks of whole episodes, and those of the multiplier."""

    num_envs: int = 8
    horizon: int | None = 1024
    minibatches: int = 64
    conjugate_steps: int = 15


class TRPOLag(Penalised, TRPO):
    r"""TRPO-Lagrangian of Ray, Achiam and Amodei, "Benchmarking Safe Exploration in Deep Reinforcement Learning".

    .. math:: \max_\theta E\, \rho\, (A_r - \lambda A_c) / (1 + \lambda) \quad \text{with} \quad
        E\, KL(\pi_k \| \pi_\theta) \le \delta

    The multiplier is PPO-Lag's. The natural step has the same length whatever the advantages' scale.
    """

    name = "trpo_lag"
    Config: ClassVar[type[TRPOLagConfig]] = TRPOLagConfig
    config: TRPOLagConfig


@dataclasses.dataclass(frozen=True)
class TRPOPIDConfig(TRPOLagConfig):
    """Settings of TRPO-PID."""

    multiplier: str = "omnisafe"


class TRPOPID(TRPOLag):
    """TRPO with a PID multiplier, as PPO-PID."""

    name = "trpo_pid"
    Config = TRPOPIDConfig
    config: TRPOPIDConfig
