"""`PythonSystem`: a simulated system written as plain python functions, for users without C++; compiled by numba."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.system import Behaviour, Parameter, Step
from surefoot.envs.own_system import Bounds, OwnSystem, pairs
from surefoot.envs.python_checks import (
    COUNTED,
    Given,
    check_options,
    need_numba,
    reason,
    tried,
    wanted,
)
from surefoot.envs.python_source import (
    begin_source,
    compiled,
    defined,
    observe_source,
    step_source,
)
from surefoot.envs.python_torch import Twin, recorded

Function = Callable[..., Any]


class PythonSystem(OwnSystem):
    """A system of scalar python functions, which ask for what they need by the names of their arguments.

    Each may ask for any parameter and, by their names, for any of

    - `derivative(states, actions, normals)`: the rate of every state, per second, in the order of `states`
    - `reward(states, actions, next_<state>)`: a number; a state is the one that the actions met
    - `margin(states, actions)`: signed, safe if >= 0; states are those after the step. Or `cost(...)`: whether the
      constraint is broken. With neither, nothing is forbidden
    - `reset(uniforms)`: the initial states, from the tuple `uniforms` of draws in [0, 1)
    - `observe(states)`: the observation; the states themselves by default
    - `state_of(observations)`: the states again, where `observe` shows all of them: for safety filters
    - `terminated(states, actions)`: whether the state after the step ends the episode; never by default

    `normals` is a tuple of standard normal numbers, new ones in every step. Functions compute in float64 and may call
    `math` and plain python functions of the same file; states are kept in float32, as in native systems.

    Args:
        name: of the system, an identifier.
        states: their names.
        actions: name -> (low, high), finite.
        derivative, reward, margin, cost, reset, observe, state_of, terminated: the functions.
        parameters: name -> default value, or a `Parameter` each where they have ranges and units.
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
        reach_box: state -> (low, high, points), or (low, high, points, True) of an angle whose ends are one state: the
            grid on which `surefoot reach` solves it, wider than the safe set. None: no grid.
        control_affine: the derivative is affine in the actions: for the filter `cbf`.
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
        state_of: Function | None = None,
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
        reach_box: Mapping[str, Sequence[Any]] | None = None,
        control_affine: bool = False,
        title: str = "",
        margin_of: str = "",
    ) -> None:
        super().__init__(
            name,
            f"python/{name}-v0",
            states=states,
            actions=actions,
            observations=observations if observe is not None else None,
            parameters=parameters,
            time_step=time_step,
            max_steps=max_steps,
            uniforms=uniforms,
            normals=normals,
            gaps=gaps,
            behaviours=behaviours,
            reach_box=reach_box,
            control_affine=control_affine,
            title=title or f"{name}, in python",
            margin_of=margin_of or ("margin()" if margin else "-1 where cost() is true, else 1" if cost else "nothing"),
            source=getattr(getattr(derivative, "__code__", None), "co_filename", "python"),
        )
        functions = {"derivative": derivative, "reward": reward, "reset": reset, "margin": margin, "cost": cost}
        functions |= {"observe": observe, "state_of": state_of, "terminated": terminated}
        self._rows: dict[str, Callable[..., None]] = {}
        self._spaces: dict[str, Any] = {}
        self._functions: dict[str, Function] = {kind: f for kind, f in functions.items() if f is not None}
        self._integrator, self._substeps = integrator, substeps
        self._limits = pairs(name, "limits", limits or {})
        given = Given(self, self._functions, integrator, substeps, self._limits, observations is not None)
        check_options(given)
        self._arguments = {kind: wanted(given, kind) for kind in self._functions}
        self._scalars = tried(given, self._arguments)

    # ---- compilation ----

    @functools.cached_property
    def compiled(self) -> Any:
        """The system as `numba_backend.Functions`: made at first use, kept for the life of this object."""
        need_numba(self.name)
        from surefoot.cuda_ext.numba_backend import Functions
        from surefoot.cuda_ext.numba_maths import REPLACED, inlined

        names = [parameter.name for parameter in self.parameters]
        spaces: dict[str, Any] = {"_clip": inlined(_clip)}
        done: dict[Any, Any] = dict(REPLACED)
        for kind, function in self._functions.items():
            ready = compiled(function, inlined, done)
            self._compile_alone(kind, ready)
            spaces[f"_call_{kind}"] = inlined(_as_tuple(ready)) if kind in self._scalars else ready
        self._spaces = spaces
        arguments = self._arguments
        sources = {
            "begin": begin_source(self.states, names, self.uniforms, arguments["reset"]),
            "observe": observe_source(self.states, names, len(self.observations), arguments.get("observe")),
            "step": step_source(
                self.states, self.actions, names, self.normals, self._integrator, self.time_step / self._substeps,
                self._substeps, self._limits, arguments,
            ),
        }  # fmt: skip
        made: dict[str, Any] = {name: inlined(defined(source, name, spaces)) for name, source in sources.items()}
        widths = (len(self.states), len(self.actions), len(self.observations), len(self.parameters))
        return Functions(**made, sizes=(*widths, self.uniforms, self.normals))

    def _compile_alone(self, kind: str, function: Any) -> None:
        """Compile one function for numbers, so that its own name is in the message where that fails."""
        import numba

        # NUMBA_DISABLE_JIT=1 leaves everything plain python, for a debugger
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return
        tuples = {"uniforms": self.uniforms, "normals": max(1, self.normals)}
        number = numba.float64
        kinds = [numba.types.UniTuple(number, tuples[n]) if n in tuples else number for n in self._arguments[kind]]
        try:
            function.compile(tuple(kinds))
        except Exception as error:  # numba's own failures are of many kinds
            raise ConfigError(
                f"{self.name}: numba can't compile {kind}(): {reason(error)}; use numbers, math and plain functions of "
                "numbers only (docs/python_systems.md)"
            ) from error
        result = function.nopython_signatures[-1].return_type
        parts = getattr(result, "types", [result])
        if not all(isinstance(part, (numba.types.Number, numba.types.Boolean)) for part in parts):
            raise ConfigError(
                f"{self.name}: {kind}() doesn't always return numbers (but {result}); return them in every case"
            )

    def batch(self, device: torch.device) -> Callable[..., Any]:
        """Maker of its rollouts, with the arguments of the native module's `Batch` behind the name."""
        functions = self.compiled
        from surefoot.cuda_ext.numba_backend import Batch, CudaBatch

        return functools.partial(CudaBatch if device.type == "cuda" else Batch, functions)

    @functools.cached_property
    def _twin(self) -> Twin:
        """The same equations in torch's operators, for traces."""
        return Twin(self, self._functions, self._integrator, self._substeps, self._limits, self._arguments)

    def _rowwise(self, kind: str, names: Sequence[str], count: int, values: Tensor, parameters: Tensor) -> Tensor:
        """(N, count) of what the function `kind` of numbers called `names` makes of each of N rows."""
        if kind not in self._rows:
            from surefoot.cuda_ext.numba_backend import mapped_rows
            from surefoot.cuda_ext.numba_maths import inlined

            _ = self.compiled
            owned = [parameter.name for parameter in self.parameters]
            source = observe_source(names, owned, count, self._arguments[kind], kind)
            call = f"_call_{kind}"
            spaces = {call: inlined(_as_tuple(self._spaces[call]))} if kind not in COUNTED else self._spaces
            self._rows[kind] = mapped_rows(inlined(defined(source, "observe", spaces)))
        found = np.empty((len(values), count))
        self._rows[kind](found, *map(_array, (values, parameters)))
        return _like(found, values)

    # ---- row by row, as every system; on the CPU, without gradients, but by torch where torch records it ----

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
        if recorded():
            return self._twin.step(state, action, parameters, normals)
        moved, outcome = _array(state).copy(), np.empty((len(state), 3))
        self.compiled.rows[2](moved, outcome, *map(_array, (action, parameters, normals)))
        reward, margin, ended = (_like(column, state) for column in outcome.T)
        return Step(_like(moved, state), reward, margin, ended > 0)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) signed margin of (N, S) states, safe if >= 0.

        Raises:
            ConfigError: there is none, or it is one of steps, since it asks for actions.
        """
        kind = "margin" if "margin" in self._functions else "cost"
        if kind not in self._functions:
            raise ConfigError(f"{self.alias} has no margin of a state: give margin= or cost=")
        if asked := sorted(set(self._arguments[kind]) & set(self.actions)):
            raise ConfigError(
                f"{self.alias}: {kind}() asks for {asked[0]}, so that it is one of steps, and reachability and filters "
                "need one of states alone"
            )
        if recorded():
            return self._twin.margin(state, parameters)
        found = self._rowwise(kind, self.states, 1, state, parameters)[:, 0]
        return found if kind == "margin" else 1 - 2 * found

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) states of (N, O) observations.

        Raises:
            ConfigError: `observe` hides them, as far as is known.
        """
        if "observe" not in self._functions:
            return observations
        if "state_of" not in self._functions:
            raise ConfigError(
                f"{self.alias}: observe() shows {', '.join(self.observations)}, and a filter needs the states again: "
                "give state_of=, a function of those that returns the states"
            )
        if recorded():
            return self._twin.state_of(observations, parameters)
        return self._rowwise("state_of", self.observations, len(self.states), observations, parameters)

    @property
    def alias(self) -> str:
        """How it is called in messages."""
        return f"python/{self.name}"


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
