"""NeoRL-2's NPZ files: `obs`, `next_obs`, `action`, `reward`, `done`, `truncated`, and `index` in some of them.

`done` says that the task ended, `truncated` that an episode was cut off, `index` in which rows trajectories begin. The
task is in the file's name, `DMSD-train.npz` or `DMSD-high-100000-train.npz`.
Source: polixir/NeoRL2, README.md and neorl2/envs/base.py.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.catalogue import FACTS
from surefoot.data.checks import exact_matrix, exact_vector, flags, same_length
from surefoot.data.dataset import Dataset
from surefoot.data.formats.flat import Source, dataset_from_arrays

Array = np.ndarray[Any, Any]

NAMES = {
    "obs": "observations",
    "next_obs": "next_observations",
    "action": "actions",
    "reward": "rewards",
    "done": "terminals",
    "truncated": "timeouts",
}
STARTS = "index"
KEYS = (*NAMES, STARTS)
MARKS = ("obs", "next_obs", "action", "reward", "done")
"""Keys that tell these files from others."""


def from_arrays(arrays: Mapping[str, Array], source: Source, path: pathlib.Path, view: str = "corrected") -> Dataset:
    """The dataset in the arrays of a file.

    Args:
        arrays: of the file, `MARKS` among them.
        source: what is known of it.
        path: of the file, whose name tells the task.
        view: as of `flat.dataset_from_arrays`.

    Raises:
        DataError: `index` is no list of rows, or the arrays are inconsistent or not finite; names key and row.
    """
    name = source.name
    kinds = {"reward": exact_vector, "done": flags, "truncated": flags}
    held = {key: kinds.get(key, exact_matrix)(name, key, arrays[key]) for key in NAMES if key in arrays}
    rows = same_length(name, held)
    if STARTS in arrays:
        cut = _last_rows(name, arrays[STARTS], rows) & ~held["done"]
        held["truncated"] = held.get("truncated", np.zeros(rows, bool)) | cut
    columns = {NAMES[key]: array for key, array in held.items()}
    return dataset_from_arrays(columns, source.with_attributes(_environment(path)), view)


def _last_rows(name: str, index: Array, rows: int) -> Array:
    """(rows,) bool: the row before one in which a trajectory begins, and the last one."""
    starts = index.reshape(-1)
    inside = starts.dtype.kind in "iu" and bool(((starts >= 0) & (starts < rows)).all())
    if not inside or (np.diff(starts.astype(np.int64)) <= 0).any():
        raise DataError(
            f"{name}: {STARTS!r} must be growing whole numbers from 0 to {rows - 1}, the rows in which trajectories "
            "begin; correct it, or leave it out where 'truncated' marks their ends"
        )
    last = np.zeros(rows, bool)
    last[starts[starts > 0] - 1] = True
    last[-1:] = True
    return last


def _environment(path: pathlib.Path) -> dict[str, Any]:
    """The attribute `env_id` that the file's name tells; empty of a file of another name."""
    task, *_, part = path.stem.split("-") if "-" in path.stem else (path.stem, "")
    known = task in FACTS["neorl2"]["families"] and part in ("train", "val")
    return {"env_id": f"neorl2 {task}"} if known else {}
