"""CSV files of logs as columns, checked."""

from __future__ import annotations

import csv
import io
import math
import pathlib

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import read_regular

MOST_BYTES = 256 << 20
"""Of one file, which is read whole."""


def text_of(path: pathlib.Path) -> str:
    """A file's text.

    Raises:
        DataError: it is too large, or no text.
    """
    content = read_regular(path, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; export the columns that are needed alone")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no text ({error.reason} at byte {error.start})") from error


def columns(text: str, path: pathlib.Path, first_line: int = 1) -> dict[str, list[float]]:
    """The columns of a CSV text that hold numbers, with nan where a cell is empty; others are left out.

    Args:
        text: heading first.
        path: of the file, for errors.
        first_line: number of the heading's line in the file.

    Raises:
        DataError: no heading, a name twice, or a line of another length.
    """
    lines = csv.reader(io.StringIO(text))
    heading = next(lines, None)
    if not heading:
        raise DataError(f"{path}: is empty")
    if len(set(heading)) < len(heading):
        twice = next(name for name in heading if heading.count(name) > 1)
        raise DataError(f"{path}: has the column {twice!r} twice")
    cells: list[list[str]] = [[] for _ in heading]
    for number, line in enumerate(lines, first_line + 1):
        if not line:
            continue
        if len(line) != len(heading):
            raise DataError(f"{path}, line {number}: has {len(line)} cells, and the heading {len(heading)}")
        for cell, column in zip(line, cells, strict=True):
            column.append(cell)
    found = {}
    for name, column in zip(heading, cells, strict=True):
        try:
            found[name] = [float(cell) if cell.strip() else math.nan for cell in column]
        except ValueError:
            continue
    return found


def pairs(steps: list[float], values: list[float]) -> list[tuple[int, float]]:
    """(step, value) of the lines that have both."""
    return [(int(a), b) for a, b in zip(steps, values, strict=True) if not math.isnan(a) and not math.isnan(b)]
