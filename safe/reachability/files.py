"""Safe sets as files: one .npz of plain arrays, with everything else as JSON text in it; no pickle."""

from __future__ import annotations

import json
import os
import pathlib
import zipfile
from typing import Any

import numpy as np
import torch

from surefoot.core.errors import CheckpointError, ConfigError
from surefoot.core.files import written_aside
from surefoot.safe.reachability.grid import Grid, GridValue
from surefoot.safe.reachability.solver import Solution

FORMAT = "surefoot-safe-set-1"
SIGN = "value <= 0: the constraint can be kept for ever"


def save(solution: Solution, path: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
    """Write a solution, whole or not at all; `about` holds JSON values of the caller's.

    The arrays: `value` and `h` of the grid's shape, one array of coordinates for each axis (`axis_<name>`), and
    `description`, JSON text with the axes, discount, sweeps and `about`.

    Raises:
        ConfigError: a path that does not end in .npz.
        SurefootError: the disk is full or the folder can't be written.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: a safe set is written as .npz; give a name that ends so")
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
        CheckpointError: the file is missing, damaged or of another kind.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            described = json.loads(str(arrays["description"]))
            values, h = torch.from_numpy(arrays["value"]), torch.from_numpy(arrays["h"])
        if described["format"] != FORMAT:
            raise ValueError(f"format {described['format']!r} is not {FORMAT!r}")
        grid = Grid.from_json(described["axes"])
        if tuple(values.shape) != grid.shape or tuple(h.shape) != grid.shape:
            raise ValueError(f"values of shape {tuple(values.shape)} on a grid of {grid.shape}")
        if not bool(values.isfinite().all()):
            raise ValueError("a value is not finite")
        facts = {key: described[key] for key in ("discount", "sweeps", "change", "converged", "seconds")}
        return Solution(value=GridValue(grid, values), h=h, **facts), described["about"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; `surefoot reach` makes safe sets") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, ConfigError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: not a whole safe set ({error}); make it again with `surefoot reach`") from error
