"""`OwnSystem`: a simulated system that a user describes, in whatever language its equations are."""

from __future__ import annotations

import functools
import keyword
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.system import Behaviour, Parameter, Range, System

Bounds = tuple[float, float]
ANY = (-np.inf, np.inf)
MOST_DRAWS = 64
"""In a step: as many numbers are counted for each."""


class OwnSystem(System):
    """A system whose description is given to an object; subclasses bring its equations.

    Args:
        name: of the system, an identifier.
        gym_id: by which `register` makes it known.
        states: their names.
        actions: name -> (low, high), finite.
        observations: names of what is observed; name -> (low, high) where there are bounds; the states by default.
        parameters: name -> default value, or a `Parameter` each where they have ranges and units.
        time_step: seconds between two actions.
        max_steps: steps after which an episode is truncated.
        uniforms: draws in [0, 1) that a reset reads; one for each state by default.
        normals: standard normal draws that a step reads.
        gaps: preset of altered dynamics -> parameters that it sets.
        behaviours: name -> function from (N, O) observations and a generator to (N, A) actions.
        reach_box: state -> (low, high, points), or (low, high, points, True) of an angle whose ends are one state: the
            grid on which `surefoot reach` solves it, wider than the safe set. None: no grid.
        control_affine: the state's rate is affine in the actions: for the filter `cbf`.
        title, margin_of, source: one line each, for lists.

    Raises:
        ConfigError: names, bounds or numbers that can't be.
    """

    def __init__(
        self,
        name: str,
        gym_id: str,
        *,
        states: Sequence[str],
        actions: Mapping[str, Bounds],
        observations: Mapping[str, Bounds] | Sequence[str] | None,
        parameters: Mapping[str, float] | Sequence[Parameter],
        time_step: float,
        max_steps: int,
        uniforms: int | None,
        normals: int,
        gaps: Mapping[str, Mapping[str, float]] | None,
        behaviours: Mapping[str, Behaviour] | None,
        reach_box: Mapping[str, Sequence[Any]] | None,
        control_affine: bool,
        title: str,
        margin_of: str,
        source: str,
    ) -> None:
        bounds = np.array([*pairs(name, "actions", actions).values()], dtype=np.float64).reshape(-1, 2)
        seen = _bounded(name, states if observations is None else observations)
        if isinstance(parameters, Mapping):
            parameters = [Parameter(key, float(value), *ANY) for key, value in parameters.items()]
        described: dict[str, Any] = {
            "name": name,
            "gym_id": gym_id,
            "title": title,
            "source": source,
            "states": tuple(states),
            "actions": tuple(actions),
            "action_low": tuple(bounds[:, 0].tolist()),
            "action_high": tuple(bounds[:, 1].tolist()),
            "observations": tuple(seen),
            "observation_low": tuple(low for low, _ in seen.values()),
            "observation_high": tuple(high for _, high in seen.values()),
            "parameters": tuple(parameters),
            "uniforms": len(states) if uniforms is None else uniforms,
            "normals": normals,
            "time_step": float(time_step),
            "max_steps": max_steps,
            "margin_of": margin_of,
            "gaps": dict(gaps or {}),
            "behaviours": {"random": functools.partial(_uniform, bounds=bounds), **(behaviours or {})},
        }
        if reach_box is not None:
            described["reach_box"] = ranges(name, tuple(states), reach_box)
        if control_affine:
            described["control_affine"] = True
        for key, value in described.items():  # of the class elsewhere, of the object here
            setattr(self, key, value)
        _check(self)

    def register(self) -> str:
        """Make it known to gymnasium in this process, for `make`, `make_vec`, training and evaluation; its id."""
        from surefoot.envs.native import NativeVectorEnv
        from surefoot.envs.native_single import NativeEnv

        gymnasium.registry.pop(self.gym_id, None)
        gymnasium.register(
            self.gym_id,
            functools.partial(NativeEnv, self),
            vector_entry_point=functools.partial(NativeVectorEnv, self),
            max_episode_steps=self.max_steps,
            disable_env_checker=True,
        )
        return self.gym_id


def pairs(system: str, option: str, bounds: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Name -> (low, high) as floats; ConfigError where a value is no such pair."""
    found = {}
    for name in bounds:
        try:
            low, high = bounds[name]
            found[name] = float(low), float(high)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{system}: {option}= has {bounds[name]!r} for {name!r}; give (low, high)") from error
    return found


def ranges(system: str, states: Sequence[str], box: Mapping[str, Sequence[Any]]) -> tuple[Range, ...]:
    """The box of a grid in the order of the states; ConfigError where it is none."""
    if set(box) != set(states):
        raise ConfigError(
            f"{system}: reach_box= has {', '.join(box) or 'nothing'}; give a range for each of {', '.join(states)}"
        )
    found = []
    for name in states:
        try:
            low, high, points, *periodic = box[name]
            one = Range(float(low), float(high), int(points), bool(*periodic))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{system}: reach_box= has {box[name]!r} for {name!r}; give (low, high, points), and True behind them "
                "where high is the same state as low, as of an angle"
            ) from error
        if not -math.inf < one.low < one.high < math.inf or one.points != points:
            raise ConfigError(f"{system}: reach_box= has {box[name]!r} for {name!r}; give low < high and whole points")
        found.append(one)
    return tuple(found)


def check_identifier(system: System, name: str) -> None:
    """Raise ConfigError for a name that can't be a variable's."""
    if keyword.iskeyword(name) or name.startswith("_") or not name.isidentifier():
        refuse(system, f"{name!r} can't be a name here; use letters, digits and _, as in 'speed_x'")


def refuse(system: System, sentence: str) -> None:
    """Raise ConfigError with the system's name."""
    raise ConfigError(f"{system.name}: {sentence}")


def _check(system: System) -> None:
    """Raise ConfigError where names, bounds or numbers can't be."""
    parameters = [parameter.name for parameter in system.parameters]
    names = [*system.states, *system.actions, *parameters]
    for name in [system.name, *parameters]:  # the command line has them
        check_identifier(system, name)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        refuse(system, f"{twice[0]!r} is named twice; states, actions and parameters need names of their own")
    if not system.states or not system.actions:
        refuse(system, f"there are {len(system.states)} states and {len(system.actions)} actions; give 1 or more")
    for low, high in zip(system.action_low, system.action_high):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            refuse(system, "an action's bounds must be finite, low < high, as in {'torque': (-2, 2)}")
    if min(system.time_step, system.max_steps) <= 0:
        refuse(system, "time_step and max_steps must be above 0")
    if min(system.uniforms, system.normals) < 0 or max(system.uniforms, system.normals) > MOST_DRAWS:
        refuse(system, f"uniforms and normals must be 0 to {MOST_DRAWS}")


def _bounded(name: str, given: Mapping[str, Bounds] | Sequence[str]) -> Mapping[str, Bounds]:
    return pairs(name, "observations", given) if isinstance(given, Mapping) else dict.fromkeys(given, ANY)


def _uniform(observations: np.ndarray[Any, Any], generator: np.random.Generator, bounds: Any) -> np.ndarray[Any, Any]:
    """Actions drawn uniformly at every step."""
    return generator.uniform(bounds[:, 0], bounds[:, 1], (len(observations), len(bounds)))
