"""Parquet: a row for each step, vectors and images as lists of one length; read and written by pyarrow.

Columns are those of NPZ files, as `observations` (a list of numbers), `rewards`, `terminals`, `timeouts`; or numbered
as in CSV files (`observation_0`). The shape of an image stands in its field's metadata. Attributes are in the file's.
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError, nearest
from surefoot.core.base.files import written_aside
from surefoot.core.base.schema import parse
from surefoot.data.checks import require_keys, validate
from surefoot.data.dataset import Dataset
from surefoot.data.formats import csv
from surefoot.data.formats.columns import SHAPE, arrow_array, parquet, parquet_errors, parquet_table, picture_shape
from surefoot.data.formats.flat import (
    KEYS,
    LAYOUT_VERSION,
    OWN_MARK,
    REQUIRED,
    Source,
    dataset_from_arrays,
    flag_columns,
)
from surefoot.data.formats.named import PREFIXES, file_columns, take_named
from surefoot.data.pictures import FURTHER

Array = np.ndarray[Any, Any]

SIGNATURE = b"PAR1"
ALIASES = {"terminations": "terminals", "truncations": "timeouts"}
ATTRIBUTES, EXTRAS = b"surefoot", "extras/"


def is_parquet(path: pathlib.Path) -> bool:
    """Whether the file begins as Parquet files do."""
    with open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def read(path: pathlib.Path, source: Source, view: str = "corrected") -> Dataset:
    """The dataset in a Parquet file.

    Raises:
        DataError: the file is damaged, holds a column that is not known, or is inconsistent; names file and column.
        MissingExtraError: pyarrow is not installed.
    """
    table = parquet_table(path)
    names = {name: ALIASES.get(name, name) for name in table.names}
    known = {name for name, key in names.items() if key in KEYS or key.startswith((EXTRAS, *PREFIXES))}
    if "observation_0" in table.names:
        columns = table.read(list(table.names), "episode")
        held = np.stack([csv.number(path, name, column) for name, column in columns.items()], 1)
        return csv.from_table(path, list(columns), held, source.with_attributes({}), view)
    if unknown := [name for name in table.names if name not in known]:
        raise DataError(
            f"{path}: column {unknown[0]!r} is unknown: {nearest(unknown[0], [*KEYS, *ALIASES])}; say by a mapping "
            "which columns are what (docs/own_data.md)"
        )
    for name, key in ALIASES.items():
        if {name, key} <= set(table.names):
            raise DataError(f"{path}: holds both {name!r} and {key!r}; keep one of them")
    reported = attributes(path)
    further = [name for name in table.names if name.startswith(FURTHER)]
    read = table.read([name for name in table.names if name not in further])
    arrays = {names[name]: array for name, array in read.items()} | {name: _further(path, name) for name in further}
    arrays, named = take_named(arrays, str(path))
    require_keys(str(path), arrays, REQUIRED, arrays)
    extras = named | {key.removeprefix(EXTRAS): arrays.pop(key) for key in list(arrays) if key.startswith(EXTRAS)}
    return dataset_from_arrays(arrays, source.with_attributes(reported), view, extras)


def attributes(path: pathlib.Path) -> dict[str, Any]:
    """The attributes that are a text, a number or a truth value."""
    with parquet_errors(path):
        schema = parquet().read_schema(path)
    text = (schema.metadata or {}).get(ATTRIBUTES)
    held: Any = {} if text is None else parse(text, f"{path}, its attributes", DataError)
    if not isinstance(held, dict):
        raise DataError(f"{path}: its attributes must be a JSON object")
    return {key: value for key, value in held.items() if isinstance(value, str | int | float | bool)}


def _further(path: pathlib.Path, name: str) -> Array:
    """(T, ...) pictures of a column of which only the first T rows hold one, as bytes.

    Raises:
        DataError: the column is of another kind, or a picture of another size than the column says.
    """
    import pyarrow.types as types

    with parquet_errors(path):
        file = parquet().ParquetFile(path)
        field = file.schema_arrow.field(name)
        if (shape := picture_shape(path, field)) is None or not types.is_large_binary(field.type):
            raise DataError(f"{path}: column {name!r} is {field.type}, must be pictures as bytes, with their shape")
        groups = [file.read_row_group(group, columns=[name]).column(0).drop_null()
                  for group in range(file.metadata.num_row_groups)]  # fmt: skip
    content = [one.as_py() for group in groups for one in group]
    if any(len(one) != math.prod(shape) for one in content):
        raise DataError(f"{path}: column {name!r} says that it has the shape {shape} and holds others")
    return np.frombuffer(b"".join(content), np.uint8).reshape(len(content), *shape)


class RowGroups:
    """A Parquet file whose rows are read by ranges, a group of rows at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        """Read what the file says of itself.

        Raises:
            DataError: the file is damaged.
            MissingExtraError: pyarrow is not installed.
        """
        self.path = path
        with parquet_errors(path):
            file = parquet().ParquetFile(path)
            self.names = {name: ALIASES.get(name, name) for name in file.schema_arrow.names}
            groups = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)
        self.length = int(self._starts[-1])
        self._held: dict[tuple[str, int], Any] = {}

    def rows(self, start: int, stop: int, keys: list[str] | None = None) -> dict[str, Array]:
        """Key -> the rows from `start` to before `stop` of these columns that are there, or of all.

        Raises:
            DataError: the file is damaged, or holds what is not numbers.
        """
        import pyarrow as pa

        wanted = [name for name, key in self.names.items() if keys is None or key in keys]
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = max(first + 1, int(np.searchsorted(self._starts, stop, side="left")))
        found = {}
        groups = list(range(first, min(last, len(self._starts) - 1)))
        with parquet_errors(self.path):
            file = parquet().ParquetFile(self.path)
            for name in wanted:
                parts = [self._group(file, name, group) for group in groups]
                some = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
                some = some.slice(start - int(self._starts[first]), stop - start).combine_chunks()
                found[self.names[name]] = arrow_array(self.path, name, some)
        self._held = {(name, group): part for (name, group), part in self._held.items() if group == groups[-1]}
        return found

    def _group(self, file: Any, name: str, group: int) -> Any:
        """A column of a group of rows; those of the last one are kept, for the next range begins in it."""
        if (name, group) not in self._held:
            self._held[name, group] = file.read_row_group(group, columns=[name]).column(0)
        return self._held[name, group]


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset compressed; the file appears whole or not at all.

    Raises:
        DataError: the dataset breaks its invariants, or the file can't be written.
        MissingExtraError: pyarrow is not installed.
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
    attributes = {**dataset.attributes, OWN_MARK: LAYOUT_VERSION}
    if dataset.env_id is not None:
        attributes["env_id"] = dataset.env_id
    made = arrow_table(file_columns(columns, dataset, EXTRAS), {ATTRIBUTES: json.dumps(attributes, default=str)})
    with written_aside(path, DataError) as aside:
        parquet().write_table(made, aside, compression="zstd")


def arrow_table(columns: dict[str, Array], metadata: dict[bytes, str]) -> Any:
    """An Arrow table: arrays of several numbers a row as lists of one length, with their shape if no vector."""
    parquet()
    import pyarrow as pa

    fields, arrays = [], []
    rows = max((len(column) for column in columns.values()), default=0)
    for name, column in columns.items():
        if name.startswith(FURTHER):  # fewer than there are rows: the first of them hold one each
            content = [one.tobytes() for one in column] + [None] * (rows - len(column))
            values = pa.array(content, pa.large_binary())
        else:
            values = pa.array(np.ascontiguousarray(column).reshape(-1))
        if column.ndim > 1 and not name.startswith(FURTHER):
            values = pa.FixedSizeListArray.from_arrays(values, math.prod(column.shape[1:]))
        reported = {SHAPE: json.dumps(column.shape[1:])} if column.ndim > 2 else None
        fields.append(pa.field(name, values.type, metadata=reported))
        arrays.append(values)
    return pa.table(arrays, schema=pa.schema(fields, metadata=metadata))
