"""What float32, in which all is learned, loses of 64-bit numbers whose offset is large beside what they say.

float32 has 24 bits: its numbers lie 0.5 apart at a northing of 5,400,000 m, and 128 apart at the seconds since 1970. A
column of centimetres or seconds at such an offset becomes a staircase. Nothing is subtracted here: whether an offset
means something is for the user to say, and the deployed policy needs the same one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import printable
from surefoot.core.base.spec import VECTOR, named

Array = np.ndarray[Any, Any]

SPREAD = 0.01
"""Rounding error, as a share of a column's standard deviation, above which it is always reported: that of a sensor of 8
bits over a range of four standard deviations (4 / 256 / 2 = 0.008)."""
FINEST = 1e-4
"""Share below which it never is: a network that reads a column divided by its standard deviation does not learn from
differences so fine, whatever the offset."""
LEAST_SPREAD = 1e-3
"""Added to the deviation before both shares are taken, as `core.nn.normalizer.Normalizer.fit` adds it: a column
that hardly moves, such as a joint that rests, is not divided by less either."""
CONSTANT = 2.0**-44
"""Standard deviation, as a share of the magnitude, up to which a column is constant: 256 spacings of float64, left by
rounding in the arithmetic that made it."""
HALF_SPACING = 2.0**-24
"""Largest rounding error of float32, as a share of the number."""
MOST = 8
"""Columns of an array that are named; how many more there are is counted."""
LONGEST = 24
"""Letters of a column's name that are shown."""
WIDE = ("float64", "int32", "int64", "uint32", "uint64")
"""Types of which float32 may lose something."""
WIDEST = 200
"""Letters of a warning, which stands as a key in files (`core.base.schema.Table`)."""
FIRST, ROWS = 256, 8
"""Steps of an environment that are looked at, once, and how many of its rows at most."""


def beginning(what: str) -> str:
    """How the warnings of an array, or of one of its columns, begin."""
    return f"values of {what}"


@dataclasses.dataclass(frozen=True)
class Loss:
    """What float32 loses of one column."""

    column: int
    rows: int  # that change
    had: int  # different values in 64 bits
    left: int  # in float32
    error: float  # the largest, in the column's units
    spread: float  # the column's standard deviation
    offset: float  # a round number near its mean, without which float32 would hold it

    def words(self, what: str, where: str = "") -> str:
        """The warning; `what` names the column, and is cut in its middle so that `WIDEST` letters hold all of it.

        Args:
            what: a column's key, number and name.
            where: where to subtract, behind a space.
        """
        stated = (
            f" rounded to float32 (subtract {self.offset:,.12g}{where}): {self.left:,} of {self.had:,} different ones "
            f"are left, errors up to {self.error:.2g} ({self.error / self.spread:.2g} standard deviations)"
        )
        room = WIDEST - len(beginning("") + stated)
        return beginning(what if len(what) <= room else f"{what[:8]}...{what[-(room - 11) :]}") + stated


def losses(array: Array) -> list[Loss]:
    """Columns that float32 does not hold well, of (N, d) or (N,) numbers of any type.

    A column is reported where its largest rounding error is above `SPREAD` of its standard deviation, or where numbers
    of float32 lie further apart at its usual magnitude than it usually moves from one row to the next (and the error is
    above `FINEST`). Constant columns are none, nor those that float32 holds exactly: whole numbers up to 2^24, and what
    was float32 already, which does not say any more what it has lost.
    """
    if len(array) == 0 or array.dtype.kind not in "iuf" or np.can_cast(array.dtype, np.float32, "safe"):
        return []
    columns = array.reshape(len(array), -1)
    low, high = (end.astype(np.float64) for end in (columns.min(0), columns.max(0)))
    errors = np.maximum(np.abs(low), np.abs(high)) * HALF_SPACING  # at most
    suspects = np.flatnonzero((low < high) & (errors > FINEST * LEAST_SPREAD))
    found = (_loss(int(column), columns[:, column].astype(np.float64), errors[column]) for column in suspects)
    return [one for one in found if one is not None]


def _loss(column: int, values: Array, bound: float) -> Loss | None:
    """What is lost of (N,) float64 values whose rounding errors are at most `bound`; None where it does not matter."""
    spread = float(values.std())
    scale = spread + LEAST_SPREAD
    if bound <= FINEST * scale or spread <= CONSTANT * bound / HALF_SPACING:
        return None
    single = values.astype(np.float32).astype(np.float64)
    errors = np.abs(single - values)
    error = float(errors.max())
    if error <= FINEST * scale:
        return None
    if error <= SPREAD * scale:
        moves = np.abs(np.diff(values))
        spacing = np.spacing(np.float32(np.median(np.abs(values))))
        if spacing <= np.median(moves[moves > 0]):
            return None
    return Loss(
        column,
        rows=int(np.count_nonzero(errors)),
        had=len(np.unique(values)),
        left=len(np.unique(single)),
        error=error,
        spread=spread,
        offset=_offset(values),
    )


def _offset(values: Array) -> float:
    """A number near the mean with few digits: the mean, rounded to a power of ten from 10 to 100 times the range."""
    low, high = float(values.min()), float(values.max())
    unit = 10.0 ** math.ceil(math.log10(10 * (high - low)))
    return float(round(float(values.mean()) / unit) * unit)


def warnings_of(
    arrays: Mapping[str, Array], names: Mapping[str, Sequence[str] | None] | None = None, where: str = ""
) -> dict[str, int]:
    """Warning -> rows, as `Dataset.warnings` holds them, of what float32 loses of these arrays.

    A column of next observations is not named beside the same column of the observations.

    Args:
        arrays: as they came, by their keys: those of 64 bits are looked at.
        names: key -> names of its columns, where there are some.
        where: where the offset is to be subtracted, behind a space.
    """
    found: dict[str, int] = {}
    for key, array in arrays.items():
        known = {one.column for one in losses(arrays[before])} if (before := _before(key)) in arrays else set()
        lost = [one for one in losses(array) if one.column not in known]
        named = (names or {}).get(key)
        for one in lost[:MOST]:
            which = f"{key}[{one.column}]" if array.ndim > 1 else key
            if named is not None and one.column < len(named):
                name = printable(named[one.column])
                which += f" ({name if len(name) <= LONGEST else name[: LONGEST - 3] + '...'})"
            found[one.words(which, where)] = one.rows
        if others := lost[MOST:]:
            what = f"{beginning(f'{len(others)} further columns of {key}')} rounded to float32, as those that are named"
            found[what] = max(one.rows for one in others)
    return found


def _before(key: str) -> str:
    """The key of the observations that a key of next observations follows; of another key nothing."""
    return key.removeprefix("next_") if key.startswith("next_") else ""


def _usable(rows: Array) -> Array:
    """Those of (N, ...) rows whose numbers are all finite in float32."""
    return rows[(np.abs(rows) <= np.finfo(np.float32).max).reshape(len(rows), -1).all(1)]


class FirstSteps:
    """The first steps of an environment, kept as they came until it is known what float32 loses of them."""

    def __init__(self, name: str) -> None:
        """Wait for the steps of the environment that sentences call `name`."""
        self.name = name
        self._kept: dict[str, list[Array]] | None = {}  # None: enough has been seen
        self._steps = 0
        self._found: list[str] = []

    def take(self, observations: Any, rewards: Any) -> None:
        """Keep what one step of N rows gave: (N, ...) observations, or a mapping of them by key, and (N,) rewards.

        Arrays or tensors; those that float32 holds exactly by their type are not kept.
        """
        if self.over:
            return
        assert self._kept is not None
        given = named(VECTOR, observations) | {"rewards": rewards}
        for key, values in given.items():
            if str(values.dtype).removeprefix("torch.") in WIDE:
                rows = values[:ROWS]
                self._kept.setdefault(key, []).append(np.array(rows.cpu() if hasattr(rows, "cpu") else rows))
        self._steps += 1
        if self._steps == FIRST or not self._kept:
            # One row after the other: what a column moves by is its change in time.
            whole = {key: np.stack(parts, 1) for key, parts in self._kept.items()}
            flat = {key: _usable(one.reshape(-1, *one.shape[2:])) for key, one in whole.items()}
            lost = warnings_of(flat, where=" in the environment")
            self._found = [f"{self.name}, its first {self._steps} steps: {what}" for what in lost]
            self._kept = None

    @property
    def over(self) -> bool:
        """Whether enough has been seen."""
        return self._kept is None

    def notes(self) -> list[str]:
        """Sentences, once they are known, and only once."""
        found, self._found = self._found, []
        return found
