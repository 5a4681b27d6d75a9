"""Safe sets as files: one .npz of plain arrays, with everything else as JSON text in it; no pickle."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import torch

from surefoot.core.base.checkpoint import check_format, check_tensors
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import written_aside
from surefoot.core.base.schema import Flag, Many, Number, Plain, Record, Table, Text, check, parse
from surefoot.core.base.unpacking import read_npz
from surefoot.safe.reachability.grid import MOST_AXES, Axis, Grid, GridValue
from surefoot.safe.reachability.solver import Solution

FORMAT = "surefoot-safe-set-1"
DESCRIPTION = Record(
    {
        "format": Text(),
        "sign": Text(),
        "axes": Many(Record.of(Axis, points=Number(2, 1 << 20, whole=True)), 1, MOST_AXES),
        "discount": Number(0, 1),
        "sweeps": Number(0, whole=True),
        "change": Number(0, nan=True),
        "converged": Flag(),
        "seconds": Number(0),
        "about": Table(Plain()),
    }
)
SIGN = "value <= 0: the constraint can be kept for ever"


def check_name(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a safe set to be written; raises ConfigError at one that does not end in .npz."""
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: a safe set is written as .npz; give a name that ends so")
    return path


def save(solution: Solution, path: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
    """Write a solution, whole or not at all; `about` holds JSON values of the caller's.

    The arrays: `value` and `h` of the grid's shape, one array of coordinates for each axis (`axis_<name>`), and
    `description`, JSON text with the axes, discount, sweeps and `about`.

    Raises:
        ConfigError: a path that does not end in .npz.
        SurefootError: the disk is full or the folder can't be written.
    """
    path = check_name(path)
    described = {
        "format": FORMAT,
        "sign": SIGN,
        "axes": solution.grid.to_json(),
        "discount": solution.discount,
        "sweeps": solution.sweeps,
        "change": solution.change,
        "converged": solution.converged,
        "seconds": solution.seconds,
        "about": about or {},
    }
    coordinates = {
        f"axis_{axis.name}": values.numpy() for axis, values in zip(solution.grid.axes, solution.grid.coordinates())
    }
    with written_aside(path) as aside:
        np.savez_compressed(
            aside,
            allow_pickle=False,
            value=solution.values.cpu().numpy(),
            h=solution.h.cpu().numpy(),
            description=np.array(json.dumps(described)),
            **coordinates,
        )


def load(path: str | os.PathLike[str]) -> tuple[Solution, dict[str, Any]]:
    """What `save` wrote, and its `about`.

    Raises:
        CheckpointError: the file is missing, damaged, of another kind or version, unpacks to more than
            `core.base.unpacking` allows, or holds a value of the wrong type or range.
    """
    try:
        arrays, _ = read_npz(path, lambda name: name in ("value", "h", "description"), CheckpointError)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file; `surefoot reach` makes safe sets" if missing else f"can't be read ({error})"
        raise CheckpointError(f"{path}: {reason}") from error
    for name in ("value", "h", "description"):
        if name not in arrays:
            raise CheckpointError(f"{path}: not a safe set, it has no {name!r}; make it with `surefoot reach`")
    described = check(parse(str(arrays["description"]), path), Table(Plain()), path)
    check_format(path, described.get("format"), FORMAT)
    check(described, DESCRIPTION, path)
    check_format(path, described["sign"], SIGN)
    try:
        grid = Grid.from_json(described["axes"])
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}; make it again with `surefoot reach`") from error
    for name in ("value", "h"):
        if arrays[name].shape != grid.shape or arrays[name].dtype not in (np.float32, np.float64):
            raise CheckpointError(
                f"{path}: {name!r} is {arrays[name].dtype} of {arrays[name].shape}, where numbers on a grid of "
                f"{grid.shape} are needed; make it again with `surefoot reach`"
            )
    values, h = torch.from_numpy(arrays["value"]), torch.from_numpy(arrays["h"])
    check_tensors(path, {"value": values, "h": h})
    facts = {key: described[key] for key in ("discount", "sweeps", "change", "converged", "seconds")}
    return Solution(value=GridValue(grid, values), h=h, **facts), described["about"]
