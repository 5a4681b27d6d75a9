"""Checks of a `PythonSystem` when it is made; each error says in one sentence what to change."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, MissingExtraError, nearest
from surefoot.cuda_ext.system import System
from surefoot.envs.own_system import check_identifier, refuse
from surefoot.envs.python_source import INTEGRATORS

Function = Callable[..., Any]
RESERVED = ("uniforms", "normals")
COUNTED = {"reset": "state", "derivative": "rate", "observe": "observation", "state_of": "state"}
"""Functions that return one number for each of several names."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A system with what its user gave."""

    system: System
    functions: Mapping[str, Function]
    integrator: str
    substeps: int
    limits: Mapping[str, tuple[float, float]]
    observations: bool
    """Whether names of observations were given."""


def check_options(given: Given) -> None:
    """Raise ConfigError where names, bounds or numbers can't be."""
    system, limits = given.system, given.limits
    for name in [*system.states, *system.actions, *(parameter.name for parameter in system.parameters)]:
        check_identifier(system, name)
        if name in RESERVED or name.startswith("next_"):
            refuse(system, f"{name!r} can't be a name here: arguments of functions are called so")
    if given.integrator not in INTEGRATORS:
        refuse(system, f"integrator is {given.integrator!r}; {nearest(str(given.integrator), list(INTEGRATORS))}")
    if given.integrator == "semi_implicit" and len(system.states) % 2:
        refuse(system, "semi_implicit needs positions, then as many velocities")
    if given.substeps <= 0:
        refuse(system, "substeps must be above 0")
    unknown = sorted(set(limits) - set(system.states))
    if unknown:
        refuse(system, f"limits of {unknown[0]!r}: there are no such states; {nearest(unknown[0], system.states)}")
    if {"margin", "cost"} <= set(given.functions):
        refuse(system, "give margin= or cost=, not both")
    if "observe" in given.functions and not given.observations:
        refuse(system, "observe= needs observations=, the names of what it returns")
    if given.observations and "observe" not in given.functions:
        refuse(system, "observations= needs observe=, the function that returns them")
    if "state_of" in given.functions and "observe" not in given.functions:
        refuse(system, "state_of= is of what observe= returns; without it observations are the states")


def wanted(given: Given, kind: str) -> tuple[str, ...]:
    """Names of the arguments of a function; ConfigError where one is not known."""
    system, function = given.system, given.functions[kind]
    known = {parameter.name for parameter in system.parameters}
    known |= {"uniforms"} if kind == "reset" else set(system.observations if kind == "state_of" else system.states)
    known |= set(system.actions) if kind not in ("reset", "observe", "state_of") else set()
    known |= {"normals"} if kind == "derivative" else set()
    known |= {f"next_{name}" for name in system.states} if kind == "reward" else set()
    if not callable(function):
        refuse(system, f"{kind}= is {function!r}; give a function")
    asked = inspect.signature(getattr(function, "py_func", function)).parameters
    for name, argument in asked.items():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.POSITIONAL_ONLY) or name not in known:
            refuse(system, f"{kind}() asks for {name!r}; {nearest(name, sorted(known))}")
    return tuple(asked)


def tried(given: Given, arguments: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Call every function once, in python; those that return a number instead of a tuple of one.

    Raises:
        ConfigError: a function fails, or returns something else, or another number of values.
    """
    system = given.system
    values: dict[str, Any] = {parameter.name: float(parameter.default) for parameter in system.parameters}
    bounds = zip(system.actions, system.action_low, system.action_high)
    values |= {name: 0.6 * low + 0.4 * high for name, low, high in bounds}
    values["uniforms"] = tuple((0.381966 * (k + 1)) % 1 for k in range(system.uniforms))
    values["normals"] = tuple(0.1 * (k + 1) for k in range(max(1, system.normals)))
    scalars: set[str] = set()
    first = {"reset": 0, "observe": 1}  # what they return are the others' arguments
    for kind in sorted(given.functions, key=lambda kind: first.get(kind, 2)):
        if kind == "state_of":
            continue  # with what was observed, above
        result = _called(given, kind, {name: values[name] for name in arguments[kind]})
        numbers = result if isinstance(result, tuple) else (result,)
        _check_result(system, kind, result, numbers)
        if kind in COUNTED and not isinstance(result, tuple):
            scalars.add(kind)
        if kind == "reset":
            values |= {name: float(number) for name, number in zip(system.states, numbers)}
            values |= {f"next_{name}": float(number) for name, number in zip(system.states, numbers)}
        if kind == "observe" and "state_of" in given.functions:
            back = _observed(given, arguments["state_of"], numbers, values)
            scalars |= set() if isinstance(back, tuple) else {"state_of"}
    return scalars


def _observed(given: Given, arguments: tuple[str, ...], numbers: tuple[Any, ...], values: dict[str, Any]) -> Any:
    """What `state_of` returns; refuse it where that is not the state that was observed, up to turns of an angle."""
    system = given.system
    seen = {**values, **dict(zip(system.observations, map(float, numbers), strict=True))}
    back = _called(given, "state_of", {name: seen[name] for name in arguments})
    states = back if isinstance(back, tuple) else (back,)
    _check_result(system, "state_of", back, states)
    for name, state in zip(system.states, states, strict=True):
        turns = (float(state) - values[name]) / (2 * math.pi)
        if not (math.isclose(float(state), values[name], abs_tol=1e-6) or abs(turns - round(turns)) < 1e-6):
            refuse(system, f"state_of() gives {name} = {float(state):g} of what observe() shows of {values[name]:g}")
    return back


def _called(given: Given, kind: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return given.functions[kind](*arguments.values())
    except Exception as error:
        listed = ", ".join(f"{name}={value}" for name, value in arguments.items()) or "nothing"
        raise ConfigError(
            f"{given.system.name}: {kind}() fails ({type(error).__name__}: {error}) when it is called with {listed}; "
            "make it work for any numbers"
        ) from error


def _check_result(system: System, kind: str, result: Any, numbers: tuple[Any, ...]) -> None:
    if not all(isinstance(number, (int, float, np.number, np.bool_)) for number in numbers):
        refuse(system, f"{kind}() returns {result!r}; it must return numbers, separated by commas")
    found = f"{kind}() returns {len(numbers)} value{'s' if len(numbers) != 1 else ''}"
    if kind not in COUNTED and isinstance(result, tuple):
        refuse(system, f"{found}; it must return one number")
    names = system.observations if kind == "observe" else system.states
    if kind in COUNTED and len(numbers) != len(names):
        what = f"{len(names)} {COUNTED[kind]}{'s' if len(names) > 1 else ''}: of {', '.join(names)}"
        refuse(system, f"{found}; it must return {what}")


def need_numba(name: str) -> None:
    """Raise MissingExtraError where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        raise MissingExtraError("numba", "numba", f"{name}, a system written in python,")


def reason(error: Exception) -> str:
    """The first telling line of numba's message, with the line of the user's file where it knows it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip(" -*>") for line in text.splitlines()]
    reported = [line for line in lines if line and not line.startswith(("Failed in", "During", "File", "<source"))]
    where = re.search(r'File "([^"]+)", line (\d+)', text)
    place = f" (line {where[2]} of {where[1]})" if where else ""
    return (reported[0].rstrip(".") if reported else type(error).__name__) + place
