"""What a mapping does about gaps: numbers that are filled in, rows that are left out, status that ends episodes.

    interpolate: [temperature]            # NaN and empty cells between two known numbers of an episode
    hold: [setpoint]                      # the last known number before
    fill_at_most: 5                       # rows of a gap that the two fill; longer ones stay
    drop: [q, dq]                         # rows in which one of these still lacks a number; an episode ends before them
    end_where: {column: status, in: [fault, stopped], as: truncation}

In this order. A file's arrays carry how often each rule was applied, and `datasets info` says it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from surefoot.core.base.errors import DataError, nearest, printable
from surefoot.data.formats.chosen import split
from surefoot.data.formats.columns import LATER, Table

Array = np.ndarray[Any, Any]

RULES = ("drop", "interpolate", "hold")
"""Keys of a mapping that name columns with gaps."""
COUNT = "count/"
"""What names of a file's arrays begin with that say how often a rule was applied."""
REPAIRS = "repairs"
"""Attribute of a dataset: a JSON object of these counts."""
TERMINATION, TRUNCATION = "termination", "truncation"


class Rules(Protocol):
    """What is needed of a mapping (`formats.mapping.LogMapping`), which has a tuple for each of `RULES` besides."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def observations(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def actions(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def next_observations(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def extras(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def reward(self) -> str | None: ...  # noqa: D102
    @property
    def cost(self) -> str | None: ...  # noqa: D102
    @property
    def termination(self) -> str | None: ...  # noqa: D102
    @property
    def truncation(self) -> str | None: ...  # noqa: D102
    @property
    def episode(self) -> str | None: ...  # noqa: D102
    @property
    def time(self) -> str | None: ...  # noqa: D102
    @property
    def gap(self) -> float | None: ...  # noqa: D102
    @property
    def fill_at_most(self) -> int | None: ...  # noqa: D102
    @property
    def end_where(self) -> Mapping[str, Any] | None: ...  # noqa: D102


@dataclasses.dataclass(frozen=True)
class Repaired:
    """A log's columns after its rules: rows that are kept, where episodes end between them, and counts."""

    held: dict[str, Array]
    terminated: Array  # (N,) bool: a status ended the task at this row
    cut: Array  # (N,) bool: a status, or rows that are left out behind it, cut the episode off here
    counts: dict[str, int]
    rows: Array  # (N,) their numbers in the file


def gaps(mapping: Rules) -> frozenset[str]:
    """Columns of a mapping in which a rule of it expects gaps.

    Raises:
        DataError: a rule names a column that the mapping does not read, or one that says where episodes end.
    """
    return frozenset(name for rule in RULES for name in _named(mapping, rule))


def repaired(mapping: Rules, table: Table, held: Mapping[str, Array]) -> Repaired:
    """The columns of a file with a mapping's rules applied.

    Args:
        mapping: with the rules.
        table: of the file.
        held: column -> (N, ...) as read.

    Raises:
        DataError: a rule names what it can't be applied to, or no row is left.
    """
    found = dict(held)
    rows = len(next(iter(found.values())))
    counts: dict[str, int] = {}
    ended, after = _by_status(mapping, table, rows)
    segments = _segments(mapping, found, ended | after, after)
    clock = _clock(mapping, found, rows)
    for rule in ("interpolate", "hold"):
        for name in _named(mapping, rule):
            for key in (name, LATER + name):
                if key in found:
                    _need_numbers(table, rule, key, found[key])
                    found[key], filled = _filled(found[key], segments, clock, rule, mapping.fill_at_most)
                    if key == name or filled:
                        word = "interpolated" if rule == "interpolate" else "held"
                        counts[f"numbers of {name} {word}"] = counts.get(f"numbers of {name} {word}", 0) + filled
    lost = np.zeros(rows, bool)
    for name in _named(mapping, "drop"):
        for key in (name, LATER + name):
            if key in found:
                _need_numbers(table, "drop", key, found[key])
                bad = ~np.isfinite(found[key]).reshape(rows, -1).all(1) & ~after
                counts[f"rows without {name} left out"] = int(bad.sum())
                lost |= bad
    if mapping.end_where is not None:
        column, kind = mapping.end_where["column"], mapping.end_where.get("as", TRUNCATION)
        counts[f"episodes ended by {column} ({kind})"] = int(ended.sum())
        counts[f"rows after such an end left out ({column})"] = int(after.sum())
    keep = ~(lost | after)
    if not keep.any():
        raise DataError(f"{table.path}: no row is left after 'drop' and 'end_where'; correct the mapping")
    broken = np.zeros(rows, bool)  # an end is due at the last kept row before rows that are left out
    kept = np.flatnonzero(keep)
    broken[kept[:-1]] = np.diff(kept) > 1
    ended &= keep
    terminal = mapping.end_where is not None and mapping.end_where.get("as") == TERMINATION
    terminated = ended if terminal else np.zeros(rows, bool)
    return Repaired(
        {name: array[keep] for name, array in found.items()},
        terminated[keep],
        (broken | ended)[keep] & ~terminated[keep],
        {what: count for what, count in counts.items() if count},
        kept,
    )


def _named(mapping: Rules, rule: str) -> list[str]:
    """The columns that a rule names, with `*` for several of those that the mapping reads."""
    single = (mapping.reward, mapping.cost)
    numbers = (*mapping.observations, *mapping.actions, *mapping.next_observations, *mapping.extras.values(), *single)
    known = list(dict.fromkeys(split(name)[0] for name in numbers if name is not None))
    found: list[str] = []
    for pattern in getattr(mapping, rule):
        plain = split(pattern)[0]
        matched = [plain] if plain in known else fnmatch.filter(known, plain)
        if not matched:
            raise DataError(
                f"{mapping.path}: {rule!r} names {pattern!r}, and must name columns of observations, actions, "
                f"next_observations, reward, cost or extras: {nearest(plain, known)}"
            )
        found += [name for name in matched if name not in found]
    return found


def _by_status(mapping: Rules, table: Table, rows: int) -> tuple[Array, Array]:
    """(N,) bool: the first row of each run of rows with a status that ends an episode, and the others of the run."""
    if mapping.end_where is None:
        return np.zeros(rows, bool), np.zeros(rows, bool)
    name, wanted = mapping.end_where["column"], mapping.end_where["in"]
    inside = _among(table.words(name), wanted)
    if len(inside) != rows:
        raise DataError(f"{table.path}: 'end_where' names {name!r} of {len(inside)} rows, and the log has {rows}")
    first = inside & ~np.append(False, inside[:-1])
    return first, inside & ~first


def _among(values: Array, wanted: Sequence[Any]) -> Array:
    """(N,) bool: which of (N,) texts or numbers are among the wanted ones."""
    if values.dtype.kind in "biuf":
        numbers = [float(one) for one in wanted if isinstance(one, int | float)]
        return np.isin(values.astype(np.float64), numbers)
    return np.isin(np.char.strip(values.astype(str)), [str(one) for one in wanted])


def _segments(mapping: Rules, held: Mapping[str, Array], apart: Array, after: Array) -> Array:
    """(N,) numbers of pieces of episodes, which no rule fills across.

    Args:
        mapping: which says where episodes end.
        held: the columns.
        apart: (N,) bool: rows of a status that ends an episode, the first of which is its last row.
        after: (N,) bool: the others of them.
    """
    new = np.zeros(len(apart), bool)
    new[1:] = (after[1:] != after[:-1]) | (apart[:-1] & ~apart[1:])
    for name in (mapping.termination, mapping.truncation):
        if name is not None:
            ends = np.asarray(held[split(name)[0]].reshape(len(apart), -1).any(axis=1))
            new[1:] |= ends[:-1]
    if mapping.episode is not None:
        ids = held[split(mapping.episode)[0]].reshape(len(apart), -1)
        new[1:] |= (ids[1:] != ids[:-1]).any(1)
    if mapping.time is not None:
        steps = np.diff(_clock(mapping, held, len(apart)))
        new[1:] |= (steps < 0) | (steps > (np.inf if mapping.gap is None else mapping.gap))
    return np.cumsum(new)


def _clock(mapping: Rules, held: Mapping[str, Array], rows: int) -> Array:
    """(N,) seconds, or the numbers of rows where there is no clock."""
    if mapping.time is None or (seconds := held[split(mapping.time)[0]]).size != rows:
        return np.arange(rows, dtype=np.float64)
    return np.asarray(seconds, np.float64).reshape(rows)


def _need_numbers(table: Table, rule: str, name: str, array: Array) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{table.path}: {rule!r} names {name!r}, which is {array.dtype} and not numbers")


def _filled(values: Array, segments: Array, clock: Array, rule: str, most: int | None) -> tuple[Array, int]:
    """Values with gaps filled inside their segments, and how many numbers were."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values, 0
    flat = values.astype(np.float64).reshape(len(values), -1)
    count = 0
    for column in flat.T:
        missing = ~np.isfinite(column)
        for piece in np.unique(segments[missing]):
            rows = np.flatnonzero(segments == piece)
            bad = missing[rows]
            known = np.flatnonzero(~bad)
            if not len(known):
                continue
            gap = _fillable(bad, most)
            before = np.maximum.accumulate(np.where(bad, -1, np.arange(len(rows))))
            if rule == "hold":
                gap &= before >= 0
                column[rows[gap]] = column[rows[before[gap]]]
            else:
                gap &= (before >= 0) & (np.arange(len(rows)) < known[-1])
                column[rows[gap]] = np.interp(clock[rows[gap]], clock[rows[known]], column[rows[known]])
            count += int(gap.sum())
    return flat.reshape(values.shape), count


def _fillable(bad: Array, most: int | None) -> Array:
    """(n,) bool: rows of gaps that are no longer than `most`."""
    if most is None:
        return bad.copy()
    starts = np.flatnonzero(bad & ~np.append(False, bad[:-1]))
    stops = np.flatnonzero(bad & ~np.append(bad[1:], False)) + 1
    found = np.zeros(len(bad), bool)
    for start, stop in zip(starts, stops, strict=True):
        found[start:stop] = stop - start <= most
    return found


def summed(parts: Iterable[dict[str, Array]]) -> dict[str, int]:
    """The counts of several files, which are taken out of them."""
    found: dict[str, int] = {}
    for part in parts:
        for key in [key for key in part if key.startswith(COUNT)]:
            what = key.removeprefix(COUNT)
            found[what] = found.get(what, 0) + int(part.pop(key).sum())
    return found


def applied(attributes: Mapping[str, Any]) -> dict[str, int]:
    """How often each rule was applied, by what a dataset's attributes say; empty where they say nothing."""
    try:
        found = json.loads(str(attributes.get(REPAIRS)))
    except (ValueError, RecursionError):  # any file may hold an attribute of this name
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {printable(what): count for what, count in items if isinstance(count, int)}
