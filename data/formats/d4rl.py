"""D4RL's HDF5 layout, read and written: flat arrays over all steps.

Written files are ordinary HDF5 that D4RL's own loader reads too. What they hold beyond D4RL:
`next_observations`, `observations/KEY` of images and named arrays
(`formats.named`), `costs`, `valid` (where a row may not be sampled), `extras/...`, and a checksum of
everything in the 512 bytes that HDF5 leaves to the user at the front.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
from typing import Any

import h5py
import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import written_aside
from surefoot.data.cameras import Cameras
from surefoot.data.checks import require_keys, validate
from surefoot.data.dataset import Dataset
from surefoot.data.formats import d3rlpy, robomimic
from surefoot.data.formats.flat import (
    FLAGS,
    KEYS,
    LAYOUT_VERSION,
    OWN_MARK,
    REQUIRED,
    Source,
    dataset_from_arrays,
    flag_columns,
)
from surefoot.data.formats.hdf5 import SEAL_BYTES, read_hdf5, seal
from surefoot.data.formats.named import PREFIXES, file_columns, take_named

Array = np.ndarray[Any, Any]

EXTRAS = "extras/"


def read(path: pathlib.Path, source: Source, view: str = "corrected", cameras: Cameras | None = None) -> Dataset:
    """The dataset in a D4RL HDF5 file; facts that `source` lacks are taken from the file's attributes.

    Args:
        path: of the file.
        source: what else is known.
        view: as `formats.flat`.
        cameras: as of `robomimic.read`.

    Raises:
        DataError: the file is damaged, incomplete, inconsistent or holds values that are not finite.
    """
    contents = read_hdf5(path, KEYS, prefixes=[EXTRAS, *PREFIXES], as_is=(EXTRAS, *FLAGS))
    if any(name.startswith("episode_0/") for name in contents.names):
        raise DataError(f"{path}: is the inside of a Minari dataset; give the dataset's folder (two levels up) instead")
    if robomimic.fits(contents.names):
        return robomimic.read(path, source.with_attributes(contents.attributes), view, None, contents.names, cameras)
    if d3rlpy.fits(contents.names):
        return d3rlpy.read(path, source.with_attributes(contents.attributes), view)
    arrays, named = take_named(contents.arrays, str(path))
    require_keys(str(path), arrays, REQUIRED, contents.names)
    extras = named | {key.removeprefix(EXTRAS): value for key, value in arrays.items() if key.startswith(EXTRAS)}
    return dataset_from_arrays(arrays, source.with_attributes(contents.attributes), view, extras)


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset with its checksum; the file appears whole or not at all.

    Raises:
        DataError: the dataset breaks its invariants, or the file can't be written.
    """
    validate(dataset)
    columns: dict[str, Array] = {
        "observations": dataset.observations,
        "actions": dataset.actions,
        "rewards": dataset.rewards,
        "terminals": dataset.terminations,
        "timeouts": dataset.truncations,
        "next_observations": dataset.next_observations,
    }
    if dataset.costs is not None:
        columns["costs"] = dataset.costs
    columns |= flag_columns(dataset)
    columns = file_columns(columns, dataset, EXTRAS)
    # Built in memory and written in one go: the HDF5 library does not survive a disk that fills up under it.
    image = io.BytesIO()
    # v108: older layouts can't hold attributes above 64 kB, such as long lists of policies.
    with h5py.File(image, "w", userblock_size=SEAL_BYTES, libver=("v108", "v108")) as file:
        for key, column in columns.items():
            file.create_dataset(key, data=column, compression="gzip", compression_opts=4, shuffle=True)
        for key, value in _attributes(dataset).items():
            file.attrs[key] = value
    content = image.getbuffer()[SEAL_BYTES:]
    with written_aside(path, DataError) as aside, open(aside, "wb") as raw:
        raw.write(seal(hashlib.sha256(content).hexdigest()))
        raw.write(content)
        raw.flush()
        os.fsync(raw.fileno())


def _attributes(dataset: Dataset) -> dict[str, Any]:
    """Root attributes: strings and numbers as they are, the rest as JSON text."""
    found: dict[str, Any] = {
        key: value
        if isinstance(value, str | int | float | bool | np.number | np.bool)
        else json.dumps(value, default=str)
        for key, value in dataset.attributes.items()
    }
    if dataset.env_id is not None:
        found["env_id"] = dataset.env_id
    return found | {OWN_MARK: LAYOUT_VERSION}
