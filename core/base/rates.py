"""Settings of optimisers: rates, how they go over a run, and Adam's numbers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surefoot.core.base.errors import ConfigError

SCHEDULES = ("constant", "cosine", "linear", "restarts", "warm_up", "adaptive")
FALLING = ("constant", "cosine", "linear")
"""Those that a name alone says: they need no other setting."""


@dataclasses.dataclass(frozen=True)
class Adam:
    """Settings of one optimiser. Source: Kingma and Ba (2015); decoupled decay, Loshchilov and Hutter."""

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    schedule: str = "constant"  # cosine, linear: to 0 over the planned steps; adaptive: set from outside; warm_up
    decay_over: float = 1.0  # cosine and linear: the planned steps times this; above 1 they end before they reach 0
    cycle: int = (
        1  # restarts: steps of the schedule, warm-up included, in which the rate falls along a cosine; then anew
    )
    lowest: float = 0.0  # restarts: the rate that a cycle begins and ends at
    warm_up: int = (
        0  # all but constant and adaptive: steps of the schedule in which the rate rises from 0 first, linearly
    )
    stride: int = 1  # cosine, linear and restarts: optimiser steps that are one step of the schedule
    max_gradient_norm: float | None = None  # per seed, over all that the update trains
    max_gradient: float | None = None  # largest size of each number of the gradient

    def __post_init__(self) -> None:
        """Refuse an unknown schedule, or one that would be over at once."""
        for name, value in (("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)):
            if not value >= 0:
                raise ConfigError(f"{name} is {value}, must be >= 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas is {self.betas}, must be in [0, 1)")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}, must be > 0")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ConfigError(f"max_gradient_norm is {self.max_gradient_norm}, must be None or > 0")
        if self.max_gradient is not None and not self.max_gradient > 0:
            raise ConfigError(f"max_gradient is {self.max_gradient}, must be None or > 0")
        if not self.decay_over > 0:
            raise ConfigError(f"decay_over is {self.decay_over}, must be > 0")
        if self.warm_up < 0 or self.stride < 1:
            raise ConfigError(f"warm_up is {self.warm_up} and stride {self.stride}, must be >= 0 and >= 1")
        if self.schedule == "restarts" and not self.cycle > self.warm_up:
            raise ConfigError(f"cycle is {self.cycle}, must be above warm_up, {self.warm_up}")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"schedule is {self.schedule!r}, must be {', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}")


@dataclasses.dataclass(frozen=True)
class LaProp(Adam):
    r"""Settings of LaProp, which divides by the root of the second moment before the momentum, not after it:

    .. math:: u = g / (\sqrt{\hat v} + \epsilon), \quad m \leftarrow \beta_1 m + (1 - \beta_1) u, \quad
        \theta \leftarrow \theta - \eta\, \hat m

    with moments corrected as Adam's are. Before it each parameter's gradient is clipped to a share of the parameter's
    own norm. Sources: Ziyin et al., "LaProp: Separating Momentum and Adaptivity in Adam" (2020); clipping, Brock et
    al., "High-Performance Large-Scale Image Recognition Without Normalization" (2021), of whole tensors as DreamerV3.
    """

    epsilon: float = 1e-20
    clip: float | None = 0.3  # a gradient's norm at most this times its parameter's; None: as it is
    least_norm: float = 1e-3  # that a parameter's counts as, so that those at 0 can move


@dataclasses.dataclass(frozen=True)
class Descent:
    """Plain gradient descent: parameter -= learning_rate * gradient, without a memory or a schedule.

    At a rate of 1 a loss whose gradient is parameter - new makes the parameter `new`: how a loss sets it.
    """

    learning_rate: float = 1.0
    schedule: ClassVar[str] = "constant"
