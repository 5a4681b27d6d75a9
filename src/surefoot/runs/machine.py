"""The machine that a run's numbers depend on."""

from __future__ import annotations

import pathlib

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Plain, Record, Text
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.native.kernels import machine_name

INSIDE = "inside"
KERNELS = Record({"machine": Text()}, {"masks": Text(among=(INSIDE,)), "choices": Many(Many(Plain(2)))})
"""What kernels.json holds; no `masks` where networks with dropout masks were taken layer by layer when the run began;
`choices` only of version 0.1.0, which measured matrix libraries."""


def same_machine(folder: pathlib.Path) -> bool:
    """True where a run that uses the native module may go on here; keeps the machine of one that begins.

    Raises:
        CheckpointError: the run was begun on another machine, or by a version that chose kernels otherwise.
    """
    path, machine = folder / "kernels.json", machine_name()
    if not path.is_file():
        write_json(path, {"machine": machine, "masks": INSIDE})
        return True
    begun = read_json(path, KERNELS)
    if begun["machine"] != machine:
        raise CheckpointError(
            f"{folder}: was begun on {begun['machine']}, this is {machine}; going on here would give "
            "other numbers. Resume it there, or start anew with init="
        )
    if any(choice[-1:] != ["native"] for choice in begun.get("choices", [])):
        raise CheckpointError(
            f"{folder}: was begun by a surefoot 0.1.0 that chose among matrix libraries by measuring, and "
            "this version would give other numbers. Resume it with that one, or start anew with init="
        )
    return True


def as_begun(learner: Learner, folder: pathlib.Path) -> Learner:
    """The learner of a run, with dropout masks taken as when the run began, so that it gives the same numbers."""
    if learner.slots is not None:
        learner.slots.masks_inside = read_json(folder / "kernels.json", KERNELS).get("masks") == INSIDE
    return learner
