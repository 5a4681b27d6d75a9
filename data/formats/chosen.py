"""Which columns of a table the names in a mapping stand for: `name`, `name[2]`, `name[0:3]`, or `*` for several."""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import DataError, nearest
from surefoot.data.formats.columns import Table

if TYPE_CHECKING:
    from surefoot.data.formats.mapping import LogMapping

Array = np.ndarray[Any, Any]

LISTS = ("observations", "actions", "next_observations")
"""Keys of a mapping that name several columns."""
_PLACE = re.compile(r"(.+?)\[(-?\d+)?(:)?(-?\d+)?\]")


def split(name: str) -> tuple[str, int | slice | None]:
    """A column's name and the place in it: None, a number, or a slice.

    >>> split("q[2]"), split("q[0:3]"), split("/joints.position")
    (('q', 2), ('q', slice(0, 3, None)), ('/joints.position', None))
    """
    found = _PLACE.fullmatch(name)
    if found is None or (found[2] is None and found[3] is None):
        return name, None
    if found[3] is None:
        return found[1], int(found[2])
    return found[1], slice(*(None if one is None else int(one) for one in (found[2], found[4])))


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


def picked(array: Array, name: str, path: pathlib.Path) -> Array:
    """(N, ...) what a name stands for of its column (N, ...): all of it, or the place in it.

    Raises:
        DataError: the column does not have the place.
    """
    plain, place = split(name)
    if place is None:
        return array
    if array.ndim < 2 or not _inside(place, array.shape[1]):
        raise DataError(f"{path}: {name!r} is beyond column {plain!r} of shape {array.shape}")
    return array[:, place]


def names_in(array: Array, name: str) -> list[str]:
    """A name for each number that a name stands for of its column (N,) or (N, k): `q`, or `q[0]`, `q[1]`, ..."""
    plain, place = split(name)
    if array.ndim == 1 or (place is None and array.shape[1] == 1):
        return [plain]
    every = [f"{plain}[{k}]" for k in range(array.shape[1])]
    return [every[place]] if isinstance(place, int) else every[slice(None) if place is None else place]


def _inside(place: int | slice, width: int) -> bool:
    """Whether a column of this width has all that a place names."""
    if isinstance(place, int):
        return -width <= place < width
    ends = (place.start or 0, width if place.stop is None else place.stop)
    first, beyond = (end + width if end < 0 else end for end in ends)
    return 0 <= first < beyond <= width
