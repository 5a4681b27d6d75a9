"""`Model`: what reachability and filters need to know of a simulated system, in this room's sign (h > 0 breaks it)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.safe.reachability.grid import Axis, Grid
from surefoot.safe.reachability.solver import Problem

LEVELS = {1: 5, 2: 3}
"""Actions tried along each of so many action dimensions, both extremes included."""


class SystemLike(Protocol):
    """The part of `surefoot.cuda_ext.system.System` that is read; any object that has it will do."""

    @property
    def states(self) -> Any:
        """Names of the state variables."""
        ...

    @property
    def actions(self) -> Any:
        """Names of the actions."""
        ...

    @property
    def action_low(self) -> Any:
        """Lower bounds."""
        ...

    @property
    def action_high(self) -> Any:
        """Upper bounds."""
        ...

    @property
    def normals(self) -> Any:
        """Noise numbers that `step` reads."""
        ...

    @property
    def time_step(self) -> Any:
        """Control period, s."""
        ...

    @property
    def max_steps(self) -> Any:
        """Of an episode."""
        ...

    @property
    def reach_box(self) -> Any:
        """(low, high, points[, periodic]) for each state, or empty."""
        ...

    @property
    def control_affine(self) -> Any:
        """Whether the rate of change is affine in the action."""
        ...

    @property
    def alias(self) -> str:
        """Its name for people."""
        ...

    def default_parameters(self) -> Tensor:
        """(P,) physical constants."""
        ...

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Any:
        """A control step: an object with `state` and `terminated`."""
        ...

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) signed margin, safe if >= 0."""
        ...

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) states of observations."""
        ...


MOST_STATES = 4
"""Of a system that is put on a grid."""


class Model(nn.Module):
    """A system's torch twin with fixed physics and no noise; works in the dtype of what it is given."""

    parameters_row: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(self, system: SystemLike, parameters: Tensor | None = None) -> None:
        """Take a system, with its default physics or (P,) others.

        Raises:
            ConfigError: the system does not say the margin of a state.
        """
        super().__init__()
        self.system = system
        row = system.default_parameters() if parameters is None else parameters
        self.register_buffer("parameters_row", row.double())
        self.register_buffer("action_low", torch.tensor(system.action_low, dtype=torch.float64))
        self.register_buffer("action_high", torch.tensor(system.action_high, dtype=torch.float64))
        try:
            self.h(torch.zeros(1, len(system.states), dtype=torch.float64))
        except NotImplementedError as error:
            count = len(system.states)
            if count > MOST_STATES:
                raise ConfigError(
                    f"{system.alias} has {count} states ({', '.join(system.states)}), and grids of safe sets and "
                    f"filters take at most {MOST_STATES}: keep the constraint by a safe algorithm instead, such as "
                    "fisor or ppo_lag"
                ) from error
            raise ConfigError(
                f"{error} by itself, which reachability and filters need (the margins that it gives while it is "
                "simulated are of steps): give its class `margin`"
            ) from error

    def _rows(self, states: Tensor) -> Tensor:
        return self.parameters_row.to(states).expand(states.shape[0], -1)

    def _stepped(self, states: Tensor, actions: Tensor) -> Any:
        still = states.new_zeros(states.shape[0], max(1, self.system.normals))
        return self.system.step(states, actions, self._rows(states), still)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """(N, S) states one control period later, without noise."""
        after: Tensor = self._stepped(states, actions).state
        return after

    def ends(self, states: Tensor, actions: Tensor) -> Tensor:
        """(N,) bool: the step ends the episode."""
        ended: Tensor = self._stepped(states, actions).terminated
        return ended

    def h(self, states: Tensor) -> Tensor:
        """(N,) constraint of states, broken where it is > 0: less the system's margin."""
        return -self.system.margin(states, self._rows(states))

    def state_of(self, observations: Tensor) -> Tensor:
        """(N, S) states of (N, O) observations.

        Raises:
            ConfigError: the system does not say them.
        """
        try:
            return self.system.state_of(observations, self._rows(observations))
        except NotImplementedError as error:
            raise ConfigError(f"{error}, which a filter on observations needs: give its class `state_of`") from error

    def candidates(self, levels: int | None = None) -> Tensor:
        """(K, A) actions to choose among: `levels` along each dimension, both extremes included."""
        width = len(self.action_low)
        count = LEVELS.get(width, 2) if levels is None else levels
        if count < 2:
            raise ConfigError(f"{count} levels of an action are too few; both extremes are needed")
        each = [torch.linspace(float(low), float(high), count) for low, high in zip(self.action_low, self.action_high)]
        return torch.tensor(list(itertools.product(*(one.tolist() for one in each))), dtype=torch.float64)

    def problem(self, levels: int | None = None) -> Problem:
        """The avoid problem of this system."""
        return Problem(self, self.h, self.candidates(levels), ends=self.ends)

    def grid(self, points: Sequence[int] | None = None) -> Grid:
        """The grid over the system's box, with its own numbers of points or others.

        Raises:
            ConfigError: the system has no box, or the numbers don't fit it.
        """
        system = self.system
        if not system.reach_box:
            count = len(system.states)
            why = f"its {count} states are too many" if count > MOST_STATES else "it has no `reach_box`"
            raise ConfigError(f"{system.alias} has no grid for reachability: {why}")
        axes = (Axis(name, *range_) for name, range_ in zip(system.states, system.reach_box))
        grid = Grid(tuple(axes))
        return grid if points is None else grid.with_points(points)
