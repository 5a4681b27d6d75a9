"""Simulator states of single rows, read and set: which environments have them, and under which names.

Three kinds have some. Environments of many rows have `state`, (N, S) numbers that can be assigned, and `observations`,
(N, ...) of the present states: native systems, MuJoCo tasks that we step, and any of a user's that has both. Single
environments on a MuJoCo model have its `qpos` and `qvel`, and `button_states` in OGBench's scenes and puzzles. Other
single environments have `state`, numbers that can be assigned, as gymnasium's classic control.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.base.spec import mapped
from surefoot.envs.adapters.gym_in import ConvertedVectorEnv, GymnasiumVectorEnv
from surefoot.envs.curriculum import VariedParameters
from surefoot.envs.given import GivenVectorEnv
from surefoot.envs.interface import as_numpy
from surefoot.envs.side_by_side import PausingVectorEnv, name_of, own_errors

Array = np.ndarray[Any, Any]
States = dict[str, Array]
"""Name -> (K, width) numbers."""

STATE, POSITIONS, VELOCITIES, BUTTONS = "state", "qpos", "qvel", "button_states"
NAMES = (STATE, POSITIONS, VELOCITIES, BUTTONS)
"""All names that states may have, in files and in columns of data."""
NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD
OBSERVING = ("observe", "_get_obs", "get_ob", "_get_ob", "compute_observation")
"""Methods by which single environments give the observation of their present state; the first that there is."""


class Placing(Protocol):
    """Reads and sets the simulator states of single rows of an environment."""

    @property
    def widths(self) -> dict[str, int]:
        """Name -> how many numbers a row has."""
        ...

    def read(self) -> States:
        """Name -> (N, width), copies."""
        ...

    def place(self, rows: Array, states: Mapping[str, Array]) -> None:
        """Set the states of some rows, each at the first step of an episode; the others stay as they are.

        Args:
            rows: (M,) numbers of rows.
            states: name -> (M, width), as `fitting` gives them.
        """
        ...

    def observations(self) -> Any:
        """(N, ...) of the present states, copies in the kind of numbers that the environment gives."""
        ...


def placing(env: Any) -> Placing:
    """What reads and sets the states of an environment's rows.

    Raises:
        EnvironmentMismatchError: its state can't be set; the message names it.
    """
    inner = env
    while isinstance(inner, GivenVectorEnv | GymnasiumVectorEnv | ConvertedVectorEnv | VariedParameters):
        if inner.env.num_envs != inner.num_envs:
            raise no_state(name_of(env))
        inner = inner.env
    give = getattr(env, "give", as_numpy)
    if isinstance(inner, PausingVectorEnv):
        return SinglePlacing(inner, give)
    if _settable(type(inner), STATE) and hasattr(type(inner), "observations"):
        several = isinstance(env.single_observation_space, gymnasium.spaces.Dict)
        if several == isinstance(inner.observations, Mapping):  # else it observes pictures too, say
            return RowsPlacing(inner, give)
    raise no_state(name_of(env))


def no_state(name: str) -> EnvironmentMismatchError:
    """What to raise where an environment's state can't be set."""
    return EnvironmentMismatchError(
        f"{name}: its simulator's state can't be set, so that no episode can start from a snapshot: that takes a "
        "property `state` that can be assigned and what observes it (docs/snapshots.md)"
    )


def fitting(where: Placing, states: Mapping[str, Array], name: str, source: str) -> States:
    """States as an environment takes them: name -> (K, width) of its own names.

    Args:
        where: of the environment.
        states: name -> (K, width): under the environment's names, or of a MuJoCo model under `qpos` and `qvel`.
        name: what messages call the environment.
        source: what they call the states.

    Raises:
        EnvironmentMismatchError: names or widths are another environment's.
    """
    widths = where.widths
    from_model = getattr(where, "from_model", None)
    if STATE in widths and STATE not in states and POSITIONS in states and from_model is not None:
        states = {STATE: from_model(states)}
    for key, width in widths.items():
        found = states[key].shape if key in states else None
        if found is None or len(found) != 2 or found[1] != width:
            has = ", ".join(f"{other!r} of {value.shape[-1]}" for other, value in states.items())
            raise EnvironmentMismatchError(
                f"{source}: has {has} numbers a state, and {name} needs {key!r} of {width}: it is of another "
                "environment or of another way to make it; record one there (surefoot snapshots)"
            )
    return {key: np.asarray(states[key]) for key in widths}


class RowsPlacing:
    """Of an environment of many rows with `state` and `observations`."""

    def __init__(self, env: Any, give: Any) -> None:
        """Take over what `placing` found."""
        self.env, self.give = env, give
        if hasattr(env, "state_from"):
            self.from_model = self._from_model

    def _from_model(self, states: Mapping[str, Array]) -> Array:
        """(K, S) states at rest in time of positions and velocities of the model."""
        found: Array = self.env.state_from(states[POSITIONS], states.get(VELOCITIES))
        return found

    @property
    def widths(self) -> dict[str, int]:
        """As `Placing.widths`."""
        return {STATE: int(np.shape(self.env.state)[1])}

    def read(self) -> States:
        """As `Placing.read`."""
        return {STATE: np.array(as_numpy(self.env.state))}

    def place(self, rows: Array, states: Mapping[str, Array]) -> None:
        """As `Placing.place`."""
        now = np.array(as_numpy(self.env.state))
        now[rows] = states[STATE]
        self.env.state = now

    def observations(self) -> Any:
        """As `Placing.observations`."""
        return mapped(lambda values: self.give(np.array(as_numpy(values))), self.env.observations)


class SinglePlacing:
    """Of single environments side by side."""

    def __init__(self, env: PausingVectorEnv, give: Any) -> None:
        """Find out what their states are.

        Raises:
            EnvironmentMismatchError: they have none, or a wrapper hides what observes them.
        """
        self.env, self.give, self.name = env, give, name_of(env)
        first: Any = env.envs[0].unwrapped
        self.model = _has_model(first)
        if not self.model and not _has_numbers(first):
            raise no_state(self.name)
        if self.model and _follows_mocap(first.model):
            raise EnvironmentMismatchError(
                f"{self.name}: a mocap body pulls its robot, and positions and velocities don't say where that is, so "
                "that no episode can start from a snapshot there"
            )
        if not _observes(first):
            raise EnvironmentMismatchError(
                f"{self.name}: nothing of it gives the observation of a state that was set, so that no episode can "
                "start from a snapshot there: add a method observe() that does (docs/snapshots.md)"
            )
        _check_wrappers(env.envs[0], self.name)

    @property
    def widths(self) -> dict[str, int]:
        """As `Placing.widths`."""
        inner: Any = self.env.envs[0].unwrapped
        if not self.model:
            return {STATE: _numbers(inner.state).size}
        found = {POSITIONS: int(inner.model.nq), VELOCITIES: int(inner.model.nv)}
        buttons = _buttons(inner)
        return found if buttons is None else {**found, BUTTONS: buttons.size}

    def read(self) -> States:
        """As `Placing.read`."""
        return {key: np.stack([self._row(env.unwrapped)[key] for env in self.env.envs]) for key in self.widths}

    def _row(self, inner: Any) -> States:
        if not self.model:
            return {STATE: _numbers(inner.state).copy()}
        found = {POSITIONS: np.array(inner.data.qpos), VELOCITIES: np.array(inner.data.qvel)}
        buttons = _buttons(inner)
        return found if buttons is None else {**found, BUTTONS: buttons.copy()}

    def place(self, rows: Array, states: Mapping[str, Array]) -> None:
        """As `Placing.place`."""
        for position, row in enumerate(np.asarray(rows).tolist()):
            env = self.env.envs[row]
            with own_errors(env, "state"):
                self._set(env.unwrapped, {key: value[position] for key, value in states.items()})
                self.env.observe_again(row, _observed(env))

    def _set(self, inner: Any, state: States) -> None:
        if not self.model:
            like = inner.state
            value = state[STATE].reshape(np.shape(like))
            inner.state = tuple(value.tolist()) if isinstance(like, tuple) else value.astype(np.asarray(like).dtype)
            return
        if BUTTONS in state:
            inner.set_state(state[POSITIONS], state[VELOCITIES], state[BUTTONS].astype(np.int64))
        elif hasattr(inner, "set_state"):
            inner.set_state(state[POSITIONS], state[VELOCITIES])
        else:
            inner.data.qpos[:], inner.data.qvel[:] = state[POSITIONS], state[VELOCITIES]
            sys.modules["mujoco"].mj_forward(inner.model, inner.data)

    def observations(self) -> Any:
        """As `Placing.observations`."""
        return mapped(lambda values: self.give(np.array(values)), self.env.last_observations)


def _settable(kind: type, name: str) -> bool:
    """Whether a class has a property of this name that can be assigned."""
    found = getattr(kind, name, None)
    return isinstance(found, property) and found.fset is not None


def _has_model(inner: Any) -> bool:
    """Whether an environment is one on a MuJoCo model of mujoco's own python package."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(getattr(inner, "model", None), mujoco.MjModel)


def _follows_mocap(model: Any) -> bool:
    """Whether something in a MuJoCo model is welded to a body that is moved from outside, as Fetch's grippers are."""
    joined = {int(body) for pair in (model.eq_obj1id, model.eq_obj2id) for body in pair if 0 <= body < model.nbody}
    return any(model.body_mocapid[body] >= 0 for body in joined)


def _has_numbers(inner: Any) -> bool:
    """Whether a single environment has `state`, numbers (or None before the first reset) that can be assigned."""
    if not hasattr(inner, STATE) or (
        isinstance(getattr(type(inner), STATE, None), property) and not _settable(type(inner), STATE)
    ):
        return False
    return inner.state is None or np.asarray(inner.state).dtype.kind in "fiub"


def _numbers(state: Any) -> Array:
    return np.asarray(state, np.float64).reshape(-1)


def _buttons(inner: Any) -> Array | None:
    """States of the buttons of OGBench's scenes and puzzles; None of others."""
    found = getattr(inner, "_cur_button_states", None)
    return None if found is None else np.asarray(found)


def _check_wrappers(env: Any, name: str) -> None:
    """Refuse wrappers that make of observations what a state alone does not tell."""
    while isinstance(env, gymnasium.Wrapper):
        passes_on = env.observation_space == env.env.observation_space
        if not passes_on and not isinstance(env, gymnasium.ObservationWrapper):
            raise EnvironmentMismatchError(
                f"{name}: its wrapper {type(env).__name__} makes observations by more than the present state, so that "
                "no episode can start from a snapshot there: leave the wrapper out"
            )
        env = env.env


def _observed(env: Any) -> Any:
    """The observation of the present state, through all wrappers."""
    if isinstance(env, gymnasium.Wrapper):
        inner = _observed(env.env)
        return env.observation(inner) if isinstance(env, gymnasium.ObservationWrapper) else inner
    method = _observing(env)
    return _state_as_observation(env) if method is None else method()


def _observing(env: Any) -> Any:
    """The method that gives the observation of the present state by itself; None: there is none."""
    for method in (getattr(env, name, None) for name in OBSERVING):
        if callable(method):
            asked = inspect.signature(method).parameters.values()
            needs = [one for one in asked if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, NAMED)]
            return None if needs else method
    return None


def _state_as_observation(env: Any) -> Array | None:
    """The present state as an observation, where it is one; else None."""
    space = env.observation_space
    if not hasattr(env, STATE) or not isinstance(space, gymnasium.spaces.Box):
        return None
    numbers = _numbers(env.state)
    return numbers.reshape(space.shape).astype(space.dtype) if numbers.size == int(np.prod(space.shape)) else None


def _observes(env: Any) -> bool:
    """Whether something of an environment gives the observation of a state that was set."""
    return _observing(env) is not None or _state_as_observation(env) is not None
