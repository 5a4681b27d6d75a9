"""PPO-Lag and PPO-PID: PPO on penalised advantages, with a multiplier that follows the cost of fresh episodes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surefoot.core.base.options import option
from surefoot.core.engine.agent import algorithm_of, require
from surefoot.online.ppo import PPO, PPOConfig
from surefoot.safe.constraint.constrained import Penalised, PenaltyConfig


@dataclasses.dataclass(frozen=True)
class PPOLagConfig(PenaltyConfig, PPOConfig):
    """Settings of PPO-Lag: PPO's, for blocks of whole episodes, and those of the multiplier."""

    num_envs: int = 8
    horizon: int | None = 1024
    minibatches: int = 64
    advantage_scope: str = option("none", "rows that advantages are normalized over; `standardize` says what is scaled")
    value_clip: float | None = option(
        None, "bound of the change of a value; null: costs are not scaled, so neither critic is held back"
    )
    target_kl: float | None = option(0.02, "divergence that ends a block's epochs; null: none does")
    separate_norms: bool = option(
        True,
        "shorten the gradients of actor and critics each by itself, so that large costs don't shorten the policy's",
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fits = "none: `standardize` says what is scaled"
        require(self.advantage_scope == "none", name, "advantage_scope", self.advantage_scope, fits)
        require(self.separate_norms, name, "separate_norms", self.separate_norms, "True: costs have units of their own")


PRESETS = {
    name: {option: value for option, value in preset.items() if option != "advantage_scope"}
    for name, preset in PPO.PRESETS.items()
}


class PPOLag(Penalised, PPO):
    r"""PPO-Lagrangian of Ray, Achiam and Amodei, "Benchmarking Safe Exploration in Deep Reinforcement Learning".

    .. math::
        A &= (A_r - \lambda A_c) / (1 + \lambda) \\
        L_\pi &= E \max(-A \rho, -A\,\mathrm{clip}(\rho, 1 \pm \epsilon)) \\
        \lambda &\leftarrow (\lambda + \text{Adam}(J_c - d))_+ \quad \text{before each block's steps}

    A_r is standardised and A_c centred only, as published: lambda weighs costs against rewards in deviations. With
    standardize=sum lambda is in units of reward per cost, and its fixed point is the problem's dual.
    """

    name = "ppo_lag"
    Config: ClassVar[type[PPOLagConfig]] = PPOLagConfig
    PRESETS = PRESETS
    config: PPOLagConfig


@dataclasses.dataclass(frozen=True)
class PPOPIDConfig(PPOLagConfig):
    """Settings of PPO-PID."""

    multiplier: str = "omnisafe"


class PPOPID(PPOLag):
    """PPO with a PID multiplier: Stooke et al., "Responsive Safety in RL by PID Lagrangian Methods" (CPPO-PID).

    `multiplier` chooses among the four rules in use; the default is OmniSafe's, with its gains. All else is PPO-Lag's.
    """

    name = "ppo_pid"
    Config = PPOPIDConfig
    config: PPOPIDConfig
