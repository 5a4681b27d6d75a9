"""Whole plans on a GPU: what the native module's `plan` does, by plan.cuh and with tensors in the GPU's memory."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from surefoot.cuda_ext.cubin import Unit
from surefoot.cuda_ext.gpu import Driver, driver_of
from surefoot.cuda_ext.operation import constants_on, sizes_of
from surefoot.cuda_ext.plan_settings import PlanSettings
from surefoot.cuda_ext.resident import on_device
from surefoot.cuda_ext.system import System

_INTEGERS = "horizon iterations elites kept average limited truncated noisy futures tail most floats"
INTEGERS = tuple(_INTEGERS.split())
NUMBERS = ("sigma", "temperature", "momentum", "discount", "cost_limit")
ARRAYS = {
    "populations": torch.int32,
    "matrices": torch.float32,
    "low": torch.float32,
    "high": torch.float32,
    "parameters": torch.float32,
    "colouring": torch.float32,
    "draws": torch.int64,
    "states": torch.float32,
    "mean": torch.float32,
    "best": torch.float32,
    "keep": torch.float32,
    "scratch": torch.float32,
}
ARGUMENTS = (*INTEGERS, *NUMBERS, *ARRAYS)
"""Of the kernel surefoot_plan, in its order."""
FEWEST_THREADS, MOST_THREADS = 128, 512
"""Of a block, which makes one plan: more would leave a thread fewer than 128 registers."""
LARGEST_SCRATCH = 1 << 28
"""Numbers (1 GiB) of all blocks of a launch."""


def plan_on_gpu(
    system: System,
    parameters: Tensor,
    settings: PlanSettings,
    draws: Tensor,
    states: Tensor,
    mean: Tensor,
    best: Tensor,
    elites: Tensor,
    colouring: Tensor | None = None,
    driver: Driver | None = None,
) -> None:
    """Plans of B states in one launch, or in several where their candidates would need too much memory.

    Args as of `plan.plan_rows`; `mean` (B, H, A), `best` (B, H, A) and `elites` (B, kept, H, A) are contiguous float32
    and written in place: the first and the last of them are read before.

    Raises:
        GpuError: no device, a missing package, or a failed compilation.
        ValueError: settings that do not fit each other.
    """
    rows, horizon, width = mean.shape
    sizes, futures, kept = sizes_of(system), len(parameters), elites.shape[1]
    fewest, tail = min(settings.populations), settings.tail or futures
    if not (1 <= settings.elites <= fewest and kept == settings.kept <= settings.elites and 1 <= tail <= futures):
        raise ValueError("populations, elites, kept and tail do not fit each other")
    driver = driver_of(states.device) if driver is None else driver
    most = max(settings.populations) + kept + 1
    noisy = settings.noisy and sizes[5] > 0
    floats = most * horizon * width + 2 * horizon * width + (3 + 2 * futures) * most
    floats += futures * horizon * sizes[5] if noisy else 0
    flags = {"average": settings.temperature is not None, "limited": settings.cost_limit is not None}
    flags |= {"truncated": settings.truncated, "noisy": noisy}
    integers = {"horizon": horizon, "iterations": len(settings.populations), "elites": settings.elites, "kept": kept}
    integers |= {"futures": futures, "tail": tail, "most": most, "floats": floats}
    scalars: dict[str, object] = {name: ctypes.c_int32(value) for name, value in (integers | flags).items()}
    numbers = {"sigma": settings.sigma, "temperature": settings.temperature or 1.0, "momentum": settings.momentum}
    numbers |= {"discount": settings.discount, "cost_limit": settings.cost_limit or 0.0}
    scalars |= {name: ctypes.c_float(value) for name, value in numbers.items()}
    device = states.device
    arrays = {**constants_on(system, device), "populations": _populations(settings.populations, device)}
    arrays |= {"parameters": parameters, "draws": draws, "states": states, "mean": mean, "best": best, "keep": elites}
    if colouring is not None:
        arrays["colouring"] = colouring
    ready = {name: on_device(array.to(ARRAYS[name]), device).contiguous() for name, array in arrays.items()}
    chunk = max(1, min(rows, LARGEST_SCRATCH // floats))
    ready["scratch"] = torch.empty(chunk * floats, dtype=torch.float32, device=device)
    threads = min(MOST_THREADS, max(FEWEST_THREADS, 1 << (most - 1).bit_length()))
    limits = driver.limits()
    (kernel,) = driver.load(unit_of(system, threads), limits, 4 * threads)
    for first in range(0, rows, chunk):
        part = slice(first, first + chunk)
        cut = {name: ready[name][part] for name in ("draws", "states", "mean", "best", "keep")}
        pointers = {name: value.data_ptr() for name, value in (ready | cut).items()}
        values = [scalars.get(name, pointers.get(name, 0)) for name in ARGUMENTS]
        driver.launch(kernel, min(chunk, rows - first), 4 * threads, values, threads)


def unit_of(system: System, threads: int) -> Unit:
    """What is compiled for plans of a system, `threads` in a block."""
    defines = {"SF_SYSTEM": system.name, "SF_SIZES": ",".join(map(str, sizes_of(system))), "SF_THREADS": str(threads)}
    return Unit(system.name, tuple(defines.items()), work="plan", own=system.own_header())


@functools.lru_cache(maxsize=64)
def _populations(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """To be read only."""
    return torch.tensor(counts, dtype=torch.int32, device=device)
