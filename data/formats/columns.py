"""Columns of a log by name, whatever kind of file they stand in: what a mapping chooses from (`formats.mapping`).

A table knows the names of its columns and reads those that are wanted, as arrays with a row for each step: numbers and
truth values. A column that tells episodes apart may hold texts, which become numbers that stand for them.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError, MissingExtraError, nearest
from surefoot.core.base.schema import Many, Number, check, parse
from surefoot.core.base.unpacking import Unpacked, read_npz
from surefoot.data.pictures import FURTHER

Array = np.ndarray[Any, Any]

WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
GAPS = ("", "nan", "na", "n/a", "null", "none", "-")
"""What cells hold, in small letters, that lack a number."""
RULES_HELP = "a mapping fills or leaves out such rows by interpolate, hold or drop (docs/own_data.md)"
CHUNK = 65_536
"""Lines of a text file that are turned into numbers at once."""
DELIMITERS = ",;\t"
TEXT = "text"
SHAPE = b"shape"
"""Key of a field's metadata in our Parquet files: the shape of its rows, as JSON, where they are no vectors."""
_SHAPE = Many(Number(0, 2**31, whole=True), 1, 5)
AT_ONCE = 1 << 20
"""Bytes of pictures of a Parquet file that are decoded at once: Arrow takes 14 times as much for it."""
LATER = "before the next step: "
"""Before a column's name: what it held there, of recorded messages, where the plain name has what it held at a step."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A file's columns: name -> what it holds, in words, and a function that reads some of them."""

    path: pathlib.Path
    names: Mapping[str, str]
    reader: Callable[[Sequence[str], str | None], dict[str, Array]]
    sampled: bool = False  # its rows are made of messages, as the mapping says: by `rate` and `gap`
    episodes: tuple[str, ...] = ()  # the column that tells episodes apart, where files of this layout have one
    gap_reader: Callable[[Sequence[str]], dict[str, Array]] | None = None  # cells without a number become NaN
    word_reader: Callable[[str], Array] | None = None  # (N,) texts of a column, or its numbers
    where: Callable[[int], str] = "row {}".format  # a row, counted from 0, in words

    def words(self, name: str) -> Array:
        """(N,) of a column of texts or numbers, such as a status.

        Raises:
            DataError: there is no such column, or it has several values a row.
        """
        if name not in self.names:
            raise DataError(f"{self.path}: has no column {name!r}: {nearest(name, list(self.names))}")
        found = self.reader([name], None)[name] if self.word_reader is None else self.word_reader(name)
        if found.size != len(found):
            raise DataError(f"{self.path}: column {name!r} has shape {found.shape}; a status has one value a row")
        return found.reshape(-1)

    def read(
        self, wanted: Sequence[str], text: str | None = None, gaps: frozenset[str] = frozenset()
    ) -> dict[str, Array]:
        """Name -> (N, ...) of these columns, all of one length.

        Args:
            wanted: names of columns.
            text: the one of them that may hold texts.
            gaps: those in which cells without a number are NaN.

        Raises:
            DataError: a column is missing, or is no array of numbers, texts or truth values with a row a step.
        """
        for name in wanted:
            if name not in self.names:
                raise DataError(f"{self.path}: has no column {name!r}: {nearest(name, list(self.names))}")
        with_gaps = [name for name in dict.fromkeys(wanted) if self.gap_reader is not None and name in gaps]
        whole = [name for name in dict.fromkeys(wanted) if name not in with_gaps]
        found = self.reader(whole, text) if whole or not with_gaps else {}
        if with_gaps and self.gap_reader is not None:
            found |= self.gap_reader(with_gaps)
        rows = {name: len(array) if array.ndim else 0 for name, array in found.items()}
        if len(set(rows.values())) > 1:
            raise DataError(f"{self.path}: columns of different lengths: {rows}; each needs a row for each step")
        if not rows or not next(iter(rows.values())):
            raise DataError(f"{self.path}: holds no step")
        return found


def csv_table(path: pathlib.Path) -> Table:
    """The columns of a text file with a first line of names, separated by comma, semicolon or tab."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            line = file.readline()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text at byte {error.start}") from error
    delimiter = max(DELIMITERS, key=line.count)
    header = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    if doubled := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path}: column {doubled[0]!r} occurs more than once")

    def read(wanted: Sequence[str], text: str | None) -> dict[str, Array]:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            next(rows)
            return _text_columns(path, rows, header, wanted, text)

    def where(row: int) -> str:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            next(rows)
            numbers = (rows.line_num for cells in rows if cells)
            return f"line {next(itertools.islice(numbers, row, None))}"

    def gappy(wanted: Sequence[str]) -> dict[str, Array]:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            next(rows)
            return _text_columns(path, rows, header, wanted, None, gaps=True)

    def words(name: str) -> Array:
        place = header.index(name)
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            next(rows)
            found = np.array([cells[place].strip() if place < len(cells) else "" for cells in rows if cells])
        with contextlib.suppress(ValueError):
            return found.astype(np.float64)
        return found

    kinds = _kinds(path, header, delimiter)
    return Table(path, kinds, read, gap_reader=gappy, word_reader=words, where=where)


def _kinds(path: pathlib.Path, header: list[str], delimiter: str) -> dict[str, str]:
    """What each column of a text file holds, by its first row."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=delimiter)
        try:
            next(rows)
            first = next(filter(None, rows), [])
        except (csv.Error, UnicodeDecodeError, StopIteration):
            first = []
    held = dict(zip(header, first, strict=False))
    return {name: TEXT if _number(held.get(name, "0").strip()) is None else "numbers" for name in header}


def _text_columns(
    path: pathlib.Path,
    rows: Any,
    header: list[str],
    wanted: Sequence[str],
    text: str | None,
    gaps: bool = False,
) -> dict[str, Array]:
    """The cells of these columns as numbers; a column of texts as the places of its texts among the different ones."""
    places = [header.index(name) for name in wanted]
    parts: list[list[Array]] = [[] for _ in wanted]
    texts: dict[str, int] = {}
    numbered = ((rows.line_num, cells) for cells in rows if cells)  # a blank line counts, and is no row
    try:
        while found := list(itertools.islice(numbered, CHUNK)):
            lines, table = [line for line, _ in found], [cells for _, cells in found]
            for line, cells in found:
                if len(cells) != len(header):
                    raise DataError(f"{path}: line {line} has {len(cells)} cells, and the first {len(header)}")
            for index, place in enumerate(places):
                cells = [one[place] for one in table]
                if header[place] == text:
                    blank = next((one for one, cell in enumerate(cells) if cell.strip().lower() in ("", "nan")), None)
                    if blank is not None:
                        held = "nan" if cells[blank].strip() else "empty"
                        raise DataError(f"{path}: the cell in line {lines[blank]} of column {text!r} is {held}")
                    parts[index].append(np.array([texts.setdefault(cell, len(texts)) for cell in cells], np.float64))
                else:
                    if gaps:
                        cells = ["nan" if cell.strip().lower() in GAPS else cell for cell in cells]
                    parts[index].append(_numbers(path, header[place], cells, lines))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not readable as text with columns near line {rows.line_num} ({error})") from error
    if not all(parts):
        raise DataError(f"{path}: is empty: no row follows the first line")
    return {name: np.concatenate(part) for name, part in zip(wanted, parts, strict=True)}


def _numbers(path: pathlib.Path, name: str, cells: list[str], lines: Sequence[int]) -> Array:
    """Cells as float64: numbers, truth values, or dates as seconds; `lines` are those that they stand in."""
    try:
        return np.array(cells, np.float64)
    except ValueError:
        found = [_number(cell.strip()) for cell in cells]
    if None in found:
        bad = found.index(None)
        hint = f"; {RULES_HELP}" if cells[bad].strip().lower() in GAPS else ""
        raise DataError(f"{path}: {cells[bad]!r} in line {lines[bad]} of column {name!r} is not a number{hint}")
    return np.array(found, np.float64)


def _number(text: str) -> float | None:
    """A number, a truth value, or a date and time of ISO 8601 as seconds; without an offset it is of UTC."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for meaning in (float, _seconds):
        try:
            return meaning(text)
        except ValueError:
            continue
    return None


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()  # local clocks leap twice a year


def npz_table(path: pathlib.Path) -> Table:
    """The arrays of a NumPy archive."""
    _, names = read_npz(path, lambda name: False, DataError)

    def read(wanted: Sequence[str], text: str | None) -> dict[str, Array]:
        found = read_npz(path, set(wanted).__contains__, DataError)[0]
        for name, array in found.items():
            if array.dtype.kind == "U" and name == text:
                found[name] = np.unique(array, return_inverse=True)[1]
        return found

    return Table(path, dict.fromkeys(names, "an array"), read)


def hdf5_table(path: pathlib.Path) -> Table:
    """The datasets of an HDF5 file, by their whole names, such as `observations/qpos`."""
    from surefoot.data.formats.hdf5 import read_hdf5

    names = read_hdf5(path, []).names
    return Table(path, dict.fromkeys(names, "an array"), lambda wanted, _: read_hdf5(path, list(wanted)).arrays)


def parquet_table(path: pathlib.Path) -> Table:
    """The columns of a Parquet file: numbers, lists of one length, fields of structures by `column.field`, texts."""
    with parquet_errors(path):
        file = parquet().ParquetFile(path)
        schema = file.schema_arrow
        check_unpacked(path, file)
    names: dict[str, str] = {}
    for field in schema:
        inner = {f"{field.name}.{part.name}": str(part.type) for part in field.type} if _is_struct(field.type) else {}
        names |= inner or {field.name: str(field.type)}

    def gappy(wanted: Sequence[str]) -> dict[str, Array]:
        return read(wanted, None, gaps=True)

    def words(name: str) -> Array:
        with parquet_errors(path):
            column, _, part = (name, "", "") if name in schema.names else name.partition(".")
            values = file.read([column]).column(0).combine_chunks()
            values = values.field(part) if part else values
            listed = values.to_pylist()
        if all(isinstance(one, int | float) for one in listed):
            return np.array(listed, np.float64)
        return np.array(["" if one is None else str(one) for one in listed])

    def read(wanted: Sequence[str], text: str | None, gaps: bool = False) -> dict[str, Array]:
        found = {}
        with parquet_errors(path):
            for name in wanted:
                column, _, part = (name, "", "") if name in schema.names else name.partition(".")
                field = schema.field(schema.names.index(column))
                shape = None if part else picture_shape(path, field)
                if not part and _pictured(field, shape):
                    found[name] = _pictures(path, file, column)
                else:
                    values = file.read([column]).column(0).combine_chunks()
                    found[name] = arrow_array(path, name, values.field(part) if part else values, name == text, gaps)
                if shape is not None:
                    if math.prod(shape) != math.prod(found[name].shape[1:]):
                        raise DataError(f"{path}: column {name!r} says that it has the shape {shape} and holds others")
                    found[name] = found[name].reshape(len(found[name]), *shape)
        return found

    return Table(path, names, read, gap_reader=gappy, word_reader=words)


def picture_shape(path: pathlib.Path, field: Any) -> tuple[int, ...] | None:
    """The shape of a field's rows that its metadata has."""
    if not field.metadata or SHAPE not in field.metadata:
        return None
    reported = parse(field.metadata[SHAPE], f"{path}, column {field.name!r}", DataError)
    return tuple(check(reported, _SHAPE, f"{path}, column {field.name!r}", DataError))


def _pictured(field: Any, shape: tuple[int, ...] | None) -> bool:
    """Whether a field's rows are pictures: bytes in two dimensions and more."""
    import pyarrow as pa
    import pyarrow.types as types

    kind, depth = field.type, 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return bool(kind == pa.uint8() and depth and (depth if shape is None else len(shape)) > 1)


def _pictures(path: pathlib.Path, file: Any, name: str) -> Array:
    """(N, ...) uint8 of a column of pictures, a few rows at a time."""
    found: Array | None = None
    rows = file.metadata.num_rows
    values = sum(one.num_values for _, parts in _parts(file, [name]) for one in parts)
    at, some = 0, max(1, AT_ONCE * rows // max(1, values))
    for batch in file.iter_batches(batch_size=some, columns=[name]):
        part = arrow_array(path, name, batch.column(0))
        if found is None:
            found = np.empty((rows, *part.shape[1:]), np.uint8)
        if part.shape[1:] != found.shape[1:] or at + len(part) > rows:
            raise DataError(f"{path}: column {name!r} has lists of several lengths, and needs one")
        found[at : at + len(part)] = part
        at += len(part)
    if found is None or at < rows:
        raise DataError(f"{path}: column {name!r} has {at} rows, and the file says that it has {rows}; write it again")
    return found


def _leaves(kind: Any) -> int:
    """Columns that a Parquet file has for a field of this type."""
    import pyarrow.types as types

    inner = [kind.field(k).type for k in range(kind.num_fields)] if types.is_nested(kind) else []
    return sum(map(_leaves, inner)) if inner else 1


def _parts(file: Any, names: Sequence[str] | None) -> list[tuple[Any, list[Any]]]:
    """These fields, or all, each with what the metadata say of its columns in each group of rows."""
    groups = [file.metadata.row_group(k) for k in range(file.metadata.num_row_groups)]
    found, first = [], 0
    for field in file.schema_arrow:
        count = _leaves(field.type)
        if names is None or field.name in names:
            found.append((field, [group.column(first + k) for group in groups for k in range(count)]))
        first += count
    if any(group.num_columns != first for group in groups):
        raise ValueError("its columns are not those of its schema")
    return found


def check_unpacked(path: pathlib.Path, file: Any, names: Sequence[str] | None = None) -> None:
    """Refuse a Parquet file whose columns unpack to too much; repeated values take next to no room in it.

    Args:
        path: of the file.
        file: a `ParquetFile`.
        names: of the fields that are read; None: all.

    Raises:
        DataError: by the rules of `core.base.unpacking.Unpacked`. Pictures in files of their own kind, within a
        structure,
            are as large as their bytes here, and checked again when they are decoded.
    """
    unpacked = Unpacked(path, path.stat().st_size, DataError)
    rows = file.metadata.num_rows
    numbers = 4 * rows
    for field, parts in _parts(file, names):
        held = sum(one.total_uncompressed_size for one in parts)
        values = sum(one.num_values for one in parts)
        if field.name.startswith(FURTHER):
            unpacked.add_pictures(field.name, picture_shape(path, field) or (0,), held)
        elif _pictured(field, picture_shape(path, field)):
            unpacked.add_pictures(field.name, (values // max(1, rows),), max(values, held))
        elif _is_struct(field.type) and all(one.physical_type == "BYTE_ARRAY" for one in parts):
            unpacked.add_pictures(field.name, (0,), max(values, held))
        else:
            numbers += max(held, sum(one.num_values * WIDTHS.get(one.physical_type, 1) for one in parts))
    unpacked.add_numbers(numbers)


WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
"""Bytes of a value in memory by its type in a Parquet file; at least 1 of others."""


def parquet() -> Any:
    """The module `pyarrow.parquet`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "a Parquet file or a LeRobot dataset") from error
    return pyarrow.parquet


class parquet_errors:
    """Where Arrow can't read a file, a DataError that names it."""

    def __init__(self, path: object) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise a DataError in place of what Arrow raises: a ValueError, an OSError or a NotImplementedError."""
        arrow = error is not None and type(error).__module__.startswith("pyarrow")
        if arrow or isinstance(error, OSError | ValueError | NotImplementedError):
            reason = (str(error).splitlines() or [""])[0]
            raise DataError(f"{self.path}: is a damaged Parquet file, or no Parquet file ({reason})") from error


def _is_struct(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_struct(kind))


def arrow_array(path: object, name: str, values: Any, texts: bool = False, gaps: bool = False) -> Array:
    """(N, ...) of an Arrow array: numbers, truth values, lists of one length, times as seconds.

    Args:
        path: of the file, for messages.
        name: of the column, for messages.
        values: the array.
        texts: whether it may hold texts, which become numbers that stand for the different ones.
        gaps: whether numbers may be missing, which become NaN.

    Raises:
        DataError: there are other gaps, lists of different lengths, or values of another type.
    """
    import pyarrow as pa
    import pyarrow.types as types

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    number = types.is_integer(values.type) or types.is_floating(values.type)
    if values.null_count and not (gaps and number):
        raise DataError(f"{path}: column {name!r} has {values.null_count} rows without a value; {RULES_HELP}")
    kind = values.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = np.unique(np.asarray(values.value_lengths()))
        if len(lengths) > 1:
            raise DataError(
                f"{path}: column {name!r} has lists of {lengths[0]} to {lengths[-1]} entries, and needs one length"
            )
        flat = arrow_array(path, name, values.flatten())
        return flat.reshape(len(values), len(flat) // max(1, len(values)), *flat.shape[1:])
    if types.is_timestamp(kind):
        per_second = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        return np.asarray(values.cast(pa.int64())) / float(per_second)
    if texts and (types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)):
        coded = values if types.is_dictionary(kind) else values.dictionary_encode()
        return np.asarray(coded.indices, np.float64)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    raise DataError(f"{path}: column {name!r} is of type {kind}, which is not numbers")
