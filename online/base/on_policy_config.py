"""Settings that on-policy algorithms have in common."""

from __future__ import annotations

import dataclasses

from surefoot.core.engine.agent import algorithm_of, require

BLOCK_ROWS = 2048
"""Transitions of a block where nothing else is said, as in PPO's experiments."""
EXPLORATIONS = ("gaussian", "state_dependent")


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig:
    """How an on-policy algorithm gathers experience, and the networks that it learns."""

    num_envs: int = 1  # parallel environments of each seed: N
    horizon: int | None = None  # T, decisions of each in a block; None: 2,048 rows a block, in multiples of 32
    chunk: int | None = 1  # actions that are decided on at once and played in turn; their rewards are summed
    discount: float = 0.99
    gae_lambda: float = 0.95
    hidden: tuple[int, ...] = (64, 64)  # of actor and critic
    activation: str = "tanh"  # relu, tanh, silu or gelu
    initial_log_std: float = 0.0  # of a Gaussian policy (state-dependent: of each sigma_ij), in log half-widths
    exploration: str = "gaussian"  # or state_dependent: noise is a random function of the state, held (gSDE); stepped
    hold_steps: int | None = None  # until state-dependent noise is drawn anew, at most a block; None: a block
    normalise_observations: bool = True  # by their running mean and deviation
    observation_limit: float | None = None  # clips normalised observations only; such a policy is stepped
    normalise_rewards: bool = True  # by the running deviation of the discounted return
    reward_limit: float | None = 10.0  # scaled rewards are clipped to it

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        name = algorithm_of(self)
        require(self.num_envs >= 1, name, "num_envs", self.num_envs, ">= 1")
        require(self.chunk is None or self.chunk >= 1, name, "chunk", self.chunk, ">= 1")
        require(self.horizon is None or self.horizon >= 1, name, "horizon", self.horizon, "None or >= 1")
        require(0 <= self.gae_lambda <= 1, name, "gae_lambda", self.gae_lambda, "in [0, 1]")
        require(self.exploration in EXPLORATIONS, name, "exploration", self.exploration, " or ".join(EXPLORATIONS))
        fits = self.hold_steps is None or 1 <= self.hold_steps <= self.length
        needed = f"None, or from 1 to the {self.length} steps of a block"
        require(fits, name, "hold_steps", self.hold_steps, needed)
        holds = self.hold_steps is None or self.exploration == "state_dependent"
        require(holds, name, "hold_steps", self.hold_steps, "None where exploration is not state_dependent")
        for field in ("observation_limit", "reward_limit"):
            value = getattr(self, field)
            require(value is None or value > 0, name, field, value, "None or > 0")

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

    epochs: int = 10  # passes over each block
    minibatches: int = 32  # of each pass; must divide T N

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        name = algorithm_of(self)
        require(self.epochs >= 1, name, "epochs", self.epochs, ">= 1")
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
