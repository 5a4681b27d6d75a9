"""`Dynamics`: what a planner or an imagined rollout asks of a world, whether it is learned or exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from surefoot.core.base.errors import ConfigError

RewardsOf = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(..., S) states, (..., A) actions and (..., S) next states -> (...) rewards, where they are known and not learned."""
Terminates = Callable[[Tensor], Tensor]
"""(..., S) next states in the environment's units -> (...) bool: the episode ends (`known.terminations`)."""


class Outcome(NamedTuple):
    """What one step of a world gives, for each state that it was asked for."""

    states: Tensor
    """(..., S) the next states."""
    rewards: Tensor
    """(...)."""
    costs: Tensor
    """(...) of the constraint, 0 where the world knows none."""
    ended: Tensor
    """(...) bool: the episode ends by termination, not by a time limit."""


@dataclasses.dataclass(frozen=True)
class StepNoise:
    """The random numbers of one step, drawn by whoever asks: equal numbers give equal futures.

    Both may be broadcast against the states' leading dimensions, so that all candidates of a plan share them (common
    random numbers).
    """

    member: Tensor | None = None
    """(...) int64 member of an ensemble that predicts: kept over a trajectory (TSinf) or drawn anew (TS1)."""
    normal: Tensor | None = None
    """(..., D) standard normal numbers, D = `Dynamics.noise_dim`; None: the mean outcome."""


class Dynamics(Protocol):
    """A world that can be stepped from any state, for all leading dimensions at once.

    States are what the world is Markov in: of a learned model of observations these in the environment's units, of a
    native system its states, of a latent model the latent. Actions are in [-1, 1].
    """

    state_dim: int
    """S."""
    action_dim: int
    """A."""
    noise_dim: int
    """D of `StepNoise.normal`; 0: nothing is random but the member."""
    members: int
    """Of an ensemble; 1 where there is one world."""

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step.

        Args:
            states: (..., S).
            actions: (..., A) in [-1, 1].
            noise: its random numbers; `StepNoise()` gives the mean outcome (of an ensemble, the elites' mean).
        """
        ...


def check_costs(dynamics: Dynamics, limit: float | None) -> None:
    """Refuse a limit on costs in a world that says of itself that it has none (`knows_costs` is False).

    Raises:
        ConfigError: such a world; every plan would keep the limit.
    """
    if limit is not None and not getattr(dynamics, "knows_costs", True):
        raise ConfigError(
            f"cost_limit is {limit:g}, and {type(dynamics).__name__} knows no costs: learn the model from data that "
            "have them (algo=dynamics algo.model_costs=true), set its costs_of where the constraint is known, or leave "
            "the limit out"
        )
