"""`Dataset`: whole episodes in memory, with explicit episode ends and nothing merged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base import spec
from surefoot.core.base.errors import DataError, printable
from surefoot.core.base.scaling import RULE
from surefoot.core.base.unpacking import is_picture
from surefoot.data.derived import Derived, computed
from surefoot.data.pictures import Pictures, shared

Array = np.ndarray[Any, Any]
NAMED = f"{spec.VECTOR}/"
"""What names of extras begin with that are parts of an observation."""
REWARDS, NO_REWARDS, NO_TASK = "rewards", "none: the log has none", "none: the data name no task"
"""Attribute that says what rewards are, and what it says of data without any, whose rewards are 0: recorded without, or
of no task yet."""
WITHOUT = (NO_REWARDS, NO_TASK)
"""The two together."""
SCALED_BY = "image_scaling"
"""Attribute of data whose images were scaled: the rule, `core.base.scaling.RULE`."""
RUNS_ON = "runs_on"
"""Attribute, 1, of data whose recordings run on where the task ends: terminations were put into them afterwards, and an
episode begins with the step that followed the one before (`recording_ends`)."""
BEST_RETURN = "best_return"
"""Attribute of data that do not hold all steps of their episodes: the highest return of a whole one, undiscounted."""

ACTION_LOW, ACTION_HIGH = "action_low", "action_high"
"""Attributes that state the actuators' range, in the data's units: a number, or a JSON list of one for each action."""
OBSERVATION_NAMES, ACTION_NAMES = "observation_names", "action_names"
"""Attributes that hold a JSON list of names: of each number of an observation's vector, and of an action."""
LONGEST_NAME = 500


@dataclasses.dataclass(frozen=True)
class Dataset:
    """N transitions in episode order; every array has N rows and is C-contiguous.

    Invariants, checked by `data.checks.validate` when a file is loaded: all finite; the last row of every
    episode has `terminations` or `truncations` set and no other row has; `next_observations[i]` is
    the observation that followed action i, also on the last step of an episode.
    Where a source does not hold the observation after a truncated episode's last step, loaders set
    `next_known[i] = False` there and repeat the row's own observation: the row is learned from by algorithms that read
    no next observation, and by no other.

    Images and several named arrays lie in `extras`, as `observations/KEY` and `next_observations/KEY`: uint8 images
    and float32 vectors. `observations` and `next_observations` are then (N, 0). Images are columns of numbers
    (`data.pictures.Pictures`), which read as arrays do: arrays of images that are given become such columns.
    """

    observations: Array  # (N, observation dim) float32
    actions: Array  # (N, action dim) float32, as stored: not clipped
    rewards: Array  # (N,) float32
    next_observations: Array  # (N, observation dim) float32
    terminations: Array  # (N,) bool: the task itself ended; only this stops bootstrapping
    truncations: Array  # (N,) bool: cut off (time limit, end of recording)
    episode_ids: Array  # (N,) int64, 0, 0, ..., 1, 1, ...: non-decreasing, without gaps
    valid: Array  # (N,) bool: the row may be learned from
    costs: Array | None = None  # (N,) float32, or None where the source has no cost
    env_id: str | None = None  # gymnasium id of the environment that it was recorded in
    name: str = "unnamed"  # what the user called it: a path or a catalogue id
    sha256: str | None = None  # of the source: a file, or a mapping and its logs
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # source, licence, ... as strings/numbers
    warnings: Mapping[str, int] = dataclasses.field(default_factory=dict)  # accepted oddity -> number of rows
    extras: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # further (N, ...) columns, e.g. returns_to_go: arrays, and `Pictures` of images

    next_known: Array | None = None  # (N,) bool: `next_observations` say what followed; None: in every row

    derived: Derived | None = dataclasses.field(default=None, repr=False, compare=False)
    """Where arrays are kept that are made of this dataset's: mapped files; None: memory."""

    as_read: str | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    """The view in which `load` read it from its source and nothing else; None of what was changed or made since."""

    def __post_init__(self) -> None:
        """Hold each image once."""
        object.__setattr__(self, "extras", shared(self.extras, self.derived))

    def __repr__(self) -> str:
        """The name, and the dtype and shape of each column in place of its numbers."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        columns = {**{n: v for n, v in own.items() if isinstance(v, np.ndarray)}, **self.extras}
        shown = [f"{name} {value.dtype}{list(value.shape)}" for name, value in columns.items()]
        return f"Dataset({self.name!r}, env_id={self.env_id!r}, {', '.join(shown)}, warnings={dict(self.warnings)})"

    def __len__(self) -> int:
        """Number of transitions N."""
        return len(self.rewards)

    @property
    def transitions(self) -> Array:
        """(N,) bool: the row may be learned from, and what followed it is known, or does not matter (a terminal)."""
        return self.valid if self.next_known is None else self.valid & self.next_known

    @property
    def arrays(self) -> dict[str, spec.Array]:
        """Key -> shape and dtype of an observation, as `Spec.observations`."""
        named = {key: value for key, value in self.extras.items() if key.startswith(NAMED)}
        if not named:
            return {spec.VECTOR: spec.Array((self.observation_dim,))}
        rule = self.attributes.get(SCALED_BY)
        found = {}
        for key, value in named.items():
            scaled = rule if rule == RULE and is_picture(value.shape, value.dtype) else None
            shape = tuple(int(size) for size in value.shape[1:])
            found[key.removeprefix(NAMED)] = spec.Array(shape, str(value.dtype), scaled=scaled)
        return found

    @property
    def has_rewards(self) -> bool:
        """Whether rewards were recorded or computed; else all are 0, and only cloning can learn from the data."""
        return self.attributes.get(REWARDS) not in WITHOUT

    @property
    def observation_dim(self) -> int:
        """Size of one observation vector; 0 where observations are images or several arrays."""
        return self._width("observations")

    @property
    def action_dim(self) -> int:
        """Size of one action vector."""
        return self._width("actions")

    def _width(self, key: str) -> int:
        """Numbers in a row of a column.

        Raises:
            DataError: it has no rows of numbers.
        """
        array = getattr(self, key)
        if array.ndim != 2:
            raise DataError(f"{self.name}: {key!r} has shape {array.shape}; it must be (steps, size)")
        return int(array.shape[1])

    @property
    def observation_names(self) -> tuple[str, ...] | None:
        """A name for each number of an observation's only vector; None where the source has none."""
        widths = [array.shape[0] for array in self.arrays.values() if not array.image]
        return _names(self.attributes.get(OBSERVATION_NAMES), widths[0]) if len(widths) == 1 else None

    @property
    def action_names(self) -> tuple[str, ...] | None:
        """A name for each number of an action; None where the source has none."""
        return _names(self.attributes.get(ACTION_NAMES), self.action_dim)

    @property
    def choices(self) -> int | None:
        """How many discrete actions there are, whose one-hot rows `actions` holds; None: actions are continuous."""
        stated = str(self.attributes.get("choices"))
        return self.action_dim if stated == str(self.action_dim) else None

    @property
    def action_range(self) -> tuple[Array, Array] | None:
        """(A,) float64 lowest and highest action that the source states, as Minari's space does; None: it states none.

        Raises:
            DataError: one of the two is missing, no number or list of A finite numbers, or not below the other.
        """
        if self.choices is not None or (ACTION_LOW not in self.attributes and ACTION_HIGH not in self.attributes):
            return None
        low, high = (self._bound(key) for key in (ACTION_LOW, ACTION_HIGH))
        if not (low < high).all():
            i = int((low >= high).argmax())
            raise DataError(f"{self.name}: action_low {low[i]:g} of action {i} is not below action_high {high[i]:g}")
        return low, high

    def _bound(self, key: str) -> Array:
        """(A,) one of the two attributes."""
        stated = self.attributes.get(key)
        try:
            found = np.asarray(json.loads(stated) if isinstance(stated, str) else stated, np.float64)
        except (ValueError, TypeError, RecursionError, OverflowError):
            found = np.full(0, np.nan)
        if found.shape not in ((), (1,), (self.action_dim,)) or not np.isfinite(found).all():
            raise DataError(
                f"{self.name}: the attribute {key!r} is {printable(str(stated))[:LONGEST_NAME]!r}; it must be a finite "
                f"number, or a list of {self.action_dim}, one for each action; {ACTION_LOW} and {ACTION_HIGH} go "
                "together"
            )
        return np.broadcast_to(found, (self.action_dim,)).copy()

    @property
    def episode_starts(self) -> Array:
        """(E + 1,) int64: first row of each episode, and N at the end."""
        changes = np.flatnonzero(self.episode_ids[1:] != self.episode_ids[:-1]) + 1
        return np.concatenate([[0], changes, [len(self)]]).astype(np.int64)

    @property
    def episode_returns(self) -> Array:
        """(E,) float64: undiscounted sum of rewards of each episode."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts[:-1])

    @property
    def episode_lengths(self) -> Array:
        """(E,) int64: steps in each episode."""
        return np.diff(self.episode_starts)

    @property
    def episode_costs(self) -> Array | None:
        """(E,) float64: sum of costs of each episode, or None where there is no cost."""
        if self.costs is None:
            return None
        return np.add.reduceat(self.costs.astype(np.float64), self.episode_starts[:-1])

    def replace(self, **changes: Any) -> Dataset:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def select_episodes(self, episodes: Array) -> Dataset:
        """The dataset of the episodes with these ids (strictly increasing), renumbered from 0.

        Raises:
            DataError: no episode is left.
        """
        if len(episodes) == 0:
            raise DataError(f"{self.name}: no episode is left after the selection; keep at least one")
        return self.select_rows(np.flatnonzero(np.isin(self.episode_ids, episodes)))

    def select_rows(self, rows: Array) -> Dataset:
        """The dataset of these rows (strictly increasing), episodes renumbered; flags of ends stay as they are."""
        columns: dict[str, Any] = {
            field.name: self._taken(value, rows)
            for field in dataclasses.fields(self)
            if field.name != "episode_ids" and isinstance(value := getattr(self, field.name), np.ndarray)
        }
        changes = np.diff(self.episode_ids[rows]) != 0
        columns["episode_ids"] = np.concatenate([np.zeros(min(1, len(rows)), np.int64), np.cumsum(changes)])
        extras = {key: self._taken(value, rows) for key, value in self.extras.items()}
        return dataclasses.replace(self, **columns, extras=extras)

    def _taken(self, values: Any, rows: Array) -> Any:
        """The rows of one array, or of one column of pictures, of which none is copied."""
        if isinstance(values, Pictures):
            return values.select_rows(rows)
        shape = (len(rows), *values.shape[1:])
        return computed(self.derived, ["rows"], [values, rows], shape, values.dtype, lambda some: values[rows[some]])


def _names(text: Any, count: int) -> tuple[str, ...] | None:
    """The names in an attribute; None where there are not so many, or it is something else: any file may hold it."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) != count:
        return None
    if not all(isinstance(one, str) and len(one) <= LONGEST_NAME for one in found):
        return None
    return tuple(map(printable, found))


def recording_ends(dataset: Dataset) -> Array:
    """(N,) bool: the row is the last of its recording, that is of an episode that no other continues.

    An episode that terminates is continued where the next one begins with the observation that it led to.
    """
    ends = dataset.terminations | dataset.truncations
    follows = (dataset.next_observations[:-1] == dataset.observations[1:]).all(axis=1)
    ends[:-1] &= ~(dataset.terminations[:-1] & follows)
    return ends
