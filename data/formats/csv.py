"""CSV: one line per step, for data that come from a spreadsheet or a robot's log.

Columns, found by their names in the first line, in any order:
`observation_0`, `observation_1`, ...; `action_0`, ...; and optionally `reward`, `termination` (0 or 1),
`truncation` (0 or 1), `episode` (a number that changes with each episode), `cost`, `margin`,
`next_observation_0`, .... Without `truncation` and `episode`, an episode ends at a termination, at a jump of
the observations where next observations are given, and at the end of the file. Data without `reward` can be cloned.
Logs with other columns are read by a mapping (`formats.mapping`).
"""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError, nearest
from surefoot.core.base.files import written_aside
from surefoot.data.checks import validate
from surefoot.data.dataset import NO_REWARDS, REWARDS, Dataset
from surefoot.data.formats.columns import DELIMITERS
from surefoot.data.formats.flat import Source, dataset_from_arrays, flag_columns
from surefoot.data.formats.named import need_one_vector

Array = np.ndarray[Any, Any]

GROUPS = {"observation": "observations", "action": "actions", "next_observation": "next_observations"}
SINGLES = {
    "reward": "rewards",
    "termination": "terminals",
    "truncation": "timeouts",
    "cost": "costs",
    "margin": "margins",
    "valid": "valid",
    "next_known": "next_known",
}


def is_csv(path: pathlib.Path, alone: bool = False) -> bool:
    """Whether the first line is text with commas, semicolons or tabs; with `alone` also of a single column."""
    with open(path, "rb") as file:
        first = file.read(1 << 16).split(b"\n", 1)[0]
    try:
        text = first.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    return (alone or any(mark in text for mark in DELIMITERS)) and all(
        char.isprintable() or char in "\t\r" for char in text
    )


def other_encoding(path: pathlib.Path) -> str | None:
    """UTF-16 or, of 8 bits a letter, LATIN1, where the first line would be a CSV file's in that; None: in neither."""
    with open(path, "rb") as file:
        start = file.read(1 << 16)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    first = start.split(b"\n", 1)[0].decode("latin-1")
    text = all(char.isprintable() or char in "\t\r" for char in first)
    return "LATIN1" if text and not first.isascii() and any(mark in first for mark in DELIMITERS) else None


def read(path: pathlib.Path, source: Source, view: str = "corrected") -> Dataset:
    """The dataset in a CSV file.

    Raises:
        DataError: a column is missing or unknown, a cell is not a finite number (row and column are named),
        or the
            episodes are inconsistent.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            line = file.readline()
            delimiter = max(DELIMITERS, key=line.count)
            header = [name.strip().strip('"') for name in line.split(delimiter)]
            _check_header(path, header)
            first = next((row for row in file if row.strip()), None)
            if first is None:
                raise DataError(f"{path}: is empty: no row follows the first line")
            table = np.loadtxt(
                _lines(itertools.chain([first], file)),
                delimiter=delimiter,
                dtype=np.float64,
                comments=None,
                ndmin=2,
            )
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text at byte {error.start}") from error
    except ValueError as error:
        raise DataError(f"{path}: {_told(str(error), header)}") from error
    if table.shape[1] != len(header):
        raise DataError(f"{path}: the first line names {len(header)} columns but the rows have {table.shape[1]}")
    for index, name in enumerate(header):
        bad = np.flatnonzero(~np.isfinite(table[:, index]))
        if len(bad):
            raise DataError(
                f"{path}: {table[bad[0], index]} in row {bad[0]} of column {name!r} ({len(bad)} such cells); "
                "every cell must be a finite number"
            )
    return from_table(path, header, table, source.with_attributes({}), view)


def _told(message: str, header: list[str]) -> str:
    """What numpy says of a table, by the names of its columns."""
    counted = " (rows counted from 0 after the first line)"
    cell = re.fullmatch(r"could not convert string ('.*') to float64 at row (\d+), column (\d+)\.", message, re.DOTALL)
    if cell and int(cell[3]) <= len(header):  # the column is counted from 1
        held = "is empty" if cell[1] == "''" else f"holds {cell[1]}"
        where = f"row {cell[2]} of column {header[int(cell[3]) - 1]!r}"
        return f"{where} {held}; every cell must be a finite number{counted}"
    width = re.match(r"the number of columns changed from (\d+) to (\d+) at row (\d+)", message)
    if width:  # this row is counted from 1 by numpy
        return f"row {int(width[3]) - 1} has {width[2]} cells and those before it {width[1]}{counted}"
    return f"{message}{counted}"


def from_table(path: pathlib.Path, header: list[str], table: Array, source: Source, view: str) -> Dataset:
    """The dataset of an (N, C) table whose columns are named; without rewards, they are 0 and the attributes say so.

    Raises:
        DataError: a column is missing or unknown, or the episodes are inconsistent.
    """
    _check_header(path, header)
    arrays = _arrays(path, header, table)
    if "rewards" not in arrays:
        arrays["rewards"] = np.zeros(len(table))
        source = dataclasses.replace(source, attributes={**source.attributes, REWARDS: NO_REWARDS})
    return dataset_from_arrays(arrays, source, view)


def number(path: pathlib.Path, name: str, column: Array) -> Array:
    """(N,) float64 of a column with one number a row.

    Raises:
        DataError: it has several.
    """
    if column.ndim != 1:
        raise DataError(f"{path}: column {name!r} has lists, and those beside `observation_0` hold one number each")
    return column.astype(np.float64)


def _lines(file: Iterable[str]) -> Iterator[str]:
    """Lines with truth values as numbers, as pandas and others write them."""
    for line in file:
        yield line.replace("True", "1").replace("False", "0").replace("true", "1").replace("false", "0")


def _check_header(path: pathlib.Path, header: list[str]) -> None:
    """Refuse unknown, doubled and missing columns."""
    known = [*SINGLES, "episode", "observation_0", "action_0", "next_observation_0"]
    for name in header:
        match = re.fullmatch(r"(\w+)_(\d+)", name)
        if name not in known and not (match and match[1] in GROUPS):
            raise DataError(
                f"{path}: column {name!r} is unknown: {nearest(name, known)}. A log with columns of its own is read by "
                f"a mapping, which `surefoot datasets draft {path}` begins (docs/own_data.md)"
            )
        if header.count(name) > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")
    for name in ("observation_0", "action_0"):
        if name not in header:
            raise DataError(f"{path}: column {name!r} is missing (the first line names: {', '.join(header[:12])})")


def _arrays(path: pathlib.Path, header: list[str], table: Array) -> dict[str, Array]:
    """The columns as arrays under D4RL's names."""
    arrays = {SINGLES[name]: table[:, index] for index, name in enumerate(header) if name in SINGLES}
    arrays.setdefault("terminals", np.zeros(len(table)))
    for prefix, key in GROUPS.items():
        count = sum(bool(re.fullmatch(rf"{prefix}_\d+", name)) for name in header)
        if not count:
            continue
        wanted = [f"{prefix}_{index}" for index in range(count)]
        for name in wanted:
            if name not in header:
                raise DataError(
                    f"{path}: column {name!r} is missing; the {count} columns {prefix}_... must be numbered from 0"
                )
        arrays[key] = table[:, [header.index(name) for name in wanted]]
    if "episode" in header:
        ids = table[:, header.index("episode")]
        ends = np.append(np.diff(ids) != 0, True) & (arrays["terminals"] == 0)
        given = arrays.get("timeouts", np.zeros(len(ids)))
        arrays["timeouts"] = np.where(ends, 1.0, given)
    return arrays


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset as text; the environment, attributes and extras are not part of this format.

    Raises:
        DataError: the dataset breaks its invariants, or the file can't be written.
    """
    need_one_vector(dataset, "a CSV file")
    validate(dataset)
    blocks = [dataset.observations, dataset.actions, dataset.next_observations]
    names = [f"observation_{i}" for i in range(dataset.observation_dim)]
    names += [f"action_{i}" for i in range(dataset.action_dim)]
    names += [f"next_observation_{i}" for i in range(dataset.observation_dim)]
    if dataset.has_rewards:
        blocks.append(dataset.rewards[:, None])
        names.append("reward")
    if dataset.costs is not None:
        blocks.append(dataset.costs[:, None])
        names.append("cost")
    formats = ["%.9g"] * len(names)  # nine digits bring every float32 back
    marks = {"valid": dataset.transitions, **flag_columns(dataset)}
    whole = [dataset.terminations, dataset.truncations, dataset.episode_ids, *marks.values()]
    names += ["termination", "truncation", "episode", *marks]
    formats += ["%d"] * len(whole)
    table = np.concatenate([*(block.astype(np.float64) for block in blocks), np.stack(whole, 1).astype(np.float64)], 1)
    with written_aside(path, DataError) as aside:
        np.savetxt(aside, table, fmt=formats, delimiter=",", header=",".join(names), comments="")
