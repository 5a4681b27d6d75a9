"""Images and several named arrays in files: `observations/KEY` and `next_observations/KEY`, one row a step each.

A lone uint8 image may also stand under `observations` and `next_observations` themselves; it gets the key `image`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.spec import IMAGE
from surefoot.data.checks import exact_matrix, flags
from surefoot.data.dataset import NAMED, Dataset

Array = np.ndarray[Any, Any]

NAMES = ("observations", "next_observations")
NEXT_KNOWN = "next_known"
PREFIXES = tuple(f"{name}/" for name in NAMES)


def take_named(arrays: Mapping[str, Array], name: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays without the named ones, which come apart: vectors as (N, d) numbers, images as they are.

    Where there are some, `observations` and `next_observations` are (N, 0) in what is left.

    Raises:
        DataError: a key is missing beside another, differs from it in shape, or is neither a vector nor an image; the
            arrays do not say where episodes are cut off.
    """
    left = dict(arrays)
    for which in NAMES:
        if which in left and left[which].ndim > 2 and left[which].dtype == np.uint8:
            left[f"{which}/{IMAGE}"] = left.pop(which)
    found = {key: left.pop(key) for key in list(left) if key.startswith(PREFIXES)}
    if not found:
        return left, {}
    if both := [which for which in NAMES if which in left]:
        raise DataError(f"{name}: holds {both[0]!r} beside {next(iter(found))!r}; keep one of them")
    if "timeouts" not in left:
        raise DataError(f"{name}: the key 'timeouts' is missing, and images do not show where an episode is cut off")
    for key, value in found.items():
        if value.dtype != np.uint8:
            found[key] = exact_matrix(name, key, value)
        elif value.ndim == 0:
            raise DataError(f"{name}: {key!r} is a single number; it must have a row for each step")
    rows = len(next(iter(found.values())))
    if not any(key.startswith(f"{NAMES[1]}/") for key in found):
        found |= _following(left, found, name)
    return left | {which: np.zeros((rows, 0), np.float32) for which in NAMES}, found


def _following(left: dict[str, Array], found: Mapping[str, Array], name: str) -> dict[str, Array]:
    """What followed each row, of arrays that hold it nowhere: the next row's inside an episode, and the row's own else.

    `left` gets the mark `next_known` of the rows whose next observation is known, or masked by a termination.
    """
    terminals = flags(name, "terminals", left["terminals"]) if "terminals" in left else None
    ends = flags(name, "timeouts", left["timeouts"])
    rows = len(ends)
    if any(len(one) != rows for one in (*found.values(), *(() if terminals is None else (terminals,)))):
        return {}  # refused where all columns are compared
    known = ~ends
    if terminals is not None:
        ends, known = ends | terminals, known | terminals
    ends[-1:] = True
    known[-1:] = False if terminals is None else terminals[-1:]
    if NEXT_KNOWN in left:
        known &= flags(name, NEXT_KNOWN, left[NEXT_KNOWN])
    left[NEXT_KNOWN] = known
    after = np.arange(rows) + ~ends
    return {f"next_{key}": value[after] for key, value in found.items()}


def file_columns(columns: Mapping[str, Array], dataset: Dataset, extras: str) -> dict[str, Array]:
    """Columns as a file holds them: `columns` and, behind `extras`, the extras; named arrays under their own names."""
    found = dict(columns)
    named = {key: value for key, value in dataset.extras.items() if key.startswith(PREFIXES)}
    if named:
        for which in NAMES:
            del found[which]
    return found | named | {extras + key: value for key, value in dataset.extras.items() if key not in named}


def need_one_vector(dataset: Dataset, what: str) -> None:
    """Refuse what is done with one vector only, on images or named arrays.

    Raises:
        DataError: names the arrays.
    """
    keys = [key.removeprefix(NAMED) for key in dataset.extras if key.startswith(NAMED)]
    if keys:
        raise DataError(f"{dataset.name}: {what} takes one observation vector, and this has {', '.join(keys)}")
