"""`PythonSystem`: a simulated system written as plain python functions, for users without C++; compiled by numba."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.errors import ConfigError, MissingExtraError, nearest
from surefoot.cuda_ext.system import Behaviour, Parameter, Step, System
from surefoot.envs.python_source import (
    INTEGRATORS,
    begin_source,
    compiled,
    defined,
    observe_source,
    step_source,
)

Function = Callable[..., Any]
Bounds = tuple[float, float]
ANY = (-np.inf, np.inf)
RESERVED = ("uniforms", "normals")


class PythonSystem(System):
    """A system of scalar python functions, which ask for what they need by the names of their arguments.

    Each may ask for any parameter and, by their names, for any of

    - `derivative(states, actions, normals)`: the rate of every state, per second, in the order of `states`
    - `reward(states, actions, next_<state>)`: a number; a state is the one that the actions met
    - `margin(states, actions)`: signed, safe if >= 0; states are those after the step. Or `cost(...)`: whether the
      constraint is broken. With neither, nothing is forbidden
    - `reset(uniforms)`: the initial states, from the tuple `uniforms` of draws in [0, 1)
    - `observe(states)`: the observation; the states themselves by default
    - `terminated(states, actions)`: whether the state after the step ends the episode; never by default

    `normals` is a tuple of standard normal numbers, new ones in every step. Functions compute in float64 and may call
    `math` and plain python functions of the same file; states are kept in float32, as in native systems.

    Args:
        name: of the system, an identifier.
        states: their names.
        actions: name -> (low, high), finite.
        derivative, reward, margin, cost, reset, observe, terminated: the functions.
        parameters: name -> default value, or `Parameter`s where they have ranges and units.
        integrator: "rk4", "semi_implicit" (the states are positions, then their velocities) or "euler".
        time_step: seconds between two actions.
        substeps: of the integrator in a time step.
        limits: state -> (low, high) that it is clipped to in every substep.
        max_steps: steps after which an episode is truncated.
        observations: names of what `observe` returns; name -> (low, high) where there are bounds.
        uniforms: draws that `reset` reads; one for each state by default.
        normals: draws that `derivative` reads. Where some parameters are called `..._noise`, nothing is drawn for
            environments in which all of those are 0.
        gaps: preset of altered dynamics -> parameters that it sets.
        behaviours: name -> function from (N, O) observations and a generator to (N, A) actions.
        title, margin_of: one line each, for lists.

    Raises:
        ConfigError: names that don't fit, a function that fails, returns another number of values or can't be compiled.
        MissingExtraError: numba is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        states: Sequence[str],
        actions: Mapping[str, Bounds],
        derivative: Function,
        reward: Function,
        reset: Function,
        margin: Function | None = None,
        cost: Function | None = None,
        observe: Function | None = None,
        terminated: Function | None = None,
        parameters: Mapping[str, float] | Sequence[Parameter] = (),
        integrator: str = "rk4",
        time_step: float = 0.02,
        substeps: int = 1,
        limits: Mapping[str, Bounds] | None = None,
        max_steps: int = 500,
        observations: Mapping[str, Bounds] | Sequence[str] | None = None,
        uniforms: int | None = None,
        normals: int = 0,
        gaps: Mapping[str, Mapping[str, float]] | None = None,
        behaviours: Mapping[str, Behaviour] | None = None,
        title: str = "",
        margin_of: str = "",
    ) -> None:
        bounds = np.array([actions[key] for key in actions], dtype=np.float64).reshape(-1, 2)
        seen = _bounded(observations if observe is not None and observations is not None else states)
        if isinstance(parameters, Mapping):
            parameters = [Parameter(key, float(value), *ANY) for key, value in parameters.items()]
        described: dict[str, Any] = {
            "name": name,
            "gym_id": f"python/{name}-v0",
            "title": title or f"{name}, in python",
            "source": inspect.getsourcefile(getattr(derivative, "py_func", derivative)) or "python",
            "states": tuple(states),
            "actions": tuple(actions),
            "action_low": tuple(bounds[:, 0].tolist()),
            "action_high": tuple(bounds[:, 1].tolist()),
            "observations": tuple(seen),
            "observation_low": tuple(float(low) for low, _ in seen.values()),
            "observation_high": tuple(float(high) for _, high in seen.values()),
            "parameters": tuple(parameters),
            "uniforms": len(states) if uniforms is None else uniforms,
            "normals": normals,
            "time_step": float(time_step),
            "max_steps": max_steps,
            "margin_of": margin_of or ("margin()" if margin else "-1 where cost() is true, else 1" if cost else "nothing"),
            "gaps": dict(gaps or {}),
            "behaviours": {"random": functools.partial(_uniform, bounds=bounds), **(behaviours or {})},
        }
        for key, value in described.items():  # of the class elsewhere, of the object here
            setattr(self, key, value)
        functions = {"derivative": derivative, "reward": reward, "reset": reset, "margin": margin, "cost": cost}
        functions |= {"observe": observe, "terminated": terminated}
        self._functions: dict[str, Function] = {kind: f for kind, f in functions.items() if f is not None}
        self._integrator, self._substeps = integrator, substeps
        self._limits = {key: (float(low), float(high)) for key, (low, high) in (limits or {}).items()}
        self._check_options(bounds, observe is not None, observations)
        self._arguments = {kind: self._wanted(kind, function) for kind, function in self._functions.items()}
        self._scalars = self._try()

    # ---- checks: a mistake is told when the system is made ----

    def _check_options(self, bounds: np.ndarray[Any, Any], observed: bool, observations: object) -> None:
        parameters = [parameter.name for parameter in self.parameters]
        names = [*self.states, *self.actions, *parameters]
        for name in [self.name, *names]:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith(("_", "next_")) or name in RESERVED:
                raise ConfigError(f"{self.name}: {name!r} can't be a name here; use letters, digits and _, as in 'speed_x'")
        twice = sorted({name for name in names if names.count(name) > 1})
        problems = {
            f"there are {len(self.states)} states and {len(self.actions)} actions; give 1 or more": not self.states
            or not self.actions,
            f"{', '.join(map(repr, twice))} is named twice; states, actions and parameters need names of their own": twice,
            "an action's bounds must be finite, low < high, as in {'torque': (-2, 2)}": not np.isfinite(bounds).all()
            or (bounds[:, 0] >= bounds[:, 1]).any(),
            f"integrator is {self._integrator!r}; {nearest(str(self._integrator), list(INTEGRATORS))}": self._integrator
            not in INTEGRATORS,
            "semi_implicit needs positions, then as many velocities": self._integrator == "semi_implicit"
            and len(self.states) % 2,
            "time_step, substeps and max_steps must be above 0": min(self.time_step, self._substeps, self.max_steps) <= 0,
            "uniforms and normals must be 0 to 64": not 0 <= min(self.uniforms, self.normals)
            or max(self.uniforms, self.normals) > 64,
            "give margin= or cost=, not both": {"margin", "cost"} <= set(self._functions),
            "observe= needs observations=, the names of what it returns": observed and observations is None,
            "observations= needs observe=, the function that returns them": observations is not None and not observed,
            f"limits of {sorted(set(self._limits) - set(self.states))}: there are no such states": set(self._limits)
            - set(self.states),
        }
        for sentence, wrong in problems.items():
            if wrong:
                raise ConfigError(f"{self.name}: {sentence}")

    def _wanted(self, kind: str, function: Function) -> tuple[str, ...]:
        """Names of the arguments of a function, all of them known."""
        known = {parameter.name for parameter in self.parameters}
        known |= {"uniforms"} if kind == "reset" else set(self.states)
        known |= set(self.actions) if kind not in ("reset", "observe") else set()
        known |= {"normals"} if kind == "derivative" else set()
        known |= {f"next_{name}" for name in self.states} if kind == "reward" else set()
        if not callable(function):
            raise ConfigError(f"{self.name}: {kind}= is {function!r}; give a function")
        wanted = inspect.signature(getattr(function, "py_func", function)).parameters
        for name, argument in wanted.items():
            if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.POSITIONAL_ONLY) or name not in known:
                raise ConfigError(f"{self.name}: {kind}() asks for {name!r}; {nearest(name, sorted(known))}")
        return tuple(wanted)

    def _try(self) -> set[str]:
        """Call every function once, in python; those that return one number instead of a sequence."""
        values: dict[str, Any] = {parameter.name: float(parameter.default) for parameter in self.parameters}
        pairs = zip(self.actions, self.action_low, self.action_high)
        values |= {name: 0.6 * low + 0.4 * high for name, low, high in pairs}
        values["uniforms"] = tuple((0.381966 * (k + 1)) % 1 for k in range(self.uniforms))
        values["normals"] = tuple(0.1 * (k + 1) for k in range(max(1, self.normals)))
        state, names = self.states, {"reset": "state", "observe": "observation", "derivative": "rate"}
        scalars: set[str] = set()
        counts = {"reset": len(state), "derivative": len(state), "observe": len(self.observations)}
        for kind in sorted(self._functions, key=lambda kind: kind != "reset"):
            result = self._called(kind, values)
            several = isinstance(result, tuple)
            numbers = result if several else (result,)
            if not all(isinstance(number, (int, float, np.number, np.bool_)) for number in numbers):
                raise ConfigError(f"{self.name}: {kind}() returns {result!r}; it must return numbers, separated by commas")
            wanted = counts.get(kind, 1)
            if len(numbers) != wanted or (several and kind not in counts):
                what = f"{wanted} {names[kind]}{'s' if wanted > 1 else ''}" if kind in counts else "one number"
                listed = ", ".join(self.observations if kind == "observe" else state) if kind in counts else ""
                raise ConfigError(
                    f"{self.name}: {kind}() returns {len(numbers)} value{'s' if len(numbers) != 1 else ''}; it must return "
                    f"{what}" + (f": of {listed}" if listed else "")
                )
            scalars |= {kind} if not several and kind in counts else set()
            if kind == "reset":
                values |= {name: float(number) for name, number in zip(state, numbers)}
                values |= {f"next_{name}": float(number) for name, number in zip(state, numbers)}
        return scalars

    def _called(self, kind: str, values: Mapping[str, Any]) -> Any:
        given = {name: values[name] for name in self._arguments[kind]}
        try:
            return self._functions[kind](*given.values())
        except Exception as error:
            raise ConfigError(
                f"{self.name}: {kind}() fails ({type(error).__name__}: {error}) when it is called with "
                f"{', '.join(f'{name}={value}' for name, value in given.items()) or 'nothing'}; make it work for any numbers"
            ) from error

    # ---- compilation ----

    @functools.cached_property
    def compiled(self) -> Any:
        """The system as `numba_backend.Functions`: made at first use, kept for the life of this object."""
        _need_numba(self.name)
        from surefoot.cuda_ext.numba_backend import Functions
        from surefoot.cuda_ext.numba_maths import REPLACED, inlined

        names = [parameter.name for parameter in self.parameters]
        spaces: dict[str, Any] = {"_clip": inlined(_clip)}
        done: dict[Any, Any] = dict(REPLACED)
        for kind, function in self._functions.items():
            ready = compiled(function, inlined, done)
            self._compile_alone(kind, ready)
            spaces[f"_call_{kind}"] = inlined(_as_tuple(ready)) if kind in self._scalars else ready
        arguments = self._arguments
        sources = {
            "begin": begin_source(self.states, names, self.uniforms, arguments["reset"]),
            "observe": observe_source(self.states, names, len(self.observations), arguments.get("observe")),
            "step": step_source(
                self.states, self.actions, names, self.normals, self._integrator, self.time_step / self._substeps,
                self._substeps, self._limits, arguments,
            ),
        }  # fmt: skip
        made = {name: inlined(defined(source, name, spaces)) for name, source in sources.items()}
        widths = (len(self.states), len(self.actions), len(self.observations), len(self.parameters))
        return Functions(**made, sizes=(*widths, self.uniforms, self.normals))

    def _compile_alone(self, kind: str, function: Any) -> None:
        """Compile one function for numbers, so that its own name is in the message where that fails."""
        import numba

        if numba.config.DISABLE_JIT:  # NUMBA_DISABLE_JIT=1 leaves them plain python, for a debugger
            return
        tuples = {"uniforms": self.uniforms, "normals": max(1, self.normals)}
        number = numba.float64
        kinds = [numba.types.UniTuple(number, tuples[n]) if n in tuples else number for n in self._arguments[kind]]
        try:
            function.compile(tuple(kinds))
        except Exception as error:  # numba's own failures are of many kinds
            raise ConfigError(
                f"{self.name}: numba can't compile {kind}(): {_reason(error)}; use numbers, math and plain functions of "
                "numbers only (docs/python_systems.md)"
            ) from error
        result = function.nopython_signatures[-1].return_type
        parts = list(result) if isinstance(result, numba.types.BaseTuple) else [result]
        if not all(isinstance(part, (numba.types.Number, numba.types.Boolean)) for part in parts):
            raise ConfigError(f"{self.name}: {kind}() doesn't always return numbers (but {result}); return them in every case")

    def batch(self, device: torch.device) -> Callable[..., Any]:
        """Maker of its rollouts, with the arguments of the native module's `Batch` behind the name."""
        functions = self.compiled
        from surefoot.cuda_ext.numba_backend import Batch, CudaBatch

        return functools.partial(CudaBatch if device.type == "cuda" else Batch, functions)

    # ---- row by row, as every system; on the CPU, without gradients ----

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) initial states."""
        state = np.empty((len(uniforms), len(self.states)))
        self.compiled.rows[0](state, *map(_array, (parameters, uniforms)))
        return _like(state, parameters)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, O) observations."""
        seen = np.empty((len(state), len(self.observations)))
        self.compiled.rows[1](seen, *map(_array, (state, parameters)))
        return _like(seen, state)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One control step; where the new state is not finite or too large, it is NaN."""
        moved, outcome = _array(state).copy(), np.empty((len(state), 3))
        self.compiled.rows[2](moved, outcome, *map(_array, (action, parameters, normals)))
        reward, margin, ended = (_like(column, state) for column in outcome.T)
        return Step(_like(moved, state), reward, margin, ended > 0)

    @property
    def alias(self) -> str:
        """How it is called in messages."""
        return f"python/{self.name}"

    def register(self) -> str:
        """Make it known to gymnasium in this process, for `make`, `make_vec` and evaluation; its id."""
        from surefoot.envs.native import NativeEnv, NativeVectorEnv

        def make(num_envs: int = 1, **options: Any) -> NativeVectorEnv:
            return NativeVectorEnv(self, num_envs, **options)

        def make_single(**options: Any) -> NativeEnv:
            options.pop("render_mode", None)
            return NativeEnv(self, **options)

        gymnasium.registry.pop(self.gym_id, None)
        gymnasium.register(
            self.gym_id,
            make_single,
            vector_entry_point=make,
            max_episode_steps=self.max_steps,
            disable_env_checker=True,
        )
        return self.gym_id


def _bounded(names: Mapping[str, Bounds] | Sequence[str]) -> Mapping[str, Bounds]:
    return names if isinstance(names, Mapping) else dict.fromkeys(names, ANY)


def _uniform(observations: np.ndarray[Any, Any], generator: np.random.Generator, bounds: Any) -> np.ndarray[Any, Any]:
    """Actions drawn uniformly at every step."""
    return generator.uniform(bounds[:, 0], bounds[:, 1], (len(observations), len(bounds)))


def _clip(x: float, low: float, high: float) -> float:
    """What is no number stays so."""
    return low if x < low else (high if x > high else x)


def _as_tuple(function: Function) -> Function:
    def several(*values: Any) -> Any:
        return (function(*values),)

    return several


def _array(values: Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values.detach().to("cpu", torch.float64).numpy())


def _like(values: np.ndarray[Any, Any], other: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(other)


def _need_numba(name: str) -> None:
    if importlib.util.find_spec("numba") is None:
        raise MissingExtraError("numba", "numba", f"{name}, a system written in python,")


def _reason(error: Exception) -> str:
    """The first telling line of numba's message, with the line of the user's file where it knows it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip(" -*>") for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("Failed in", "During", "File", "<source"))]
    where = re.search(r'File "([^"]+)", line (\d+)', text)
    place = f" (line {where[2]} of {where[1]})" if where else ""
    return (told[0].rstrip(".") if told else type(error).__name__) + place
