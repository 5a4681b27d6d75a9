"""The functions of a `PythonSystem` on tensors: what torch records where a filter is exported as a file."""

from __future__ import annotations

import builtins
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ExportError
from surefoot.cuda_ext.system import Step, System
from surefoot.envs.python_source import defined, twin_source

Function = Callable[..., Any]
MATHS = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "sqrt", "floor", "ceil")
"""Functions of `math` that torch has under the same name."""
SEVERAL: Mapping[str, Function] = {
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": torch.pow,
    "fmod": torch.fmod,
    "copysign": torch.copysign,
}


class Twin:
    """A python system's step, margin and states in torch's operators, batched."""

    def __init__(
        self,
        system: System,
        functions: Mapping[str, Function],
        integrator: str,
        substeps: int,
        limits: Mapping[str, tuple[float, float]],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        self.system, self.arguments = system, arguments
        done: dict[Any, Any] = {}
        self.functions = {kind: on_tensors(function, done) for kind, function in functions.items()}
        names = [parameter.name for parameter in system.parameters]
        source = twin_source(
            system.states, system.actions, names, system.normals, integrator, system.time_step / substeps, substeps,
            limits, arguments,
        )  # fmt: skip
        spaces = {f"_call_{kind}": self._named(kind) for kind in functions} | {"_clip": torch.clamp}
        self._step = defined(source, "step", spaces)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One control step of (N, S) states."""
        moved, reward, margin, ended = self._step(state, action, parameters, normals)
        row = state[:, 0]
        after = torch.stack([_row(value, row) for value in moved], -1)
        return Step(after, _row(reward, row), _row(margin, row), _row(ended, row) > 0)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) margin of (N, S) states."""
        kind = "margin" if "margin" in self.functions else "cost"
        found = _row(self._called(kind, self.system.states, state, parameters), state[:, 0])
        return found if kind == "margin" else 1 - 2 * found

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) states of (N, O) observations."""
        found = self._called("state_of", self.system.observations, observations, parameters)
        several = found if isinstance(found, tuple) else (found,)
        return torch.stack([_row(value, observations[:, 0]) for value in several], -1)

    def _called(self, kind: str, names: Sequence[str], values: Tensor, parameters: Tensor) -> Any:
        known = {one.name: parameters[:, k] for k, one in enumerate(self.system.parameters)}
        known |= {name: values[:, k] for k, name in enumerate(names)}
        return self._named(kind)(*(known[name] for name in self.arguments[kind]))

    def _named(self, kind: str) -> Function:
        """The function, whose failure names it; one of a single state returns a tuple as the others do."""
        function, counted = self.functions[kind], kind in ("derivative", "reset", "observe", "state_of")

        def call(*values: Any) -> Any:
            try:
                found = function(*values)
            except (RuntimeError, TypeError) as error:
                raise ExportError(
                    f"{self.system.alias}: {kind}() can't be written into a file ({str(error).splitlines()[0]}): it "
                    "branches on a number, or uses a function that tensors don't have; write it with arithmetic, math, "
                    "min, max and abs, or run the filter in python"
                ) from error
            return (found,) if counted and not isinstance(found, tuple) else found

        return call


def recorded() -> bool:
    """Whether torch records what is computed now."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return bool(torch.compiler.is_compiling()) or get_proxy_mode() is not None


def on_tensors(function: Any, done: dict[Any, Any]) -> Any:
    """`function` with `math`, `min` and `max` for tensors, and so the plain python functions that it calls.

    `done`: what stands for what; functions that are made are added to it.
    """
    function = getattr(function, "py_func", function)  # of numba's
    if function is math:
        return _maths()
    if isinstance(function, types.BuiltinFunctionType) and function.__module__ == "math":
        return getattr(_maths(), function.__name__)
    if not isinstance(function, types.FunctionType):
        return function
    if function in done:
        return done[function]
    names: dict[str, Any] = {**function.__globals__, "min": _extreme(torch.minimum), "max": _extreme(torch.maximum)}
    cells = tuple(types.CellType(cell.cell_contents) for cell in function.__closure__ or ())
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    done[function] = copy
    for name in function.__code__.co_names:
        if name in function.__globals__:
            names[name] = on_tensors(function.__globals__[name], done)
    for cell in cells:
        cell.cell_contents = on_tensors(cell.cell_contents, done)
    return copy


def _maths() -> types.SimpleNamespace:
    """`math` whose functions take tensors, and numbers as before."""
    known: dict[str, Function] = {name: _either(getattr(torch, name), getattr(math, name)) for name in MATHS}
    known |= {name: _either(function, getattr(math, name)) for name, function in SEVERAL.items()}
    known["fabs"] = abs
    return types.SimpleNamespace(**{**vars(math), **known})


def _either(on_tensors: Function, on_numbers: Function) -> Function:
    def call(*values: Any) -> Any:
        like = next((value for value in values if isinstance(value, Tensor)), None)
        return on_numbers(*values) if like is None else on_tensors(*(_row(value, like) for value in values))

    return call


def _extreme(pairwise: Function) -> Function:
    plain = builtins.min if pairwise is torch.minimum else builtins.max

    def call(*values: Any) -> Any:
        several = values if len(values) > 1 else tuple(values[0])
        like = next((value for value in several if isinstance(value, Tensor)), None)
        if like is None:
            return plain(several)
        found = _row(several[0], like)
        for value in several[1:]:
            found = pairwise(found, _row(value, like))
        return found

    return call


def _row(value: Any, like: Tensor) -> Tensor:
    """A tensor as it is, in numbers; a number as a row of it."""
    return value.to(like.dtype) if isinstance(value, Tensor) else torch.full_like(like, float(value))
