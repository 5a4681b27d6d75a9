"""Small datasets written by hand, shared by the tests of this room."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

Array = np.ndarray[Any, Any]


def three_episodes() -> dict[str, Array]:
    """Rows 0-2 end in a terminal, rows 3-6 in a time-out, rows 7-8 at the end of the file.

    Observation i of an episode that starts in row s is (s + i, 10 (s + i)); the one after its last step is
    100 more.
    """
    rows = np.arange(9)
    observations = np.stack([rows, 10 * rows], 1).astype(np.float32)
    following = np.concatenate([observations[1:], observations[-1:] + 1])
    ends = np.array([2, 6, 8])
    following[ends] = observations[ends] + 100
    return {
        "observations": observations,
        "actions": (np.arange(9)[:, None] / 10).astype(np.float32),
        "rewards": np.arange(1, 10).astype(np.float32),
        "terminals": rows == 2,
        "timeouts": rows == 6,
        "next_observations": following,
    }


def random_walk(steps: int = 300, seed: int = 0) -> dict[str, Array]:
    """Arrays of episodes of 50 steps, every second one ending in a terminal."""
    rng = np.random.default_rng(seed)
    ends = np.arange(steps) % 50 == 49
    return {
        "observations": rng.normal(size=(steps, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminals": ends & (np.arange(steps) % 100 == 99),
        "timeouts": ends & (np.arange(steps) % 100 != 99),
    }


def write_hdf5(path: pathlib.Path, arrays: Mapping[str, Array], **attributes: Any) -> pathlib.Path:
    """A D4RL file as others write it: gzip and shuffle, no checksum."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            array = np.asarray(array)
            packed = {"compression": "gzip", "shuffle": True} if array.ndim and array.size else {}
            file.create_dataset(key, data=array, **packed)
        for key, value in attributes.items():
            file.attrs[key] = value
    return path


def without(arrays: Mapping[str, Array], *keys: str) -> dict[str, Array]:
    """The arrays but for these keys."""
    return {key: value for key, value in arrays.items() if key not in keys}
