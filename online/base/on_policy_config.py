"""Settings that on-policy algorithms have in common."""

from __future__ import annotations

import dataclasses

from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import algorithm_of, require

BLOCK_ROWS = 2048
"""Transitions of a block by default, as in PPO's experiments."""
EXPLORATIONS = ("gaussian", "state_dependent")


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig(Options):
    """How an on-policy algorithm gathers experience, and the networks that it learns."""

    num_envs: int = option(1, "parallel environments of each seed: N", range=">= 1")
    horizon: int | None = option(
        None, "decisions of each environment in a block, T; null: 2,048 rows a block, in multiples of 32", range=">= 1"
    )
    chunk: int | None = option(
        1, "actions that are decided on at once and played in turn; their rewards are summed", range=">= 1"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    gae_lambda: float = option(0.95, "lambda of the generalised advantages", range="[0, 1]")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers of actor and critic")
    activation: str = option("tanh", "activation of the hidden layers: relu, tanh, silu or gelu")
    initial_log_std: float = option(
        0.0,
        "log standard deviation of a Gaussian policy at the start (state-dependent: of each sigma_ij), in half-widths",
    )
    exploration: str = option(
        "gaussian",
        "noise of the policy: gaussian, or state_dependent: a random function of the state, held (gSDE); stepped",
        choices=EXPLORATIONS,
    )
    hold_steps: int | None = option(
        None, "steps until state-dependent noise is drawn anew, at most a block; null: a block"
    )
    normalize_observations: bool = option(True, "normalize observations by their running mean and deviation")
    observation_limit: float | None = option(
        None, "bound of normalized observations; null: none; such a policy is stepped", range="> 0"
    )
    normalize_rewards: bool = option(True, "scale rewards by the running deviation of the discounted return")
    reward_limit: float | None = option(10.0, "scaled rewards are clipped to it", range="> 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fits = self.hold_steps is None or 1 <= self.hold_steps <= self.length
        needed = f"None, or from 1 to the {self.length} steps of a block"
        require(fits, name, "hold_steps", self.hold_steps, needed)
        holds = self.hold_steps is None or self.exploration == "state_dependent"
        require(holds, name, "hold_steps", self.hold_steps, "None where exploration is not state_dependent")

    @property
    def length(self) -> int:
        """Steps of each environment in a block, T."""
        return -(-BLOCK_ROWS // (32 * self.num_envs)) * 32 if self.horizon is None else self.horizon

    @property
    def rows(self) -> int:
        """Transitions of a block, T N."""
        return self.length * self.num_envs

    @property
    def held(self) -> int:
        """Steps that the noise of an action is held for."""
        if self.exploration == "gaussian":
            return 1
        return self.length if self.hold_steps is None else self.hold_steps

    @property
    def steps_per_block(self) -> int:
        """Training steps of the Learner that a block is learned by."""
        raise TypeError(f"{type(self).__name__} must define steps_per_block")

    @property
    def parts(self) -> int:
        """Minibatches that each epoch is split into."""
        return 1

    @property
    def sequence_steps(self) -> int:
        """Steps of one environment that stand together in a minibatch, in the order of time; 1: rows by themselves."""
        return 1


@dataclasses.dataclass(frozen=True)
class EpochsConfig(OnPolicyConfig):
    """How an algorithm goes over each block several times."""

    epochs: int = option(10, "passes over each block", range=">= 1")
    minibatches: int = option(32, "minibatches of each pass; must divide T N")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        fits = f"a number that divides the {self.rows} steps of a block ({self.length} x {self.num_envs})"
        divides = self.minibatches >= 1 and self.rows % self.minibatches == 0
        require(divides, name, "minibatches", self.minibatches, fits)

    @property
    def steps_per_block(self) -> int:
        """Minibatches of all epochs."""
        return self.epochs * self.minibatches

    @property
    def parts(self) -> int:
        """Minibatches of an epoch."""
        return self.minibatches
