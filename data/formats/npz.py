"""NPZ: the same arrays in numpy's zip archive, under D4RL's names or `Dataset`'s; never pickled objects.

Files of OGBench, OCBench, DPPO and NeoRL-2, which are NPZ too, are recognised by their keys and read by modules of that
name.

Names read: those of `formats.flat.KEYS`, or `terminations` for `terminals`, `truncations` for `timeouts`.
The zip archive carries a CRC-32 of each array, which is compared on reading.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import written_aside
from surefoot.core.base.schema import parse, shown
from surefoot.core.base.unpacking import read_npz
from surefoot.data.checks import require_keys, validate
from surefoot.data.dataset import Dataset
from surefoot.data.formats import dppo, neorl2, ogbench
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
from surefoot.data.formats.named import PREFIXES, file_columns, take_named

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
    wanted = {*KEYS, *ALIASES, ATTRIBUTES, *ogbench.KEYS, *dppo.KEYS, *neorl2.KEYS}
    found, names = read_npz(
        path,
        lambda name: name in wanted or name.startswith((EXTRAS, *PREFIXES)),
        DataError,
        as_is=lambda name: ALIASES.get(name, name) in FLAGS or name.startswith(EXTRAS),
    )
    text = found.pop(ATTRIBUTES, None)
    attributes = {} if text is None else _attributes(path, text)
    if set(dppo.MARKS) <= set(found):
        return dppo.from_arrays(found, source, path, view)
    if ogbench.fits(found):
        return ogbench.from_arrays(found, source.with_attributes(attributes), view)
    if set(neorl2.MARKS) <= set(found) and not set(REQUIRED) & set(found):
        return neorl2.from_arrays(found, source.with_attributes(attributes), path, view)
    return of_names(found, source.with_attributes(attributes), view, names)


def of_names(found: Mapping[str, Array], source: Source, view: str = "corrected", names: Iterable[str] = ()) -> Dataset:
    """The dataset of arrays under the names that are read: `flat.KEYS`, ALIASES, images and EXTRAS.

    Args:
        found: the arrays.
        source: what else is known.
        view: as of `flat.dataset_from_arrays`.
        names: all that the source holds, read or not, for errors.

    Raises:
        DataError: a key is missing or there under both of its names, or the arrays are inconsistent or not finite.
    """
    for name, key in ALIASES.items():
        if name in found and key in found:
            raise DataError(f"{source.name}: holds both {name!r} and {key!r}; keep one of them")
    arrays, named = take_named({ALIASES.get(name, name): array for name, array in found.items()}, source.name)
    require_keys(source.name, arrays, REQUIRED, names)
    extras = named | {key.removeprefix(EXTRAS): value for key, value in arrays.items() if key.startswith(EXTRAS)}
    return dataset_from_arrays(arrays, source, view, extras)


def _attributes(path: pathlib.Path, text: Array) -> dict[str, Any]:
    """Those that are a text, a number or a truth value."""
    held = parse(str(text), f"{path}, {ATTRIBUTES!r}", DataError)
    if not isinstance(held, dict):
        raise DataError(f"{path}: {ATTRIBUTES!r} is {shown(held)}, must be a JSON object")
    return {key: value for key, value in held.items() if isinstance(value, str | int | float | bool)}


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
        "valid": dataset.transitions,
        **flag_columns(dataset),
    }
    if dataset.costs is not None:
        columns["costs"] = dataset.costs
    columns = file_columns(columns, dataset, EXTRAS)
    attributes = {**dataset.attributes, OWN_MARK: LAYOUT_VERSION}
    if dataset.env_id is not None:
        attributes["env_id"] = dataset.env_id
    columns[ATTRIBUTES] = np.array(json.dumps(attributes, default=str))
    with written_aside(path, DataError) as aside, open(aside, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)
