"""Checks of arrays and datasets; each refusal names the file, the key and the row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import no_dataset
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.derived import blocks

Array = np.ndarray[Any, Any]

OUTSIDE = "actions outside [-1, 1]"
ONE_STEP = "one-step episodes"
INSIDE = "a termination before the end of the episode that the mapping's column names"
PAUSED = "a step more than ten times as long as the median, within an episode (name a gap, which ends it there)"
BOTH_ENDS = "terminal and timeout together"
UNMARKED = (
    "no sign of time-outs (no 'timeouts', 'next_observations' or step limit): episodes that were cut off are joined"
)
TORN = (
    "next observations that are not the next row's, inside an episode (were episodes joined? mark all ends, by "
    "'terminals' and 'timeouts', or by a mapping's termination, truncation or episode)"
)
LIKE_CHOICES = "actions that look discrete (state how many choices there are, or store them as whole numbers)"
FEW = 32
"""Whole numbers of at least 0 and below this look like those of choices."""


MAPPING = "; names of your own, and logs without rewards, are read by a mapping (docs/own_data.md)"


def require_keys(name: str, arrays: Mapping[str, Array], required: Iterable[str], present: Iterable[str]) -> None:
    """Refuse arrays that lack a key, with the present names that look like it.

    Raises:
        DataError: a required key is missing.
    """
    present = list(present)
    for key in required:
        if key in arrays:
            continue
        unread = [one for one in present if one not in arrays]
        close = difflib.get_close_matches(key, unread, n=3, cutoff=0.6)
        hint = f"; {' or '.join(map(repr, close))} looks like it: rename it" if close else ""
        held = ", ".join(present[:12]) + (", ..." if len(present) > 12 else "") if present else "nothing"
        raise DataError(f"{name}: the key {key!r} is missing{hint} (the file holds: {held}){MAPPING}")


def matrix(name: str, key: str, array: Array) -> Array:
    """(N, d) float32 of finite numbers, from numbers of any type; (N,) becomes (N, 1).

    Raises:
        DataError: not numbers, not one row per step, no columns, or a value that is not finite.
    """
    return _finite_float32(name, key, _rows(name, key, array))


def vector(name: str, key: str, array: Array) -> Array:
    """(N,) float32 of finite numbers; (N, 1) is accepted.

    Raises:
        DataError: not numbers, another shape, or a value that is not finite.
    """
    return _finite_float32(name, key, _flat(name, key, array))


def exact_matrix(name: str, key: str, array: Array) -> Array:
    """(N, d) numbers that `matrix` takes, in their own type: what float32 loses of them is counted where it is made.

    Raises:
        DataError: as `matrix`.
    """
    _finite_float32(name, key, array := _rows(name, key, array))
    return array


def exact_vector(name: str, key: str, array: Array) -> Array:
    """(N,) numbers that `vector` takes, in their own type, as `exact_matrix`.

    Raises:
        DataError: as `vector`.
    """
    _finite_float32(name, key, array := _flat(name, key, array))
    return array


def flags(name: str, key: str, array: Array) -> Array:
    """(N,) bool from booleans or from numbers that are all 0 or 1; (N, 1) is accepted.

    Raises:
        DataError: another shape or another value.
    """
    array = _flat(name, key, array)
    if array.dtype == bool:
        # Bytes other than 0 and 1 can stand in a damaged file's booleans.
        return np.ascontiguousarray(array.view(np.uint8) != 0)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name}: {key!r} has type {array.dtype}; it must be true or false")
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        raise DataError(
            f"{name}: {key!r} holds {array[wrong[0]]} in row {wrong[0]} and {len(wrong)} such values; each "
            "must be 0 or 1"
        )
    return np.ascontiguousarray(array != 0)


def same_length(name: str, arrays: Mapping[str, Array]) -> int:
    """The number of rows N that all arrays share.

    Raises:
        DataError: lengths disagree, or N is 0.
    """
    lengths = {key: len(array) for key, array in arrays.items()}
    first = next(iter(lengths))
    for key, length in lengths.items():
        if length != lengths[first]:
            raise DataError(
                f"{name}: {key!r} has {length} rows but {first!r} has {lengths[first]}; one row per step is "
                "needed in each"
            )
    if lengths[first] == 0:
        raise DataError(f"{name}: is empty: {first!r} has 0 rows")
    return lengths[first]


def concatenated(name: str, key: str, parts: Sequence[Array]) -> Array:
    """The rows of several episodes or files, one after another.

    Raises:
        DataError: rows of one part have another shape than those of the first.
    """
    for number, part in enumerate(parts):
        if part.shape[1:] != parts[0].shape[1:] or part.ndim == 0:
            raise DataError(
                f"{name}: {key!r} has rows of shape {part.shape[1:]} in part {number} (counted from 0) and of "
                f"{parts[0].shape[1:]} in part 0; they must agree"
            )
    return np.concatenate(parts)


def look_like_choices(actions: Array) -> bool:
    """Whether (N, 1) actions are but a few whole numbers from 0 on, as of a Discrete action space."""
    if actions.ndim != 2 or actions.shape[1] != 1:
        return False
    values = np.unique(actions[:, 0])
    return bool(len(values) >= 2 and values[0] == 0 and values[-1] < FEW and (values == np.round(values)).all())


def check_id(env: Any) -> None:
    """Refuse an environment that is given in place of its id; None is none.

    Raises:
        ConfigError: says the id, where the environment tells it.
    """
    if env is None or isinstance(env, str):
        return
    own = getattr(getattr(env, "spec", None), "id", None)
    given = repr(own) if isinstance(own, str) else "such as 'Pendulum-v1', or 'module:Id-v0' of one that you registered"
    raise ConfigError(
        f"an environment is given by its id, {given}, since each seed makes its own; this is an object of type "
        f"{type(env).__name__}"
    )


def refuse_oddities(dataset: Dataset, name: str) -> None:
    """Refuse what is otherwise accepted and counted, as `strict` asks for.

    Args:
        dataset: with its warnings.
        name: what the error calls it.

    Raises:
        DataError: with every one of them.
    """
    if dataset.warnings:
        listed = "; ".join(f"{count:,} {what}" for what, count in dataset.warnings.items())
        raise DataError(f"{name}: refused because strict is set: {listed}")


BOOLS = ("terminations", "truncations", "valid", "next_known")
"""Columns of a dataset that are truth values."""


def validate(dataset: Dataset) -> None:
    """Check every invariant that `Dataset` promises.

    Raises:
        ConfigError: it is no `Dataset`.
        DataError: names the first field and row that break one.
    """
    if not isinstance(dataset, Dataset):
        raise ConfigError(no_dataset(dataset))
    name = dataset.name
    columns: dict[str, Array] = {
        "observations": dataset.observations,
        "actions": dataset.actions,
        "rewards": dataset.rewards,
        "next_observations": dataset.next_observations,
        "terminations": dataset.terminations,
        "truncations": dataset.truncations,
        "episode_ids": dataset.episode_ids,
        "valid": dataset.valid,
    }
    if dataset.costs is not None:
        columns["costs"] = dataset.costs
    if dataset.next_known is not None:
        columns["next_known"] = dataset.next_known
    same_length(name, {**columns, **{f"extras/{key}": value for key, value in dataset.extras.items()}})
    for key, array in columns.items():
        kind = {"episode_ids": "int64"}.get(key, "bool" if key in BOOLS else "float32")
        dimensions = 2 if key in ("observations", "actions", "next_observations") else 1
        if array.dtype != kind or array.ndim != dimensions or not array.flags.c_contiguous:
            raise DataError(
                f"{name}: {key!r} is {array.dtype} of shape {array.shape}; it must be contiguous {kind}, {dimensions}-d"
                " (surefoot.data.from_arrays converts)"
            )
        if kind == "float32":
            check_finite(name, key, array)
    for key, array in dataset.extras.items():
        check_extra(name, f"extras/{key}", array)
        if key.startswith(NAMED):
            _check_named(dataset, key, array)
    if dataset.next_observations.shape != dataset.observations.shape:
        raise DataError(
            f"{name}: 'next_observations' has shape {dataset.next_observations.shape} but 'observations' has "
            f"{dataset.observations.shape}; they must agree"
        )
    _check_episodes(dataset)


def _check_named(dataset: Dataset, key: str, array: Array) -> None:
    """A vector or an image, with a next one of the same kind, and nothing beside such arrays."""
    other = dataset.extras.get(f"next_{key}")
    if other is None or (other.shape, other.dtype) != (array.shape, array.dtype):
        found = "missing" if other is None else f"{other.dtype} of shape {other.shape}"
        raise DataError(
            f"{dataset.name}: {f'next_{key}'!r} is {found}, and {key!r} {array.dtype} of shape {array.shape}; "
            "they must agree"
        )
    try:
        _ = dataset.arrays
    except ConfigError as error:
        raise DataError(f"{dataset.name}: {key!r}: {error}") from error
    if dataset.observation_dim:
        raise DataError(f"{dataset.name}: holds 'observations' beside {key!r}; keep one of them")


def _check_episodes(dataset: Dataset) -> None:
    """Ids 0, 1, 2, ... in order, and an end flag on the last row of each episode and nowhere else."""
    ids, name = dataset.episode_ids, dataset.name
    steps = np.diff(ids)
    if ids[0] != 0 or np.any((steps != 0) & (steps != 1)):
        raise DataError(f"{name}: 'episode_ids' must be 0, ..., 0, 1, ..., 1, 2, ... without gaps")
    both = np.flatnonzero(dataset.terminations & dataset.truncations)
    if len(both):
        raise DataError(
            f"{name}: row {both[0]} is terminated and truncated at once; termination wins: clear the truncation"
        )
    last = np.append(steps != 0, True)
    wrong = np.flatnonzero(last != (dataset.terminations | dataset.truncations))
    if len(wrong):
        what = "ends an episode but has no end flag" if last[wrong[0]] else "has an end flag inside an episode"
        raise DataError(f"{name}: row {wrong[0]} {what} ({len(wrong)} such rows)")


def check_finite(name: str, key: str, array: Array, where: Callable[[int], str] = "row {}".format) -> None:
    """Refuse NaN and infinity.

    Args:
        name: of the dataset or file.
        key: of the array.
        array: (N, ...) numbers.
        where: a row in words, such as the line of a file that it stands in.

    Raises:
        DataError: names the key, the first such row and the count of such values.
    """
    if all(np.isfinite(array[some]).all() for some in blocks(len(array))):
        return
    rows = np.argwhere(~np.isfinite(array))
    bad = array[tuple(rows[0])]
    raise DataError(
        f"{name}: {key!r} holds {bad} in {where(int(rows[0][0]))} and {len(rows)} values in all that are not finite; "
        "repair or remove those episodes"
    )


def check_extra(name: str, key: str, array: Array) -> None:
    """Refuse a further column that holds anything but finite numbers or truth values.

    Raises:
        DataError: names the key and the first such row.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: {key!r} has type {array.dtype}; it must be numbers")
    if array.dtype.kind == "f":
        check_finite(name, key, array)


def _rows(name: str, key: str, array: Array) -> Array:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0:
        hint = ", or, of pictures, hold uint8" if array.ndim > 2 else ""
        raise DataError(f"{name}: {key!r} has shape {array.shape}; it must be (steps, size){hint}")
    return array


def _flat(name: str, key: str, array: Array) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name}: {key!r} has shape {array.shape}; it must be (steps,)")
    return array


def _finite_float32(name: str, key: str, array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: {key!r} has type {array.dtype}; it must be numbers")
    check_finite(name, key, array)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(array, dtype=np.float32)
    check_finite(name, key, single)  # a float64 beyond float32's range
    return single
