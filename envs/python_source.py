"""The functions of a `PythonSystem` put together: python source that numba compiles, with arguments matched by name."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

LARGEST_STATE = 1e6
"""As in native/rollout.h."""


def draw_sources(uniforms: int, normals: int) -> dict[str, str]:
    """`draw_...` and `read_...` of `numba_backend.Functions`: tuples of counted draws, or out of an array."""
    count = max(1, normals)
    drawn = _tuple([f"_uniform(key, 0, {k})" for k in range(uniforms)])
    normal = _tuple([f"_normal(key, step, {k})" for k in range(count)])
    none = _tuple(["0.0"] * count)
    return {
        "draw_uniforms": f"def draw_uniforms(key):\n    return {drawn}\n",
        "draw_normals": f"def draw_normals(noisy, key, step):\n    return {normal} if noisy else {none}\n",
        "read_uniforms": f"def read_uniforms(x, at):\n    return {_tuple([f'_float(x[at + {k}])' for k in range(uniforms)])}\n",
        "read_normals": f"def read_normals(x, at):\n    return {_tuple([f'_float(x[at + {k}])' for k in range(count)])}\n",
    }


def begin_source(states: Sequence[str], parameters: Sequence[str], arguments: Sequence[str]) -> str:
    """`begin` of `numba_backend.Functions`."""
    lines = ["def begin(_states, _at, _parameters, _p, uniforms):", *_read(parameters, "_parameters", "_p")]
    lines += [_unpack([f"_s{k}" for k in range(len(states))], "reset", arguments, {})]
    lines += [f"_states[_at + {k}] = _s{k}" for k in range(len(states))]
    return _joined(lines)


def observe_source(
    states: Sequence[str], parameters: Sequence[str], observations: int, arguments: Sequence[str] | None
) -> str:
    """`observe` of `numba_backend.Functions`; without a function the observation is the state."""
    lines = ["def observe(_observations, _o, _stride, _states, _at, _parameters, _p):"]
    lines += [*_read(states, "_states", "_at"), *_read(parameters, "_parameters", "_p")]
    values = list(states)
    if arguments is not None:
        values = [f"_o{k}" for k in range(observations)]
        lines += [_unpack(values, "observe", arguments, {})]
    lines += [f"_observations[_o + {k} * _stride] = {value}" for k, value in enumerate(values)]
    return _joined(lines)


def step_source(
    states: Sequence[str],
    actions: Sequence[str],
    parameters: Sequence[str],
    integrator: str,
    step: float,
    substeps: int,
    limits: Mapping[str, tuple[float, float]],
    arguments: Mapping[str, Sequence[str]],
) -> str:
    """`step` of `numba_backend.Functions`; `arguments`: function -> the names that it asks for; `step` in seconds."""
    lines = ["def step(_states, _at, _actions, _a, _stride, _parameters, _p, normals):"]
    lines += [*_read(states, "_states", "_at"), *_read(parameters, "_parameters", "_p")]
    lines += [f"{name} = _float(_actions[_a + {k} * _stride])" for k, name in enumerate(actions)]
    lines += [f"next_{name} = {name}" for name in states]
    lines += [f"for _ in range({substeps}):"]
    body = INTEGRATORS[integrator](states, arguments["derivative"], step, limits)
    lines += ["    " + line for line in body]
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
    lines += [f"_finite = {size} + 1e-20 * (_abs(_reward) + _abs(_margin)) <= {LARGEST_STATE}", "if _finite:"]
    lines += [f"    _states[_at + {k}] = next_{name}" for k, name in enumerate(states)]
    lines += ["return _reward, _margin, _ended, _finite"]
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


def compiled(function: Callable[..., Any], jit: Callable[..., Any], done: dict[Any, Any] | None = None) -> Any:
    """`function` for numba, with the plain python functions of the same file that it calls."""
    done = {} if done is None else done
    if not isinstance(function, types.FunctionType):
        return function
    if function in done:
        return done[function]
    names: dict[str, Any] = {**function.__globals__}
    cells = tuple(types.CellType(cell.cell_contents) for cell in function.__closure__ or ())
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    done[function] = result = jit(copy)
    for name in function.__code__.co_names:
        if isinstance(names.get(name), types.FunctionType):
            names[name] = compiled(names[name], jit, done)
    for cell in cells:
        if isinstance(cell.cell_contents, types.FunctionType):
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
    return [f"{name} = _float({array}[{at} + {k}])" for k, name in enumerate(names)]


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(value + ', ' for value in values)})"


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
