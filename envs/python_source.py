"""The functions of a `PythonSystem` put together: python source that numba compiles, with arguments matched by name."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

LARGEST_STATE = 1e6
"""As in native/rollout.h."""
UNROLLED = 4
"""Most substeps that are written one after another: a loop within the loop over lanes keeps that from vectorising."""


def begin_source(states: Sequence[str], parameters: Sequence[str], uniforms: int, arguments: Sequence[str]) -> str:
    """`begin` of `numba_backend.Functions`."""
    lines = ["def begin(_states, _s, _parameters, _p, _draws, _u, _n):", *_read(parameters, "_parameters", "_p")]
    lines += [_tuple("uniforms", "_draws", "_u", uniforms)]
    lines += [_unpack([f"_s{k}" for k in range(len(states))], "reset", arguments, {})]
    lines += [f"_states[_s + {k} * _n] = _s{k}" for k in range(len(states))]
    return _joined(lines)


def observe_source(
    states: Sequence[str],
    parameters: Sequence[str],
    observations: int,
    arguments: Sequence[str] | None,
    function: str = "observe",
) -> str:
    """`observe` of `numba_backend.Functions`; without a function the observation is the state.

    Any other `function` of numbers that are named `states` may stand in its place, under the same name.
    """
    lines = ["def observe(_observations, _o, _states, _s, _parameters, _p, _n):"]
    lines += [*_read(states, "_states", "_s"), *_read(parameters, "_parameters", "_p")]
    values = list(states)
    if arguments is not None:
        values = [f"_o{k}" for k in range(observations)]
        lines += [_unpack(values, function, arguments, {})]
    lines += [f"_observations[_o + {k} * _n] = {value}" for k, value in enumerate(values)]
    return _joined(lines)


def step_source(
    states: Sequence[str],
    actions: Sequence[str],
    parameters: Sequence[str],
    normals: int,
    integrator: str,
    step: float,
    substeps: int,
    limits: Mapping[str, tuple[float, float]],
    arguments: Mapping[str, Sequence[str]],
) -> str:
    """`step` of `numba_backend.Functions`; `arguments`: function -> the names that it asks for; `step` in seconds."""
    lines = ["def step(_states, _s, _actions, _a, _parameters, _p, _draws, _z, _n, _running):"]
    lines += [*_read(states, "_states", "_s"), *_read(parameters, "_parameters", "_p")]
    lines += [*_read(actions, "_actions", "_a"), _tuple("normals", "_draws", "_z", max(1, normals))]
    lines += [f"next_{name} = {name}" for name in states]
    body = INTEGRATORS[integrator](states, arguments["derivative"], step, limits)
    few = substeps <= UNROLLED
    lines += body * substeps if few else [f"for _ in range({substeps}):", *("    " + line for line in body)]
    after = {name: f"next_{name}" for name in states}
    lines += ["_reward = _float(" + _call("reward", arguments["reward"], {}) + ")"]
    lines += ["_margin = 1.0"]
    if "margin" in arguments:
        lines += ["_margin = _float(" + _call("margin", arguments["margin"], after) + ")"]
    if "cost" in arguments:
        lines += ["_margin = -1.0 if " + _call("cost", arguments["cost"], after) + " else 1.0"]
    lines += ["_ended = False"]
    if "terminated" in arguments:
        lines += ["_ended = _bool(" + _call("terminated", arguments["terminated"], after) + ")"]
    size = " + ".join(f"_abs(next_{name})" for name in states)
    lines += [f"_finite = {size} + 1e-20 * (_abs(_reward) + _abs(_margin)) <= {LARGEST_STATE}"]
    lines += ["_kept = _finite & _running"]
    lines += [f"_states[_s + {k} * _n] = next_{name} if _kept else {name}" for k, name in enumerate(states)]
    lines += ["return _reward, _margin, _ended, _finite"]
    return _joined(lines)


def twin_source(
    states: Sequence[str],
    actions: Sequence[str],
    parameters: Sequence[str],
    normals: int,
    integrator: str,
    step: float,
    substeps: int,
    limits: Mapping[str, tuple[float, float]],
    arguments: Mapping[str, Sequence[str]],
) -> str:
    """A step on (N, width) tensors, as `step_source`, for a trace: next states in a list, reward, margin, end."""
    lines = ["def step(_states, _actions, _parameters, _normals):"]
    for names, array in ((states, "_states"), (actions, "_actions"), (parameters, "_parameters")):
        lines += [f"{name} = {array}[:, {k}]" for k, name in enumerate(names)]
    lines += [f"normals = ({''.join(f'_normals[:, {k}], ' for k in range(max(1, normals)))})"]
    lines += [f"next_{name} = {name}" for name in states]
    lines += INTEGRATORS[integrator](states, arguments["derivative"], step, limits) * substeps
    after = {name: f"next_{name}" for name in states}
    lines += ["_reward = " + _call("reward", arguments["reward"], {}), "_margin = 1.0", "_ended = False"]
    if "margin" in arguments:
        lines += ["_margin = " + _call("margin", arguments["margin"], after)]
    if "cost" in arguments:
        lines += ["_margin = 1.0 - 2.0 * " + _call("cost", arguments["cost"], after)]
    if "terminated" in arguments:
        lines += ["_ended = " + _call("terminated", arguments["terminated"], after)]
    lines += [f"return [{', '.join(after.values())}], _reward, _margin, _ended"]
    return _joined(lines)


def _euler(
    states: Sequence[str], arguments: Sequence[str], step: float, limits: Mapping[str, tuple[float, float]]
) -> list[str]:
    """x += h f(x)."""
    rates = [f"_d{k}" for k in range(len(states))]
    lines = [_unpack(rates, "derivative", arguments, _moved(states))]
    return lines + [_advance(name, f"{step!r} * {rate}", limits) for name, rate in zip(states, rates)]


def _semi_implicit(
    states: Sequence[str], arguments: Sequence[str], step: float, limits: Mapping[str, tuple[float, float]]
) -> list[str]:
    """v += h a(q, v), then q += h v with the new v; states are all q, then all v."""
    rates, half = [f"_d{k}" for k in range(len(states))], len(states) // 2
    derivative = _unpack(rates, "derivative", arguments, _moved(states))
    moves = [_advance(name, f"{step!r} * {rate}", limits) for name, rate in zip(states, rates)]
    return [derivative, *moves[half:], derivative, *moves[:half]]


def _rk4(
    states: Sequence[str], arguments: Sequence[str], step: float, limits: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Runge and Kutta's classical method of order 4."""
    lines, places = [], _moved(states)
    for stage, share in zip("abcd", (step / 2, step / 2, step, 0.0)):
        lines.append(_unpack([f"_{stage}{k}" for k in range(len(states))], "derivative", arguments, places))
        places = {name: f"next_{name} + {share!r} * _{stage}{k}" for k, name in enumerate(states)}
    sums = [f"{step / 6!r} * (_a{k} + 2.0 * _b{k} + 2.0 * _c{k} + _d{k})" for k in range(len(states))]
    return lines + [_advance(name, total, limits) for name, total in zip(states, sums)]


INTEGRATORS: Mapping[str, Callable[..., list[str]]] = {
    "rk4": _rk4,
    "semi_implicit": _semi_implicit,
    "euler": _euler,
}
"""Name -> the lines of one substep."""


def compiled(function: Any, jit: Callable[..., Any], done: dict[Any, Any]) -> Any:
    """`function` for numba, with the plain python functions of the same file that it calls.

    `done`: what stands for what; functions that are compiled are added to it.
    """
    if isinstance(function, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)) and function in done:
        return done[function]
    if not isinstance(function, types.FunctionType):
        return function
    names: dict[str, Any] = {**function.__globals__}
    cells = tuple(types.CellType(cell.cell_contents) for cell in function.__closure__ or ())
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    done[function] = result = jit(copy)
    for name in function.__code__.co_names:
        if name in names:
            names[name] = compiled(names[name], jit, done)
    for cell in cells:
        cell.cell_contents = compiled(cell.cell_contents, jit, done)
    return result


def defined(source: str, name: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """The function `name` that `source` defines, which sees `names` only."""
    space: dict[str, Any] = {**names, "_float": np.float64, "_abs": abs, "_bool": bool, "range": range}
    exec(builtins.compile(source, f"<surefoot {name}>", "exec"), space)
    found: Callable[..., Any] = space[name]
    return found


def _moved(states: Sequence[str]) -> dict[str, str]:
    return {name: f"next_{name}" for name in states}


def _read(names: Sequence[str], array: str, at: str) -> list[str]:
    return [f"{name} = _float({array}[{at} + {k} * _n])" for k, name in enumerate(names)]


def _tuple(name: str, array: str, at: str, count: int) -> str:
    return f"{name} = ({''.join(f'_float({array}[{at} + {k} * _n]), ' for k in range(count))})"


def _call(function: str, arguments: Sequence[str], places: Mapping[str, str]) -> str:
    """A call of the user's `function`; `places`: name -> what stands for it."""
    return f"_call_{function}({', '.join(places.get(name, name) for name in arguments)})"


def _unpack(names: Sequence[str], function: str, arguments: Sequence[str], places: Mapping[str, str]) -> str:
    return f"{''.join(name + ', ' for name in names)}= {_call(function, arguments, places)}"


def _advance(name: str, change: str, limits: Mapping[str, tuple[float, float]]) -> str:
    moved = f"next_{name} + {change}"
    if name in limits:
        low, high = limits[name]
        moved = f"_clip({moved}, {low!r}, {high!r})"
    return f"next_{name} = {moved}"


def _joined(lines: Sequence[str]) -> str:
    return "\n    ".join(lines) + "\n"
