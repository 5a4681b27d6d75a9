"""`System`: what a simulated system says of itself in python, and its plain torch twin."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import pathlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

Behaviour = Callable[[np.ndarray[Any, Any], np.random.Generator], np.ndarray[Any, Any]]
"""(N, O) observations and a generator -> (N, A) actions in the system's own units."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A physical constant that may differ from environment to environment."""

    name: str
    default: float
    low: float
    """Smallest value that the equations allow."""
    high: float
    unit: str = ""
    meaning: str = ""


class Range(NamedTuple):
    """Where a state variable matters for reachability, and by how many grid points it is resolved by default."""

    low: float
    high: float
    points: int
    periodic: bool = False
    """`high` is the same state as `low`."""


class Goal(NamedTuple):
    """Where a task ends, or is to be held, in the coordinates of some states."""

    place: Mapping[str, str | float]
    """State -> the parameter that says its value there, or the value."""
    radius: float = 0.0
    """Distance within which the goal counts as reached, in the unit of these states; 0 where there is none."""


class Step(NamedTuple):
    """What one control step of N environments gives."""

    state: Tensor
    """(N, S)."""
    reward: Tensor
    """(N,)."""
    margin: Tensor
    """(N,) signed margin of the new state: safe if >= 0; the cost is 1 where it is negative."""
    terminated: Tensor
    """(N,) bool."""


class System(abc.ABC):
    """One simulated system: description, torch twin and scripted behaviours in one file of `envs/systems`.

    Its C++ form is `cuda_ext/native/systems/<name>.h`, with the same states, actions, observations, parameters and
    random draws in the same order. Methods are batched over N, take any floating dtype and device, draw nothing by
    themselves and keep nothing between calls.
    """

    name: ClassVar[str]
    """Of the header and, with `-` for `_`, of `native/<name>`."""
    gym_id: ClassVar[str]
    title: ClassVar[str]
    """One line for lists."""
    source: ClassVar[str]
    """Where equations and constants come from."""
    states: ClassVar[tuple[str, ...]]
    observations: ClassVar[tuple[str, ...]]
    actions: ClassVar[tuple[str, ...]]
    action_low: ClassVar[tuple[float, ...]]
    action_high: ClassVar[tuple[float, ...]]
    observation_low: ClassVar[tuple[float, ...]]
    observation_high: ClassVar[tuple[float, ...]]
    parameters: ClassVar[tuple[Parameter, ...]]
    uniforms: ClassVar[int]
    """Uniform draws in [0, 1) that `reset` reads."""
    normals: ClassVar[int] = 0
    """Standard normal draws that `step` reads."""
    time_step: ClassVar[float]
    """Seconds between two actions."""
    max_steps: ClassVar[int]
    """Steps after which an episode is truncated."""
    margin_of: ClassVar[str]
    """What the safety margin measures, in words with its unit."""
    state_units: ClassVar[tuple[str, ...]] = ()
    """Of each state, "" of a number without one; () where they are not known."""
    action_units: ClassVar[tuple[str, ...]] = ()
    """The same of each action."""
    reward_bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """What the reward of a step lies within, whatever the parameters are."""
    goal: ClassVar[Goal | None] = None
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    """Preset of altered dynamics -> parameters that it sets."""
    behaviours: ClassVar[Mapping[str, Behaviour]] = {}
    """Scripted behaviours; `random`, `medium` and `expert` always exist."""
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    """Mixture -> {behaviour: share of the episodes}; `mixed` always exists; shares add up to 1."""

    reach_box: ClassVar[tuple[Range, ...]] = ()
    """A range for each state, wider than the safe set: for grids. () where there is none."""
    control_affine: ClassVar[bool] = False
    """Whether the state's rate of change is affine in the action (and nothing like a collision interrupts it)."""

    handle: int
    """By which the rollout operator, whose arguments are numbers and tensors, finds this object again."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Give every object a handle; it is found by it as long as the object is referenced."""
        self = super().__new__(cls)
        self.handle = next(_handles)
        _alive[self.handle] = self
        return self

    @staticmethod
    def by_handle(handle: int) -> System:
        """The living system with this `handle`."""
        return _alive[handle]

    @abc.abstractmethod
    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) initial states from (N, U) uniform draws and (N, P) parameters."""

    @abc.abstractmethod
    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, O) observations of (N, S) states."""

    @abc.abstractmethod
    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One control step; (N, A) actions lie within the bounds, `normals` is (N, max(1, Z))."""

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) signed margin of (N, S) states, safe if >= 0: what `step` gives of the new ones.

        Systems with a `reach_box` have it.
        """
        raise NotImplementedError(f"{self.alias} does not say the margin of a state")

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) states of (N, O) observations, for a system whose observations hold all of the state.

        Systems with a `reach_box` have it. Angles come out in [-pi, pi).
        """
        if self.observations == self.states:
            return observations
        raise NotImplementedError(f"{self.alias} does not say the state of an observation")

    def default_parameters(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """(P,) of the physics that is described."""
        return torch.tensor([parameter.default for parameter in self.parameters], dtype=dtype)

    def matrices(self) -> Tensor | None:
        """(K,) float64 constants that all environments share, for a system with sizes chosen at run time."""
        return None

    def native_name(self) -> str:
        """By which the native module knows the C++ form: its own systems by `name`, a user's by the library's path."""
        return self.name

    def own_header(self) -> pathlib.Path | None:
        """The C++ form of a user's system, which compilers of GPUs read; None: `native/systems/<name>.h`."""
        return None

    def batch(self, device: torch.device) -> Callable[..., Any] | None:
        """What makes this system's rollouts in compiled code where that is not C++; None: its header and the kernels.

        Called with the arguments of native/rollout.cpp's `Batch` behind the name; arrays lie on `device`.
        """
        return None

    @classmethod
    def alias_of(cls) -> str:
        """The class's name on the command line."""
        return "native/" + cls.name.replace("_", "-")

    @property
    def alias(self) -> str:
        """Its name on the command line."""
        return self.alias_of()


_handles = itertools.count()
_alive: weakref.WeakValueDictionary[int, System] = weakref.WeakValueDictionary()
