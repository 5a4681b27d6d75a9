"""TRPO-Lag and TRPO-PID: natural steps along penalised advantages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from surefoot.core.agent import Batch, Rule, Update, algorithm_of
from surefoot.online.natural_gradient import TRPO, TRPOConfig
from surefoot.safe.constrained import PenaltyConfig, add_penalty, penalised_columns, with_costs


@dataclasses.dataclass(frozen=True)
class TRPOLagConfig(PenaltyConfig, TRPOConfig):
    """Settings of TRPO-Lag: TRPO's, for blocks of whole episodes, and those of the multiplier."""

    num_envs: int = 8
    horizon: int | None = 1024
    minibatches: int = 64
    conjugate_steps: int = 15

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        TRPOConfig.__post_init__(self)
        self.check_constraint(algorithm_of(self))


class TRPOLag(TRPO):
    r"""TRPO-Lagrangian of Ray, Achiam and Amodei, "Benchmarking Safe Exploration in Deep Reinforcement Learning".

    .. math:: \max_\theta E\, \rho\, (A_r - \lambda A_c) / (1 + \lambda) \quad \text{with} \quad
        E\, KL(\pi_k \| \pi_\theta) \le \delta

    The multiplier is PPO-Lag's. The natural step has the same length whatever the advantages' scale.
    """

    name = "trpo_lag"
    Config = TRPOLagConfig
    config: TRPOLagConfig

    def build(self) -> None:
        """TRPO's networks, the cost critic, and the multiplier's state."""
        super().build()
        add_penalty(self)

    def advantages(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns (T, N) of a block: values, penalised advantages, returns, and returns of costs."""
        return penalised_columns(self, block, super().advantages(block))

    def updates(self) -> list[Update | Rule]:
        """The multiplier, the actor on the whole block, then both critics."""
        return with_costs(self, super().updates())


@dataclasses.dataclass(frozen=True)
class TRPOPIDConfig(TRPOLagConfig):
    """Settings of TRPO-PID."""

    multiplier: str = "omnisafe"


class TRPOPID(TRPO):
    """TRPO with a PID multiplier, as PPO-PID."""

    name = "trpo_pid"
    Config = TRPOPIDConfig
    config: TRPOPIDConfig

    def build(self) -> None:
        """TRPO's networks, the cost critic, and the multiplier's state."""
        super().build()
        add_penalty(self)

    def advantages(self, block: Mapping[str, Tensor]) -> Batch:
        """As TRPO-Lag's."""
        return penalised_columns(self, block, super().advantages(block))

    def updates(self) -> list[Update | Rule]:
        """As TRPO-Lag's."""
        return with_costs(self, super().updates())
