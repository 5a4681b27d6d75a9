"""Settings that agents share. Stream-x defaults are the paper's, but for `min_nonzero` and time limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from surefoot.core.engine.agent import Spec, algorithm_of, require
from surefoot.streaming.kernel import OPTIMIZERS

OFFICIAL = {"min_nonzero": 0, "official_time_limit": True}
"""What the official code does otherwise than these defaults, for every agent."""


def check_streaming(config: Any) -> None:
    """Refuse what is out of range of a config's settings that every agent has which learns from one transition."""
    name, limit = algorithm_of(config), config.observation_limit
    widths = "None, or a tuple of whole numbers >= 1"
    require(config.hidden is None or _are_widths(config.hidden), name, "hidden", config.hidden, widths)
    require(limit is None or 0 < limit < float("inf"), name, "observation_limit", limit, "> 0, or None")
    known = limit is None or config.normalise_observations
    require(known, name, "observation_limit", limit, "None where observations are not normalised")


@dataclasses.dataclass(frozen=True)
class StreamConfig:
    """Settings of the stream-x agents.

    Source: Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (2024).
    """

    hidden: tuple[int, ...] | None = None  # None: (32, 32) where actions are choices, else (128, 128)
    discount: float = 0.99
    normalise_observations: bool = True
    official_time_limit: bool = False  # treat truncation as an end, without bootstrapping, as the official code does
    observation_limit: float | None = None  # after 100 samples, skip one further from the mean, in deviations
    decay: float = 0.8  # lambda of the eligibility traces; the larger it is, the smaller the steps
    kappa_critic: float = 2.0  # a step moves the value network by at most 1 / kappa, in the L1 norm
    optimizer: str = "obgd"  # obgd, adaptive (Adaptive ObGD) or sgd (no bound: for ablations)
    step_size: float = 1.0  # alpha of both kinds of ObGD; cancels wherever their bound is active
    learning_rate: float = 1e-3  # of sgd only
    beta2: float = 0.999  # of adaptive only: decay of its second moments
    epsilon_adaptive: float = 1e-8  # of adaptive only: inside the root
    layer_norm: bool = True  # before each hidden activation, without parameters
    sparsity: float = 0.9  # share of each row of initial weights that is zero
    min_nonzero: int = 1  # initial weights that each row keeps; 0 is the official rule, which can zero whole rows
    scale_rewards: bool = True  # divide by the standard deviation of the discounted sum of past rewards
    clear_before_add: bool = True  # clear that sum before adding an episode's last reward (official), or after

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_streaming(self)
        name = algorithm_of(self)
        for field in ("decay", "sparsity"):
            require(0 <= getattr(self, field) <= 1, name, field, getattr(self, field), "in [0, 1]")
        for field in ("kappa_critic", "step_size", "learning_rate", "epsilon_adaptive"):
            require(0 < getattr(self, field) < float("inf"), name, field, getattr(self, field), "> 0")
        require(0 <= self.beta2 < 1, name, "beta2", self.beta2, "in [0, 1)")
        require(self.min_nonzero >= 0, name, "min_nonzero", self.min_nonzero, ">= 0")
        require(self.optimizer in OPTIMIZERS, name, "optimizer", self.optimizer, "obgd, adaptive or sgd")


def _are_widths(hidden: Any) -> bool:
    if not isinstance(hidden, tuple | list):
        return False
    return all(isinstance(w, int | np.integer) and not isinstance(w, bool) and w >= 1 for w in hidden)


def hidden_of(config: StreamConfig, problem: Spec) -> tuple[int, ...]:
    """Widths of the hidden layers for a problem: the config's, or the paper's for this kind of actions."""
    if config.hidden is not None:
        return tuple(int(width) for width in config.hidden)
    return (32, 32) if problem.discrete else (128, 128)
