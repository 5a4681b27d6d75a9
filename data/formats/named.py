"""Images and several named arrays in files: `observations/KEY` and `next_observations/KEY`, one row a step each.

Of images, `next_observations/KEY` holds numbers where each image is written once (`data.pictures`), as surefoot does:
k >= 0 is the image of row k, -1 - k that of row k of `further_observations/KEY`. Files with an image in each row are
read too. A lone uint8 image may also stand under `observations` and `next_observations` themselves; it gets the key
`image`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.spec import IMAGE
from surefoot.core.base.unpacking import is_picture
from surefoot.data.checks import exact_matrix, flags
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.pictures import FURTHER, Pictures, column_of, read_back, written

Array = np.ndarray[Any, Any]

NAMES = ("observations", "next_observations")
NEXT_KNOWN = "next_known"
STATE = "state"
"""Key of the vector that stands beside cameras."""
PREFIXES = (*(f"{name}/" for name in NAMES), FURTHER)


def take_named(arrays: Mapping[str, Array], name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays without the named ones, which come apart: vectors as (N, d) numbers, images as arrays or `Pictures`.

    Where there are some, `observations` and `next_observations` are (N, 0) in what is left.

    Raises:
        DataError: a key is missing beside another, differs from it in shape, or is neither a vector nor an image; the
            arrays do not say where episodes are cut off; numbers of images do not fit them.
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
        raise DataError(
            f"{name}: the key 'timeouts' is missing, and images do not show where an episode is cut off; where a file "
            "is an episode, as ALOHA's are, `surefoot datasets draft FILE ... -o log.yaml` writes a mapping that says "
            "so (docs/own_data.md)"
        )
    for key, value in found.items():
        if value.ndim == 0:
            raise DataError(f"{name}: {key!r} is a single number; it must have a row for each step")
    found = read_back(name, found)
    found = {key: value if value.dtype == np.uint8 else exact_matrix(name, key, value) for key, value in found.items()}
    rows = len(next(iter(found.values())))
    if not any(key.startswith(f"{NAMES[1]}/") for key in found):
        found = _followed(left, found, name)
    return left | {which: np.zeros((rows, 0), np.float32) for which in NAMES}, found


def _followed(left: dict[str, Array], found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """With what followed each row, of arrays that hold it nowhere: the next row's inside an episode, else its own.

    `left` gets the mark `next_known` of the rows whose next observation is known, or masked by a termination.
    """
    terminals = flags(name, "terminals", left["terminals"]) if "terminals" in left else None
    ends = flags(name, "timeouts", left["timeouts"])
    rows = len(ends)
    if any(len(one) != rows for one in (*found.values(), *(() if terminals is None else (terminals,)))):
        return dict(found)  # refused where all columns are compared
    known = ~ends
    if terminals is not None:
        ends, known = ends | terminals, known | terminals
    ends[-1:] = True
    known[-1:] = False if terminals is None else terminals[-1:]
    if NEXT_KNOWN in left:
        known &= flags(name, NEXT_KNOWN, left[NEXT_KNOWN])
    left[NEXT_KNOWN] = known
    return followed(found, ends)


def followed(columns: Mapping[str, Any], ends: Array) -> dict[str, Any]:
    """With `next_KEY` of those columns that have none: the next row's, and at an end the row's own.

    Args:
        columns: arrays and pictures of N rows.
        ends: (N,) bool: the row is the last of its episode.
    """
    found, after = dict(columns), np.arange(len(ends)) + ~ends
    for key, value in columns.items():
        if f"next_{key}" in columns or key.startswith(f"{NAMES[1]}/"):
            continue
        if is_picture(value.shape, value.dtype):
            found[key] = column_of(value) if isinstance(value, np.ndarray) else value
            value = found[key]
        found[f"next_{key}"] = value.select_rows(after) if isinstance(value, Pictures) else value[after]
    return found


def beside_state(
    arrays: Mapping[str, Array], frames: Mapping[str, Array], name: str
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Flat arrays without the vector of observations, and named arrays: cameras, and that vector as `STATE`.

    Args:
        arrays: under D4RL's names, with `terminals` and `timeouts`; perhaps without observations.
        frames: camera -> (N, ...) pictures that steps begin with. What followed is the next step's, and of an
            episode's last step it is not known.
        name: of the data, for errors.
    """
    left, ends = dict(arrays), arrays["terminals"] | arrays["timeouts"]
    named: dict[str, Any] = {f"{NAMES[0]}/{key}": value for key, value in frames.items()}
    named |= {f"{which}/{STATE}": left.pop(which) for which in NAMES if which in left}
    known = ~arrays["timeouts"]
    left[NEXT_KNOWN] = known & flags(name, NEXT_KNOWN, left[NEXT_KNOWN]) if NEXT_KNOWN in left else known
    return left | {which: np.zeros((len(ends), 0), np.float32) for which in NAMES}, followed(named, ends)


def file_columns(columns: Mapping[str, Array], dataset: Dataset, extras: str) -> dict[str, Array]:
    """Columns as a file holds them: `columns` and, behind `extras`, the extras; named arrays under their own names.

    Each image is there once.
    """
    found = dict(columns)
    named = {key: value for key, value in dataset.extras.items() if key.startswith(PREFIXES)}
    if named:
        for which in NAMES:
            del found[which]
    others = {extras + key: value for key, value in dataset.extras.items() if key not in named}
    return found | written_once(named) | others


def written_once(named: Mapping[str, Any]) -> dict[str, Array]:
    """Named arrays as files hold them; each image once."""
    found = dict(named)
    for key in (key for key in named if key.startswith(NAMED) and isinstance(named[key], Pictures)):
        own, numbers, further = written(named[key], named.get(f"next_{key}"))
        found[key] = own[:]
        if numbers is not None:
            found |= {f"next_{key}": numbers, **({FURTHER + key.removeprefix(NAMED): further} if len(further) else {})}
    return found


def need_one_vector(dataset: Dataset, what: str) -> None:
    """Refuse what is done with one vector only, on images or named arrays.

    Raises:
        DataError: names the arrays.
    """
    keys = [key.removeprefix(NAMED) for key in dataset.extras if key.startswith(NAMED)]
    if keys:
        raise DataError(f"{dataset.name}: {what} takes one observation vector, and this has {', '.join(keys)}")
