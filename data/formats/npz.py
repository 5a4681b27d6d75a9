"""NPZ: the same arrays in numpy's zip archive, under D4RL's names or `Dataset`'s; never pickled objects.

Names read: those of `formats.flat.KEYS`, or `terminations` for `terminals`, `truncations` for `timeouts`.
The zip archive carries a CRC-32 of each array, which is compared on reading.
"""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import numpy as np
import psutil

from surefoot.core.errors import DataError
from surefoot.core.files import written_aside
from surefoot.data.checks import require_keys, validate
from surefoot.data.dataset import Dataset
from surefoot.data.formats.flat import KEYS, REQUIRED, Source, dataset_from_arrays
from surefoot.data.formats.hdf5 import MEMORY_SHARE
from surefoot.data.formats.hdf5_worker import MAX_EXPANSION

Array = np.ndarray[Any, Any]

SIGNATURE = b"PK\x03\x04"
ALIASES = {"terminations": "terminals", "truncations": "timeouts"}
ATTRIBUTES, EXTRAS = "attributes", "extras/"


def is_npz(path: pathlib.Path) -> bool:
    """Whether the file begins like a zip archive."""
    with open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def read(path: pathlib.Path, source: Source, view: str = "corrected") -> Dataset:
    """The dataset in an NPZ file.

    Raises:
        DataError: the archive is damaged, incomplete, inconsistent or holds values that are not finite.
    """
    try:
        arrays, names, attributes = _read_members(path)
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib, and numpy's header parser down to tokenizer errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: is a damaged NPZ file ({reason}); fetch or write it again") from error
    require_keys(str(path), arrays, REQUIRED, names)
    extras = {key.removeprefix(EXTRAS): value for key, value in arrays.items() if key.startswith(EXTRAS)}
    return dataset_from_arrays(arrays, source.with_attributes(attributes), view, extras)


def _read_members(path: pathlib.Path) -> tuple[dict[str, Array], list[str], dict[str, Any]]:
    """Arrays under D4RL's names, all names in the archive, and the attributes."""
    available = int(psutil.virtual_memory().available * MEMORY_SHARE)
    size = path.stat().st_size
    arrays: dict[str, Array] = {}
    attributes: dict[str, Any] = {}
    names = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            names.append(name)
            key = ALIASES.get(name, name)
            if key not in KEYS and not key.startswith(EXTRAS) and key != ATTRIBUTES:
                continue
            if member.file_size > size * MAX_EXPANSION or member.file_size > available:
                raise DataError(
                    f"{path}: {name!r} says that it holds {member.file_size} bytes, more than the file or "
                    "the memory can"
                )
            array = _read_array(archive, member, path)
            if key == ATTRIBUTES:
                attributes = {
                    k: v for k, v in json.loads(str(array)).items() if isinstance(v, str | int | float | bool)
                }
            else:
                arrays[key] = array
    return arrays, names, attributes


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: pathlib.Path) -> Array:
    """One member, once the shape in its header fits its size: numpy allocates by the header."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
        if dtype.hasobject:
            raise DataError(
                f"{path}: {member.filename!r} holds python objects, which are never loaded; save plain numbers"
            )
        declared = dtype.itemsize
        for length in shape:
            declared *= int(length)
        if declared > member.file_size:
            raise DataError(
                f"{path}: {member.filename!r} says that it has shape {shape} but holds {member.file_size} bytes"
            )
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        stream.read()  # to the end, where zipfile compares the CRC
    return array


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset compressed; the file appears whole or not at all.

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
        "valid": dataset.valid,
    }
    if dataset.costs is not None:
        columns["costs"] = dataset.costs
    columns |= {EXTRAS + key: value for key, value in dataset.extras.items()}
    attributes = dict(dataset.attributes)
    if dataset.env_id is not None:
        attributes["env_id"] = dataset.env_id
    columns[ATTRIBUTES] = np.array(json.dumps(attributes, default=str))
    with written_aside(path, DataError) as aside, open(aside, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
