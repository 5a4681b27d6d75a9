"""Turns the flat arrays of a D4RL-like source into a `Dataset`, in either of two views.

`corrected` keeps every row. The next observation comes from the source's own `next_observations`, else from
the next row inside an episode and from `infos/final_observations` at its end. Where nothing holds it, a
truncated last row is marked `next_known = False`, and a terminated one keeps its own observation there, which the
termination masks.

`d4rl` gives the rows of D4RL's `qlearning_dataset`, faults included (docs/data.md): the
next observation is always the next row's, time-out rows and the last row of the file are dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.checkpoint import check_format
from surefoot.core.base.errors import ConfigError, DataError, nearest, printable
from surefoot.core.base.precision import warnings_of
from surefoot.core.base.schema import shown
from surefoot.data.catalogue import gymnasium_id, has_unit_actions
from surefoot.data.checks import (
    BOTH_ENDS,
    LIKE_CHOICES,
    ONE_STEP,
    OUTSIDE,
    TORN,
    UNMARKED,
    check_extra,
    flags,
    look_like_choices,
    matrix,
    require_keys,
    same_length,
    validate,
    vector,
)
from surefoot.data.choices import CHOICES, as_choices
from surefoot.data.corrupt import moved
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.pictures import Pictures

Array = np.ndarray[Any, Any]

VIEWS = ("corrected", "d4rl")
REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations", "costs", "margins", "valid", "next_known")
FINAL_OBSERVATIONS, EPISODE_ENDS = "infos/final_observations", "infos/episode_ends"
KEYS = [*REQUIRED, *OPTIONAL, FINAL_OBSERVATIONS, EPISODE_ENDS]
ROUNDED = ("observations", "actions", "rewards", "next_observations", "costs", "margins")
"""Arrays that become float32."""
VECTORS = (NAMED, f"next_{NAMED}")
"""What keys of extras begin with that become float32 too, unless they are images."""
FLAGS = ("terminals", "timeouts", "valid", "next_known")
"""Those that become truth values, of a byte each."""
OWN_MARK, LAYOUT_VERSION = "surefoot_version", "1"
"""Attribute of datasets that surefoot wrote -> the version of their layout."""
MOST_STEPS = 2**31 - 1
JUMP = 1e-6  # a next observation this far from the next row's observation ends an episode (IQL's splitter)
ROUNDING = 1e-5
"""Share of a number by which a next observation may differ from the next row's without counting as another."""


@dataclasses.dataclass(frozen=True)
class Source:
    """What is known about the arrays beside their values."""

    name: str
    env_id: str | None = None
    max_episode_steps: int | None = None  # needed where the arrays have no `timeouts`
    unit_actions: bool = False  # the environment's action bounds are [-1, 1]
    sha256: str | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def with_attributes(self, found: Mapping[str, Any]) -> Source:
        """Completed from a file's attributes `env_id` and `max_episode_steps`; facts given already win.

        Raises:
            DataError: the layout is of another version of surefoot, or the step limit is no number of steps.
        """
        if OWN_MARK in found:
            check_format(self.name, f"{OWN_MARK} {found[OWN_MARK]}", f"{OWN_MARK} {LAYOUT_VERSION}", DataError)
        env_id = self.env_id
        if env_id is None and isinstance(found.get("env_id"), str):
            env_id = gymnasium_id(printable(found["env_id"]))
        limit = self.max_episode_steps
        if limit is None and "max_episode_steps" in found:
            limit = self._steps(found["max_episode_steps"])
        return dataclasses.replace(
            self,
            env_id=env_id,
            max_episode_steps=limit,
            unit_actions=self.unit_actions or (env_id is not None and has_unit_actions(env_id)),
            attributes={**{printable(key): _plain(value) for key, value in found.items()}, **self.attributes},
        )

    def _steps(self, value: Any) -> int | None:
        """A step limit from an attribute; None where it says that there is none: words, or a number below 1."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        except OverflowError:  # a whole number beyond all floats
            number = math.inf
        if not -math.inf < number <= MOST_STEPS or number != int(number):
            raise DataError(
                f"{self.name}: the attribute 'max_episode_steps' is {shown(value)}, must be a whole number up to "
                f"{MOST_STEPS}; correct it, or give max_episode_steps"
            )
        return int(number) if number >= 1 else None


def _plain(value: Any) -> Any:
    """An attribute that JSON and a terminal can hold: numbers that are not finite or beyond int64 become text."""
    if isinstance(value, str):
        return printable(value)
    fits = isinstance(value, bool) or (abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value))
    return value if fits else shown(value)


def dataset_from_arrays(
    arrays: Mapping[str, Array],
    source: Source,
    view: str = "corrected",
    extras: Mapping[str, Any] | None = None,
) -> Dataset:
    """A validated `Dataset` of flat arrays under D4RL's names (KEYS).

    Raises:
        ConfigError: the view is unknown.
        DataError: a key is missing, or the arrays are inconsistent or not finite.
    """
    if view not in VIEWS:
        raise ConfigError(f"view={view!r} is unknown: {nearest(view, VIEWS)}")
    limit: object = source.max_episode_steps
    numeric = isinstance(limit, int | float | np.number) and not isinstance(limit, bool)
    if limit is not None and not (numeric and 1 <= limit <= MOST_STEPS and limit % 1 == 0):  # type: ignore[operator]
        raise ConfigError(f"max_episode_steps is {limit!r}, must be a whole number from 1 to {MOST_STEPS}")
    extras = dict(extras or {})
    named = any(key.startswith(NAMED) for key in extras)
    if named and view != "corrected":
        raise ConfigError(f"view={view!r} is of one observation vector: use view='corrected' for images")
    choices = None
    if "actions" in arrays:
        actions, choices = as_choices(source.name, "actions", arrays["actions"], source.attributes.get(CHOICES))
        arrays = {**arrays, "actions": actions}
    columns, both = _checked_columns(arrays, source.name, named)
    if "margins" in columns:
        if "margins" in extras:
            raise DataError(f"{source.name}: holds both 'margins' and 'extras/margins'; keep one of them")
        extras["margins"] = columns["margins"]
    for key, value in extras.items():
        if value.ndim == 0 or len(value) != len(columns["rewards"]):
            raise DataError(f"{source.name}: 'extras/{key}' has shape {value.shape}; it must have one row per step")
        check_extra(source.name, f"extras/{key}", value)
    vectors = {key: value for key, value in extras.items() if key.startswith(VECTORS) and value.dtype != np.uint8}
    extras |= {key: matrix(source.name, key, value) for key, value in vectors.items()}
    wide = {**arrays, **vectors}
    ends = _episode_ends(columns, source.max_episode_steps)
    if view == "corrected":
        rows: Array | slice = slice(None)  # a view: nothing is copied
        next_observations, valid, known = _true_next_observations(arrays, columns, ends, source.name)
    else:
        kept = _rows_kept_by_d4rl(columns, source)
        next_observations, valid = columns["observations"][kept + 1], np.ones(len(kept), bool)
        known = np.ones(len(kept), bool)
        rows = kept
    episodes = (np.cumsum(ends) - ends)[rows]
    changes = np.diff(episodes) != 0
    # A terminal is an end in every splitter, so each kept one is the last row of its episode.
    terminations = columns["terminals"][rows]
    dataset = Dataset(
        observations=columns["observations"][rows],
        actions=columns["actions"][rows],
        rewards=columns["rewards"][rows],
        next_observations=next_observations,
        terminations=terminations,
        truncations=np.append(changes, True) & ~terminations,
        episode_ids=np.concatenate([[0], np.cumsum(changes)]).astype(np.int64),
        valid=valid,
        costs=columns["costs"][rows] if "costs" in columns else None,
        env_id=source.env_id,
        name=source.name,
        sha256=source.sha256,
        attributes={**source.attributes, **({} if choices is None else {CHOICES: choices})},
        extras={
            key: value if isinstance(value, Pictures) else np.ascontiguousarray(value[rows])  # of pictures: all rows
            for key, value in extras.items()
        },
        next_known=None if known.all() else known,
    )
    validate(dataset)
    marked = {"timeouts", "next_observations"} & set(columns) or source.max_episode_steps is not None
    torn = _torn(dataset) if view == "corrected" else 0
    odd = _oddities(dataset, both, torn, source.unit_actions, bool(marked))
    rounded = {key: value for key, value in wide.items() if key in ROUNDED or key.startswith(VECTORS)}
    names = {key: dataset.observation_names for key in rounded if key.removeprefix("next_").startswith("observations")}
    return dataset.replace(warnings=odd | warnings_of(rounded, names | {"actions": dataset.action_names}))


def _checked_columns(arrays: Mapping[str, Array], name: str, named: bool) -> tuple[dict[str, Array], int]:
    """The per-step columns in their final types, and how many rows were terminal and timeout at once."""
    require_keys(name, arrays, REQUIRED, arrays)
    rows = {key: arrays[key] for key in (*REQUIRED, *FLAGS) if key in arrays and arrays[key].ndim}
    same_length(name, rows)  # before a copy in another type takes memory beside a column that is refused
    columns: dict[str, Array] = {}
    for key in (*REQUIRED, *OPTIONAL):
        if named and key in ("observations", "next_observations"):
            columns[key] = arrays[key]  # without columns
        elif key in arrays:
            kind = matrix if key in ("observations", "actions", "next_observations") else vector
            columns[key] = (flags if key in FLAGS else kind)(name, key, arrays[key])
    same_length(name, columns)
    shape = columns["observations"].shape
    if "next_observations" in columns and columns["next_observations"].shape != shape:
        raise DataError(
            f"{name}: 'next_observations' has shape {columns['next_observations'].shape} but 'observations' "
            f"has {shape}; "
            "they must agree"
        )
    both = 0
    if "timeouts" in columns:
        both = int(np.count_nonzero(columns["terminals"] & columns["timeouts"]))
    return columns, both


def _episode_ends(columns: Mapping[str, Array], max_episode_steps: int | None) -> Array:
    """(N,) bool: the row is the last of its episode; the last row of the source always is."""
    ends = columns["terminals"].copy()
    if "timeouts" in columns:
        ends |= columns["timeouts"]
    elif "next_observations" in columns:
        gap = columns["observations"][1:].astype(np.float64) - columns["next_observations"][:-1]
        ends[:-1] |= np.linalg.norm(gap, axis=1) > JUMP
    ends[-1] = True
    if "timeouts" not in columns and max_episode_steps is not None:
        ends |= counted_out(ends, max_episode_steps)
    return ends


def counted_out(ends: Array, limit: int) -> Array:
    """(N,) bool: so many steps were taken since the episode began, or since it was cut off so; (N,) known ends."""
    starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
    step = np.arange(len(ends)) - np.repeat(starts, np.diff(np.append(starts, len(ends))))
    return step % limit == limit - 1


def flag_columns(dataset: Dataset) -> dict[str, Array]:
    """The two columns by which files mark rows, (N,) bool; none where every row is a whole transition.

    `valid` is 0 in rows that are no transition, which all versions of surefoot understand; `next_known` is 0 in those
    of them that lack nothing but what followed, and are read as valid.
    """
    if dataset.transitions.all():
        return {}
    return {"valid": dataset.transitions, "next_known": dataset.transitions | ~dataset.valid}


def _true_next_observations(
    arrays: Mapping[str, Array], columns: Mapping[str, Array], ends: Array, name: str
) -> tuple[Array, Array, Array]:
    """The observation that followed each row, whether the row may be learned from, and whether the first is known."""
    known = columns.get("next_known", np.ones(len(ends), bool))
    valid = columns.get("valid", np.ones(len(ends), bool)) | ~known
    if "next_observations" in columns:
        return columns["next_observations"], valid, known
    observations = columns["observations"]
    next_observations = np.concatenate([observations[1:], observations[-1:]])
    last = np.flatnonzero(ends)
    if FINAL_OBSERVATIONS in arrays:
        next_observations[last] = _final_observations(arrays, observations.shape[1], last, name)
        return next_observations, valid, known
    next_observations[last] = observations[last]
    return next_observations, valid, known & (~ends | columns["terminals"])


def _final_observations(arrays: Mapping[str, Array], size: int, last: Array, name: str) -> Array:
    """(E, size): the observation after each episode's last step, which is in row `last[k]`."""
    final = matrix(name, FINAL_OBSERVATIONS, arrays[FINAL_OBSERVATIONS])
    if final.shape != (len(last), size):
        raise DataError(
            f"{name}: {FINAL_OBSERVATIONS!r} has shape {final.shape}; {len(last)} episodes of observations "
            "of size "
            f"{size} need {(len(last), size)}"
        )
    if EPISODE_ENDS in arrays and not np.array_equal(arrays[EPISODE_ENDS], last):
        raise DataError(
            f"{name}: {EPISODE_ENDS!r} names other rows than 'terminals' and 'timeouts' do; one of them is wrong"
        )
    return final


def _rows_kept_by_d4rl(columns: Mapping[str, Array], source: Source) -> Array:
    """Rows that `qlearning_dataset` keeps: all but the last of the file and those at a time-out."""
    if "timeouts" in columns:
        dropped = columns["timeouts"].copy()
    elif source.max_episode_steps is not None:
        dropped = _counted_time_outs(columns["terminals"], source.max_episode_steps)
    else:
        raise DataError(
            f"{source.name}: has no 'timeouts', so its d4rl view needs the environment's step limit: give "
            "max_episode_steps"
        )
    rows = np.flatnonzero(~dropped[:-1])
    if len(rows) == 0:
        raise DataError(f"{source.name}: its d4rl view is empty; use view='corrected'")
    return rows


def _counted_time_outs(terminals: Array, limit: int) -> Array:
    """(N,) bool: rows where D4RL's own step counter reaches the limit.

    The counter starts at 0, and again at 0 after a time-out, but at 1 after a terminal: D4RL's fault.
    """
    dropped = np.zeros(len(terminals), bool)
    start, counter = 0, 0
    for stop in [*np.flatnonzero(terminals), len(terminals) - 1]:
        first = start + max(limit - 1 - counter, 0)
        dropped[first : stop + 1 : limit] = True
        counter = 0 if dropped[stop] else 1
        start = stop + 1
    return dropped


def _torn(dataset: Dataset) -> int:
    """Rows inside an episode, to be sampled, whose next observation is another than the next row's observation.

    Data whose observations or next observations were corrupted on purpose have none.
    """
    if moved(dataset, "observations") or moved(dataset, "dynamics"):
        return 0
    pairs = [(dataset.observations, dataset.next_observations)]
    for key, array in dataset.extras.items():
        if key.startswith(NAMED) and array.dtype == np.float32:  # comparing images would take too long
            pairs.append((array, dataset.extras[f"next_{key}"]))
    torn = np.zeros(len(dataset) - 1, bool)
    for observations, following in pairs:
        rows = np.flatnonzero((following[:-1] != observations[1:]).any(axis=1))
        close = np.isclose(following[rows], observations[rows + 1], rtol=ROUNDING, atol=JUMP)
        torn[rows] |= ~close.all(axis=1)
    return int(np.count_nonzero(torn & (np.diff(dataset.episode_ids) == 0) & dataset.transitions[:-1]))


def _oddities(dataset: Dataset, both: int, torn: int, unit_actions: bool, marked: bool) -> dict[str, int]:
    """Counted peculiarities that are accepted, those that occur.

    Args:
        dataset: made of the arrays.
        both: rows that were terminal and timeout at once.
        torn: rows inside an episode whose next observation is not the next row's.
        unit_actions: whether the bounds of actions are [-1, 1].
        marked: whether something but terminals says where episodes end.
    """
    found = {
        OUTSIDE: int(np.count_nonzero((np.abs(dataset.actions) > 1).any(axis=1))) if unit_actions else 0,
        ONE_STEP: int(np.count_nonzero(dataset.episode_lengths == 1)),
        BOTH_ENDS: both,
        TORN: torn,
        UNMARKED: 0 if marked else len(dataset),
        LIKE_CHOICES: len(dataset) if look_like_choices(dataset.actions) else 0,
    }
    return {what: count for what, count in found.items() if count}
