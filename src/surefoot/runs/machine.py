"""The machine that a run computes on: its cores and devices, and what the run's numbers depend on."""

from __future__ import annotations

import math
import os
import pathlib

import torch

from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Plain, Record, Text
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.native.kernels import machine_name

INSIDE = "inside"
KERNELS = Record({"machine": Text()}, {"masks": Text(among=(INSIDE,)), "choices": Many(Many(Plain(2)))})
"""What kernels.json holds; no `masks` where networks with dropout masks were taken layer by layer when the run began;
`choices` only of version 0.1.0, which measured matrix libraries."""


def same_machine(folder: pathlib.Path) -> bool:
    """True where a run that uses the native module may continue here; keeps the machine of one that begins.

    Raises:
        CheckpointError: the run was started on another machine, or by a version that chose kernels otherwise.
    """
    path, machine = folder / "kernels.json", machine_name()
    if not path.is_file():
        write_json(path, {"machine": machine, "masks": INSIDE})
        return True
    started = read_json(path, KERNELS)
    if started["machine"] != machine:
        raise CheckpointError(
            f"{folder}: was started on {started['machine']}, this is {machine}; going on here would give "
            "other numbers. Resume it there, or start anew with init="
        )
    if any(choice[-1:] != ["native"] for choice in started.get("choices", [])):
        raise CheckpointError(
            f"{folder}: was started by a surefoot 0.1.0 that chose among matrix libraries by measuring, and "
            "this version would give other numbers. Resume it with that one, or start anew with init="
        )
    return True


def as_begun(learner: Learner, folder: pathlib.Path) -> Learner:
    """The learner of a run, with dropout masks taken as when the run began, so that it gives the same numbers."""
    if learner.slots is not None:
        learner.slots.masks_inside = read_json(folder / "kernels.json", KERNELS).get("masks") == INSIDE
    return learner


def cores() -> int:
    """Cores that this process may use: fewer than there are where SUREFOOT_CORES, or whoever began it, says so."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:
        found = os.cpu_count() or 1
    given = os.environ.get("SUREFOOT_CORES", "")
    return max(1, min(found, int(given))) if given.isdigit() else found


SHARING_A_CORE = 0.85
"""Rate per core of several workers on one, as a fraction of one alone: they evict each other's caches (measured)."""


def at_once(seeds: int, cores: int) -> int:
    """How many single-threaded workers to run side by side so that `seeds` of them end soonest.

    One a core where they divide evenly; more where a core would otherwise idle (three seeds on two cores).
    """

    most = max(1, min(seeds, 4 * cores))
    return min(range(1, most + 1), key=lambda workers: (rounds(seeds, workers, cores), workers))


def rounds(seeds: int, workers: int, cores: int) -> float:
    """How long all seeds take, in units of one seed alone on a core."""
    share = max(1.0, workers / cores) / (1.0 if workers <= cores else SHARING_A_CORE)
    return math.ceil(seeds / workers) * share


def resolve_device(name: str) -> torch.device:
    """The device that a plan's word means here.

    Raises:
        DeviceError: a GPU was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise DeviceError("device=cuda: torch finds no CUDA GPU on this machine; use device=cpu or auto")
    return torch.device("cuda" if name in {"auto", "cuda"} and available else "cpu")


def check_tf32(tf32: bool, device: torch.device) -> None:
    """Raise ConfigError where matrix products are to be TF32's on a processor, which has none."""
    if tf32 and device.type != "cuda":
        raise ConfigError("tf32=true is of matrix products on a GPU, and this run computes on a CPU: leave it out")


def use_tf32(tf32: bool, device: torch.device) -> None:
    """Let matrix products and convolutions of this process be TF32's on a GPU, or float32's.

    torch's own default is TF32 for convolutions alone.
    """
    check_tf32(tf32, device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
