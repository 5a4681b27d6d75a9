"""Stores on disk: a folder with one file of raw numbers for each column, which is mapped and never read whole::

    big.store/store.json     rows, columns with dtype, shape and SHA-256, attributes, and a SHA-256 of all that
    big.store/0.bin ...      the columns in the order of store.json: rows after rows, little-endian, nothing else; of
                             pictures one for each row, numbers of those that followed, and further ones
    big.store/prepared/      what training made of them (`data.derived`), which may be deleted; not part of the data

Names of files follow from numbers, sizes from store.json; neither is taken from what the folder happens to hold.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, DataError, SurefootError
from surefoot.core.base.files import read_json, why, write_json
from surefoot.core.base.schema import Many, Maybe, Number, Plain, Record, Table, Text, check
from surefoot.data import pictures
from surefoot.data.checks import BOOLS, validate
from surefoot.data.dataset import Dataset
from surefoot.data.derived import PREPARED, Derived, blocks, mapped
from surefoot.data.files import RACY, cache_folder, kept_digests, sha256_of

Array = np.ndarray[Any, Any]

HEADER = "store.json"
KIND = "surefoot store"
FORMAT, WITHOUT_PICTURES = 2, 1
"""Version of the format, and the one that says the same of stores without pictures, which older versions read."""
EXTRAS = "extras/"
FURTHER = f"{EXTRAS}{pictures.FURTHER}"
"""What names of columns begin with that have rows of their own number: pictures that no row begins with."""
FIELDS = {
    "observations": "float32",
    "actions": "float32",
    "rewards": "float32",
    "next_observations": "float32",
    "terminations": "bool",
    "truncations": "bool",
    "episode_ids": "int64",
    "valid": "bool",
    "costs": "float32",
    "next_known": "bool",
}
"""Columns that are fields of a dataset -> their dtype, in the order of their files; the last two may be missing."""
MAY_LACK = ("costs", "next_known")
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
MOST_COLUMNS, MOST_DIMENSIONS, MOST_SIZE = 1000, 5, 2**31

COLUMN = Record(
    {
        "name": Text(200),
        "dtype": Text(among=DTYPES),
        "shape": Many(Number(0, MOST_SIZE, whole=True), most=MOST_DIMENSIONS),
        "sha256": Text(64),
    },
    {"rows": Number(0, 2**48, whole=True)},
)
STORE = Record(
    {
        "kind": Text(among=(KIND,)),
        "rows": Number(1, 2**48, whole=True),
        "columns": Many(COLUMN, 1, MOST_COLUMNS),
        "env_id": Maybe(Text()),
        "attributes": Table(Plain()),
        "warnings": Table(Number(0, whole=True)),
        "sources": Many(Table(Plain())),
        "sha256": Text(64),
    },
    newest=FORMAT,
)
"""What store.json holds."""


def is_store(path: pathlib.Path) -> bool:
    """Whether a folder says that it is a store."""
    return (path / HEADER).is_file()


def column_file(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Where the column of this number is."""
    return folder / f"{number}.bin"


def header_digest(header: Mapping[str, Any]) -> str:
    """SHA-256 of what store.json says beside it: of the columns' own SHA-256 too, and so of all content."""
    reported = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(reported, sort_keys=True).encode()).hexdigest()


def read_header(folder: pathlib.Path) -> dict[str, Any]:
    """What store.json holds, checked, its own SHA-256 too.

    Raises:
        DataError: it is damaged, or of another version.
    """
    path = folder / HEADER
    if path.is_symlink():
        raise DataError(f"{path}: is a symbolic link, which a store has none of")
    try:
        header: dict[str, Any] = read_json(path, STORE)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    if header_digest(header) != header["sha256"]:
        raise DataError(f"{path}: its checksum does not fit what it says: damaged or changed since; build it again")
    names = [column["name"] for column in header["columns"]]
    needed = [name for name in FIELDS if name not in MAY_LACK]
    if len(set(names)) < len(names) or any(name not in FIELDS and not name.startswith(EXTRAS) for name in names):
        raise DataError(f"{path}: has columns twice, or of names that are not known; build it again")
    if missing := [name for name in needed if name not in names]:
        raise DataError(f"{path}: has no column {missing[0]!r}; build it again")
    for column in header["columns"]:
        if ("rows" in column) != column["name"].startswith(FURTHER):
            raise DataError(f"{path}: {column['name']!r} has rows of its own, or lacks them; build it again")
        if column["dtype"] != FIELDS.get(column["name"], column["dtype"]):
            raise DataError(f"{path}: {column['name']!r} is {column['dtype']}, must be {FIELDS[column['name']]}")
    return header


def read(folder: pathlib.Path, name: str, *, private: bool = False, checked: bool = True) -> Dataset:
    """The dataset in a store, its columns mapped: nothing is read before it is asked for, but to check it.

    Args:
        folder: of the store.
        name: what the user called it.
        private: whether columns may be written to, which changes a copy of this process's own; else they are read-only.
        checked: compare each column with its SHA-256 and look for what no dataset holds, unless that was found good
            before and sizes and times of change are what they were then; False: look at sizes alone.

    Raises:
        DataError: a column is missing, truncated, altered, a symbolic link, or not what a dataset holds.
    """
    header = read_header(folder)
    if sys.byteorder != "little":
        raise DataError(f"{folder}: stores on disk are for machines whose numbers are little-endian")
    arrays: dict[str, Array] = {}
    for number, column in enumerate(header["columns"]):
        path, shape = column_file(folder, number), (_rows(header, column), *column["shape"])
        size = math.prod(shape) * np.dtype(column["dtype"]).itemsize
        try:
            if not path.is_symlink() and path.is_file() and path.stat().st_size != size:
                raise OSError(f"it has {path.stat().st_size:,} bytes, must have {size:,}: truncated or changed")
            arrays[column["name"]] = mapped(path, column["dtype"], shape, private=private)
        except (OSError, ValueError, OverflowError) as failure:
            raise DataError(
                f"{path}: the column {column['name']!r} can't be read: {why(failure)}; build the store again"
            ) from failure
    derived = StoreFiles(prepared_folder(folder, header["sha256"]), Origin(folder, header["sha256"], arrays))
    for column in header["columns"]:
        reported = f"column {column['sha256']} {_rows(header, column)} {column['shape']}"
        derived.know(arrays[column["name"]], reported)
    found = _dataset(header, arrays, folder, name, derived)
    if checked:
        _check(folder, header, found, again=False)
    return found


def check_again(folder: pathlib.Path) -> None:
    """Read all of a store and check it, whatever was found before.

    Raises:
        DataError: as `read`.
    """
    _check(folder, read_header(folder), read(folder, str(folder), checked=False), again=True)


def _dataset(header: dict[str, Any], arrays: dict[str, Array], folder: pathlib.Path, name: str, to: Derived) -> Dataset:
    """The dataset of a header and its columns."""
    extras = {key.removeprefix(EXTRAS): value for key, value in arrays.items() if key.startswith(EXTRAS)}
    extras = pictures.read_back(str(folder), extras)
    fields: dict[str, Any] = {key: value for key, value in arrays.items() if not key.startswith(EXTRAS)}
    dimensions = {"observations": 2, "actions": 2, "next_observations": 2}
    for key, array in fields.items():
        if array.ndim != dimensions.get(key, 1):
            raise DataError(f"{folder / HEADER}: {key!r} has shape {array.shape}, which no dataset's has")
    return Dataset(
        **fields,
        extras=extras,
        env_id=header["env_id"],
        name=name,
        sha256=header["sha256"],
        attributes=header["attributes"],
        warnings=header["warnings"],
        derived=to,
    )


def _rows(header: Mapping[str, Any], column: Mapping[str, Any]) -> int:
    """How many rows a column has."""
    return int(column.get("rows", header["rows"]))


def numbers_of(further: str) -> str:
    """The column of numbers that speak of these further pictures."""
    return f"{EXTRAS}{pictures.FOLLOWED}{further.removeprefix(FURTHER)}"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The store that a dataset's mapped columns lie in."""

    folder: pathlib.Path
    sha256: str
    columns: Mapping[str, Array]

    def column(self, array: Array) -> str | None:
        """The name of the column that an array is; None of one that has been made of it, or of others."""
        return next((name for name, one in self.columns.items() if one is array), None)


class StoreFiles(Derived):
    """Arrays made of a store's, and which store that is."""

    def __init__(self, folder: str | os.PathLike[str], origin: Origin) -> None:
        super().__init__(folder)
        self.origin = origin


def origin_of(dataset: Dataset) -> Origin | None:
    """The store of a dataset's columns; None where they are in no store."""
    return dataset.derived.origin if isinstance(dataset.derived, StoreFiles) else None


def prepared_folder(folder: pathlib.Path, sha256: str) -> pathlib.Path:
    """Where rows are kept that training prepares: in the store, or in the user's cache where it can't be written."""
    inside = folder / PREPARED
    if os.access(folder, os.W_OK) and not inside.is_symlink():
        return inside
    return cache_folder() / PREPARED / sha256[:40]


def _check(folder: pathlib.Path, header: dict[str, Any], dataset: Dataset, again: bool) -> None:
    """Compare columns with their SHA-256 and a dataset with its invariants, unless they are known to be good."""
    kept, facts = kept_digests(folder), dict[str, Any]()
    for number in range(len(header["columns"])):
        reported = column_file(folder, number).stat()
        facts[str(number)] = [reported.st_size, reported.st_mtime_ns]
    good = {"sha256": header["sha256"], "files": facts}
    try:
        known = read_json(kept) if kept.is_file() else None
    except SurefootError:
        known = None
    if known == good and not again:
        return
    for number, column in enumerate(header["columns"]):
        path = column_file(folder, number)
        try:
            found = sha256_of(path)
        except OSError as failure:
            raise DataError(f"{path}: the column {column['name']!r} can't be read: {why(failure)}") from failure
        if found != column["sha256"]:
            raise DataError(
                f"{path}: the column {column['name']!r} does not fit its checksum: damaged or changed since it was "
                "written; build the store again"
            )
    for key in BOOLS:
        values = getattr(dataset, key)
        if values is not None and any(values[some].view(np.uint8).max() > 1 for some in blocks(len(values))):
            raise DataError(f"{folder}: {key!r} holds bytes that are neither 0 nor 1; build the store again")
    for key, values in dataset.extras.items():
        if values.dtype == bool and any(values[some].view(np.uint8).max() > 1 for some in blocks(len(values))):
            raise DataError(f"{folder}: {key!r} holds bytes that are neither 0 nor 1; build the store again")
    validate(dataset)
    youngest = max(changed for _, changed in facts.values())
    if time.time_ns() - youngest > RACY * 10**9:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, good)
        except (OSError, SurefootError):
            pass  # a cache that can't be written costs time and nothing else


def checked_header(header: dict[str, Any], where: object) -> dict[str, Any]:
    """A header that is about to be written, with its SHA-256."""
    header = {**header, "sha256": ""}
    header["sha256"] = header_digest(header)
    return dict(check(header, STORE, where, DataError))
