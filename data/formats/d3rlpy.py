"""d3rlpy's HDF5 files, as `ReplayBuffer.dump` of version 2 writes them: `observations_0`, `actions_0`, ... by episode.

Version 1's files (`MDPDataset.dump`) are flat arrays with `episode_terminals`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.checks import concatenated, exact_matrix, exact_vector, flags
from surefoot.data.dataset import Dataset
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.hdf5 import read_hdf5

Array = np.ndarray[Any, Any]

OLD_ENDS = "episode_terminals"
_PATTERN = r"(observations|actions|rewards|terminated)_(\d+)"


def fits(names: Iterable[str]) -> bool:
    """Whether a file with these datasets is of this layout, of version 2 or 1."""
    held = set(names)
    return {"actions_0", "rewards_0", "num_episodes"} <= held or {OLD_ENDS, "terminals", "actions"} <= held


def read(path: pathlib.Path, source: Source, view: str = "corrected") -> Dataset:
    """The dataset in a file of d3rlpy; the last step of an episode that is not terminated is not sampled.

    Raises:
        DataError: an episode is incomplete, has several arrays as one observation, pictures, or choices as actions.
    """
    contents = read_hdf5(path, ["observations", "actions", "rewards", "terminals", OLD_ENDS], pattern=_PATTERN)
    known = dataclasses.replace(source, attributes={**source.attributes, "kind": "d3rlpy"})
    if OLD_ENDS in contents.arrays:
        arrays = dict(contents.arrays)
        ends = flags(str(path), OLD_ENDS, arrays.pop(OLD_ENDS))
        arrays["timeouts"] = ends & ~flags(str(path), "terminals", arrays["terminals"])
        return dataset_from_arrays(arrays, known, view)
    if any(re.fullmatch(r"observations_\d+_\d+", name) for name in contents.names):
        raise DataError(f"{path}: has several arrays as one observation; join them to one before d3rlpy's dump")
    parts = []
    count = len([name for name in contents.arrays if name.startswith("actions_")])
    for k in range(count):
        held = {key: contents.arrays.get(f"{key}_{k}") for key in ("observations", "actions", "rewards", "terminated")}
        if missing := [key for key, array in held.items() if array is None]:
            raise DataError(f"{path}: '{missing[0]}_{k}' is missing, and the file says that it has {count} episodes")
        parts.append(_episode(path, k, held))
    if not parts:
        raise DataError(f"{path}: is empty: no episode")
    arrays = {key: concatenated(str(path), key, [part[key] for part in parts]) for key in parts[0]}
    return dataset_from_arrays(arrays, known, view)


def _episode(path: pathlib.Path, k: int, held: dict[str, Any]) -> dict[str, Array]:
    """One episode's columns under D4RL's names."""
    name = str(path)
    observations = exact_matrix(name, f"observations_{k}", held["observations"])
    rows = len(observations)
    found = {
        "observations": observations,
        "actions": exact_matrix(name, f"actions_{k}", held["actions"]),
        "rewards": exact_vector(name, f"rewards_{k}", held["rewards"]),
    }
    last = np.arange(rows) == rows - 1
    found["terminals"] = last & bool(np.asarray(held["terminated"]).any())
    found["timeouts"] = last & ~found["terminals"]
    if any(len(array) != rows for array in found.values()):
        raise DataError(f"{path}: the arrays of episode {k} have different numbers of rows")
    return found
