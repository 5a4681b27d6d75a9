"""Names with `*` in a mapping: which columns of a table they stand for."""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
from collections.abc import Iterable
from typing import Any

from surefoot.core.base.errors import DataError, nearest
from surefoot.data.formats.chosen import split
from surefoot.data.formats.columns import Table
from surefoot.data.formats.mapping import LogMapping

LISTS = ("observations", "actions", "next_observations")
"""Keys of a mapping that name several columns."""


def starred(mapping: LogMapping) -> bool:
    """Whether names with `*` are among its observations and actions."""
    return any("*" in split(name)[0] for key in LISTS for name in getattr(mapping, key))


def expanded(mapping: LogMapping, table: Table) -> LogMapping:
    """The mapping with the columns of the table in place of names with `*`, in the table's order.

    Raises:
        DataError: no column has such a name.
    """

    def names(patterns: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for pattern in patterns:
            plain = split(pattern)[0]
            if plain in table.names or "*" not in plain:
                found.append(pattern)
                continue
            matched = [name + pattern[len(plain) :] for name in table.names if fnmatch.fnmatchcase(name, plain)]
            if not matched:
                raise DataError(f"{table.path}: no column is like {pattern!r}: {nearest(plain, list(table.names))}")
            found += matched
        return tuple(found)

    chosen: dict[str, Any] = {key: names(getattr(mapping, key)) for key in LISTS}
    return dataclasses.replace(mapping, **chosen)


def require_same(written: LogMapping, chosen: LogMapping, table: Table, first: pathlib.Path) -> None:
    """Refuse a file in which names with `*` stand for other columns than in the first one, whatever their order.

    Args:
        written: the mapping with its names with `*`.
        chosen: the same, `expanded` by the first file.
        table: of the file.
        first: path of the first file.

    Raises:
        DataError: names both files, and the columns that one of them has and the other lacks.
    """
    own = expanded(written, table)
    for key in LISTS:
        here, there = set(getattr(own, key)), set(getattr(chosen, key))
        if here != there:
            also = [f"{name!r} too" for name in sorted(here - there)] + [
                f"no {name!r}" for name in sorted(there - here)
            ]
            raise DataError(
                f"{table.path}: the names with `*` in {key!r} stand for other columns than in {first}: here for "
                f"{', '.join(also)}. Name those that all files have, one by one, or map the files by two mappings"
            )
