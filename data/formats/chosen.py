"""Which numbers of a column the names in a mapping stand for: `name`, `name[2]`, `name[0:3]`."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError

Array = np.ndarray[Any, Any]

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
