"""DPPO's two NPZ files, read and written: `train.npz` with everything in [-1, 1], and `normalization.npz` beside it.

Source: Ren et al., "Diffusion Policy Policy Optimization" (2024), whose data ReinFlow (Zhang et al., 2025) shares.
`states` (N, O) and `actions` (N, A), scaled by x -> 2 (x - min) / (max - min + 1e-6) - 1 with the extremes of all rows;
`rewards` (N,), `terminals` (N,), `traj_lengths` (E,). The observation after the last step of a trajectory is not there.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.errors import DataError
from surefoot.core.files import written_aside
from surefoot.core.unpacking import read_npz
from surefoot.data.checks import exact_matrix, exact_vector, flags, require_keys, validate
from surefoot.data.dataset import Dataset
from surefoot.data.formats.chained import need_chain
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.named import need_one_vector

Array = np.ndarray[Any, Any]

KEYS = ("states", "actions", "rewards", "terminals", "traj_lengths", "images")
MARKS = ("states", "traj_lengths")
"""An NPZ file with both of these is of this layout."""
BOUNDS = ("obs_min", "obs_max", "action_min", "action_max")
BESIDE = "normalization.npz"
TINY = 1e-6


def from_arrays(arrays: Mapping[str, Array], source: Source, path: pathlib.Path, view: str = "corrected") -> Dataset:
    """The dataset in the arrays of a `train.npz`, in the units of the environment.

    The scaling is undone exactly; DPPO's own environments undo that of actions without the 1e-6. The last step of a
    trajectory without a termination is not sampled, since nothing says where it led.

    Args:
        arrays: of the file.
        source: what is known of it.
        path: of the file: `normalization.npz` must lie beside it.
        view: as `formats.flat`.

    Raises:
        DataError: a key or the second file is missing, or the arrays are inconsistent or not finite; names key and row.
    """
    name = source.name
    if "images" in arrays:
        raise DataError(
            f"{name}: holds 'images', which are not read from this layout; leave them out, or convert the file"
        )
    require_keys(name, arrays, KEYS[:4], arrays)
    lengths = arrays["traj_lengths"].reshape(-1)
    if lengths.dtype.kind not in "iu" or len(lengths) == 0 or (lengths < 1).any():
        raise DataError(f"{name}: 'traj_lengths' must be whole numbers from 1 on, one a trajectory")
    terminals = flags(name, "terminals", arrays["terminals"])
    if int(lengths.sum()) != len(terminals):
        raise DataError(
            f"{name}: 'traj_lengths' add up to {int(lengths.sum())}, and 'terminals' has {len(terminals)} rows"
        )
    ends = np.zeros(len(terminals), bool)
    ends[np.cumsum(lengths) - 1] = True
    if len(inside := np.flatnonzero(terminals & ~ends)):
        raise DataError(
            f"{name}: 'terminals' is true in row {inside[0]}, which is inside a trajectory of 'traj_lengths'"
        )
    bounds = _bounds(path, name)
    columns = {
        "observations": _restored(name, "states", arrays["states"], bounds["obs_min"], bounds["obs_max"]),
        "actions": _restored(name, "actions", arrays["actions"], bounds["action_min"], bounds["action_max"]),
        "rewards": exact_vector(name, "rewards", arrays["rewards"]),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
    }
    return dataset_from_arrays(columns, source, view)


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write `path` and `normalization.npz` beside it; both appear, whole, or neither.

    Raises:
        DataError: the dataset breaks its invariants, is of images, has no rewards, which this layout always holds, or
            next observations that are not the next rows', or a file can't be written or is there already.
    """
    validate(dataset)
    need_one_vector(dataset, "DPPO's layout")
    if not dataset.has_rewards:
        raise DataError(
            f"{dataset.name}: has no rewards, and DPPO's layout always holds some, so that they would be read as "
            "recorded zeros; give some by --reward MODULE:FUNCTION, or write HDF5"
        )
    need_chain(dataset, "DPPO's layout")
    beside = path.with_name(BESIDE)
    if path == beside:
        raise DataError(f"{path}: has the name of the second file; call the first one train.npz")
    if beside.exists():
        raise DataError(f"{beside}: exists already, and holds the scale of other data; write into a folder of its own")
    extremes = {
        f"{which}_{end}": getattr(np, end)(values, axis=0)
        for which, values in (("obs", dataset.observations), ("action", dataset.actions))
        for end in ("min", "max")
    }
    columns = {
        "states": _scaled(dataset.observations, extremes["obs_min"], extremes["obs_max"]),
        "actions": _scaled(dataset.actions, extremes["action_min"], extremes["action_max"]),
        "rewards": dataset.rewards,
        "terminals": dataset.terminations,
        "traj_lengths": dataset.episode_lengths,
    }
    with written_aside(beside, DataError) as aside, open(aside, "wb") as file:
        np.savez(file, allow_pickle=False, **extremes)
    try:
        with written_aside(path, DataError) as aside, open(aside, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **columns)
    except BaseException:
        beside.unlink(missing_ok=True)  # a scale without its data would refuse the next attempt
        raise


def _scaled(values: Array, low: Array, high: Array) -> Array:
    wide = high.astype(np.float64) - low + TINY
    return (2 * (values - low.astype(np.float64)) / wide - 1).astype(np.float32)


def _restored(name: str, key: str, values: Array, low: Array, high: Array) -> Array:
    """In the units that they were recorded in."""
    numbers = exact_matrix(name, key, values)
    if low.shape != (numbers.shape[1],) or high.shape != low.shape:
        raise DataError(f"{name}: {key!r} has {numbers.shape[1]} columns, and {BESIDE} the bounds of {low.shape}")
    restored: Array = (numbers.astype(np.float64) + 1) / 2 * (high - low + TINY) + low
    return restored


def _bounds(path: pathlib.Path, name: str) -> dict[str, Array]:
    beside = path.with_name(BESIDE)
    try:
        found, names = read_npz(beside, lambda key: key in BOUNDS, DataError)
    except FileNotFoundError as error:
        raise DataError(
            f"{name}: is in DPPO's layout, whose numbers mean nothing without {beside}; fetch that file too"
        ) from error
    require_keys(str(beside), found, BOUNDS, names)
    for key, value in found.items():
        if value.dtype.kind != "f" or not np.isfinite(value).all():
            raise DataError(f"{beside}: {key!r} must be finite numbers")
    for which in ("obs", "action"):
        if (found[f"{which}_max"] < found[f"{which}_min"]).any():
            raise DataError(f"{beside}: a number of '{which}_max' is below that of '{which}_min'")
    return {key: value.astype(np.float64) for key, value in found.items()}
