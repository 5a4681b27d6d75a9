"""Native code against the torch twin, row by row, for any system: parametrise over `SYSTEMS` and call these."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot import cuda_ext
from surefoot.cuda_ext.system import Step, System

ROWS = 257


def native_rows(system: System, call: str, dtype: torch.dtype, **given: Tensor) -> dict[str, Tensor]:
    """What the native `call` (reset, observe or step) of `system` gives for the arrays in `given`.

    Keys of `given` and of the result: states, parameters, uniforms, actions, normals, observations, rewards, margins,
    terminated.
    """
    module = cuda_ext.native()
    assert module is not None, cuda_ext.why_not_native()
    widths = {
        "parameters": len(system.parameters),
        "uniforms": system.uniforms,
        "actions": len(system.actions),
        "normals": system.normals,
        "states": len(system.states),
        "observations": len(system.observations),
        "rewards": 1,
        "margins": 1,
        "terminated": 1,
    }
    count = len(next(iter(given.values())))
    arrays: dict[str, Any] = {}
    for name, width in widths.items():
        value = given[name] if name in given else torch.full((count, width), float("nan"))
        arrays[name] = value.to(dtype).contiguous().clone().numpy()[:, :width]
        arrays[name] = np.ascontiguousarray(arrays[name])
    matrices = system.matrices()
    shared = torch.zeros(1, 1) if matrices is None else matrices.reshape(1, -1)
    module.rows(system.name, call, shared.to(dtype).contiguous().numpy(), **arrays)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def random_parameters(system: System, generator: torch.Generator, count: int = ROWS) -> Tensor:
    """(count, P) float64: row 0 is the default, then every third row a gap preset, the others 0.7 to 1.3 of it.

    A parameter whose default is 0 gets up to a twentieth of its range, so that every term of the equations is seen.
    """
    default = system.default_parameters()
    low = torch.tensor([parameter.low for parameter in system.parameters], dtype=torch.float64)
    high = torch.tensor([parameter.high for parameter in system.parameters], dtype=torch.float64)
    random = torch.rand(count, len(default), dtype=torch.float64, generator=generator)
    near = default * (0.7 + 0.6 * random)
    small = torch.minimum(0.05 * (high - low), torch.ones_like(high)) * (random - 0.5)
    rows = torch.where(default == 0, small, near).clamp(low, high)
    names = [parameter.name for parameter in system.parameters]
    for row, gap in zip(range(1, count, 3), sorted(system.gaps) * count):
        rows[row] = default
        for name, value in system.gaps[gap].items():
            rows[row, names.index(name)] = value
    rows[0] = default
    return rows


def random_rows(system: System, seed: int = 0, walk: int = 30) -> dict[str, Tensor]:
    """(ROWS, ...) float64 parameters, uniforms, actions, normals, and states that random actions lead to."""
    generator = torch.Generator().manual_seed(seed)
    parameters = random_parameters(system, generator)

    def uniform(width: int) -> Tensor:
        return torch.rand(ROWS, width, dtype=torch.float64, generator=generator)

    low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (system.action_low, system.action_high))
    state = system.reset(uniform(system.uniforms), parameters)
    lengths = torch.randint(0, walk, (ROWS,), generator=generator)
    for t in range(walk):
        actions = low + (high - low) * uniform(len(system.actions))
        moved = system.step(state, actions, parameters, _normals(system, generator)).state
        state = torch.where((lengths > t)[:, None], moved, state)
    # the same numbers in float32, so that both precisions start from equal states
    return {
        "parameters": parameters.float().double(),
        "uniforms": uniform(system.uniforms).float().double(),
        "actions": (low + (high - low) * uniform(len(system.actions))).float().double(),
        "normals": _normals(system, generator).float().double(),
        "states": state.float().double(),
    }


def _normals(system: System, generator: torch.Generator) -> Tensor:
    return torch.randn(ROWS, max(1, system.normals), dtype=torch.float64, generator=generator)


def compare(system: System, dtype: torch.dtype, seed: int = 0) -> None:
    """Assert that native reset, observe and step in `dtype` agree with the twin in float64.

    float64: to 1e-12 of each column's scale (libm against torch); float32: to 2e-5 of it, the rounding of one step.
    Rows whose twin is within the float tolerance of a threshold may differ in `terminated`.
    """
    rows = random_rows(system, seed)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    parameters, states = rows["parameters"], rows["states"]

    reset = native_rows(system, "reset", dtype, uniforms=rows["uniforms"], parameters=parameters)["states"]
    _close("reset", reset, system.reset(rows["uniforms"], parameters), tolerance, system.states)
    seen = native_rows(system, "observe", dtype, states=states, parameters=parameters)["observations"]
    _close("observe", seen, system.observe(states, parameters), tolerance, system.observations)

    keys = ("states", "actions", "parameters", "normals")
    native = native_rows(system, "step", dtype, **{key: rows[key] for key in keys})
    twin: Step = system.step(states, rows["actions"], parameters, rows["normals"])
    _close("state", native["states"], twin.state, tolerance, system.states)
    _close("reward", native["rewards"], twin.reward[:, None], tolerance, ("reward",))
    _close("margin", native["margins"], twin.margin[:, None], tolerance, ("margin",))
    differ = (native["terminated"][:, 0] > 0.5) != twin.terminated
    assert differ.sum() <= (0 if dtype == torch.float64 else 2), f"terminated differs in rows {differ.nonzero()}"
    assert twin.terminated.dtype == torch.bool


def _close(what: str, native: Tensor, twin: Tensor, tolerance: float, columns: tuple[str, ...]) -> None:
    assert twin.shape == native.shape, f"{what}: twin {tuple(twin.shape)}, native {tuple(native.shape)}"
    assert torch.isfinite(twin).all(), f"{what}: the twin is not finite"
    scale = twin.abs().amax(0).clamp(min=1.0)
    error = ((native.double() - twin).abs() / scale).amax(0)
    worst = int(error.argmax())
    assert bool(error[worst] <= tolerance), f"{what} {columns[worst]!r}: off by {float(error[worst]):.3g} of its scale"
