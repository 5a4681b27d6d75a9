"""`Spec`: what a control problem is to an agent: named arrays to observe, and actions with their bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.scaling import RULE
from surefoot.core.base.schema import Flag, Many, Number, Record, Table, Text, check

VECTOR = "observations"
"""Key of the observation that is one vector of numbers: the plain, fast case."""
IMAGE = "image"
"""Key of the observation that is one image."""
MASK = "action_mask"
"""Key of the observation that says which choices are allowed: (A,) 1 or 0, beside others; it is never normalised."""
_SIZE = Number(1, 1 << 20, whole=True)
FIRST, LAST = "first", "last"
"""Where the channels of an image's frame lie: (C, H, W) or (H, W, C)."""
BYTES = (0.0, 255.0)
"""Range of an image in files that state none, as all did before ranges were written."""
PIXELS = 8
"""Least size of two dimensions of an image of real numbers: smaller arrays are matrices."""
ARRAY = Record(
    {"shape": Many(_SIZE, 1, 4), "dtype": Text(among=("float32", "uint8"))},
    {"channels": Text(among=(FIRST, LAST)), "range": Many(Number(), 0, 2), "scaled": Text(among=(RULE,))},
)
"""What `arrays_to_json` gives of one array."""
TEAM = Record({"names": Many(Text(), 1, 1 << 16), "state_dim": Number(0, 1 << 20, whole=True)})
"""What `Team.to_json` gives."""
PROBLEM = Record(
    {
        "action_dim": Number(0, 1 << 20, whole=True),
        "action_low": Many(Number()),
        "action_high": Many(Number()),
    },
    {
        "observation_dim": _SIZE,
        "observations": Table(ARRAY),
        "discrete": Flag(),
        "environment": Text(),
        "team": TEAM,
    },
)
"""What `Spec.to_json` gives."""
DTYPES = ("float32", "uint8")
"""Dtypes that observations may have: vectors have the first, images either."""


@dataclasses.dataclass(frozen=True)
class Array:
    """One named part of an observation: a float32 vector, or an image of uint8 or float32.

    An image is (H, W), (H, W, C) or (C, H, W); stacked frames are (T, H, W) or (T, H, W, C), or lie in the channels.
    Which of three sizes counts channels is stated by `channels`, or read from the shape: where two neighboring sizes
    are equal and the third is another, the third does; else the smaller of first and last, and the last where those
    are equal. Of four sizes the first counts frames, and the rest is read as three.

    `low` and `high` are what black and white are in an image: networks see (value - low) / (high - low) - 0.5.
    Environments state them by their spaces. Unstated, as of a dataset, float32 images lie in [0, 1], and uint8
    images in [0, 255], except that an image of zeros and ones alone is one of planes (a board, a mask) in [0, 1].
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    channels: str | None = dataclasses.field(default=None, compare=False)  # first or last; None: by the shape
    low: float | None = dataclasses.field(default=None, compare=False)  # of an image; None with `high`: not stated
    high: float | None = dataclasses.field(default=None, compare=False)
    scaled: str | None = dataclasses.field(default=None, compare=False)
    """Rule by which a uint8 image was scaled to this shape (`core.base.scaling`), and by which a policy scales images
    of another height and width; None: it takes no others."""

    def __post_init__(self) -> None:
        """Refuse other dtypes, sizes below 1, shapes of neither kind, and channels or a range that can't be."""
        shape = tuple(self.shape)
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"an observation's dtype is {self.dtype!r}, must be float32 (a vector or an image) or uint8 (an image)"
            )
        if not all(isinstance(size, int) and size >= 1 for size in shape):
            raise ConfigError(f"an observation's shape is {list(shape)}, must be whole numbers of at least 1")
        pixels = sum(size >= PIXELS for size in shape) >= 2 or self.dtype == "uint8"
        if not (2 <= len(shape) <= 4 and pixels if len(shape) > 1 else self.dtype == "float32"):
            raise ConfigError(
                f"an observation of dtype {self.dtype} has shape {list(shape)}: a float32 vector has one size, a "
                f"uint8 image two to four, a float32 image too, two of them {PIXELS} or more"
            )
        object.__setattr__(self, "shape", shape)
        if self.channels not in (None, FIRST, LAST):
            raise ConfigError(f"channels is {self.channels!r}, must be {FIRST}, {LAST} or None (by the shape)")
        if self.channels is not None and len(shape) < 3:
            raise ConfigError(f"an observation of shape {list(shape)} has no channels that could be {self.channels}")
        low, high = self.low, self.high
        if low is None and high is None:
            return
        if not self.image:
            raise ConfigError("low and high are the black and white of images, and a vector has none: leave them out")
        if low is None or high is None or not -math.inf < low < high < math.inf:
            raise ConfigError(f"the range of an image is {low} to {high}: give low < high, both finite")
        object.__setattr__(self, "low", float(low))
        object.__setattr__(self, "high", float(high))

    @property
    def image(self) -> bool:
        """Whether it is an image."""
        return len(self.shape) > 1

    @property
    def range(self) -> tuple[float, float] | None:
        """Black and white of an image, where they are reported; those of float32 images always are."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        return (0.0, 1.0) if self.dtype == "float32" else None

    @property
    def image_size(self) -> tuple[int, int, int]:
        """(C, H, W) as networks read it, C over all stacked frames."""
        shape = self.shape
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        frames, three = (shape[0], shape[1:]) if len(shape) == 4 else (1, shape)
        channels, height, width = (three[-1], *three[:-1]) if self.channels_last else three
        return frames * channels, height, width

    @property
    def channels_last(self) -> bool:
        """Whether the channels of an image's frame are its last dimension."""
        if len(self.shape) < 3:
            return False
        if self.channels is not None:
            return self.channels == LAST
        first, middle, last = self.shape[-3:]
        if (first == middle) != (middle == last):
            return first == middle
        return first >= last

    def differs_in_size(self, other: Array) -> bool:
        """Whether both are uint8 images that differ in height or width and in nothing else."""
        shape, dtypes = other.shape, {self.dtype, other.dtype}
        if not self.image or len(shape) != len(self.shape) or shape == self.shape or dtypes != {"uint8"}:
            return False
        height = len(shape) - (3 if self.channels_last else 2)
        return all(a == b for place, (a, b) in enumerate(zip(self.shape, shape)) if place not in (height, height + 1))

    def scales(self, other: Array) -> bool:
        """Whether it takes images of another height and width, which it scales by its rule to its own."""
        return self.scaled is not None and self.differs_in_size(other)


@dataclasses.dataclass(frozen=True)
class Team:
    """Agents that act in one environment together, each a row: the rows of a team follow one another."""

    names: tuple[str, ...]
    """Of the A agents, in the order of their rows."""
    state_dim: int = 0
    """Numbers at the end of each row's vector that are the team's state: only what trains may read them."""

    @property
    def agents(self) -> int:
        """A."""
        return len(self.names)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"names": list(self.names), "state_dim": self.state_dim}


class DatasetLike(Protocol):
    """What an agent needs to know of a dataset to be built."""

    @property
    def arrays(self) -> Mapping[str, Array]: ...  # noqa: D102
    @property
    def observation_dim(self) -> int: ...  # noqa: D102
    @property
    def action_dim(self) -> int: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, init=False)
class Spec:
    """Observations, actions and the actions' bounds of a control problem."""

    observations: Mapping[str, Array] = dataclasses.field(hash=False)
    """Key -> shape and dtype. One vector has the key `observations`, one image `image`, a Dict of them its own."""
    action_dim: int
    action_low: tuple[float, ...]  # environment units, one per action dimension
    action_high: tuple[float, ...]
    discrete: bool = False  # actions are choices 0 to action_dim - 1, one-hot rows inside; bounds are then 0 and 1
    environment: str | None = None  # id of the environment that poses the problem, where it is known
    range_assumed: bool = dataclasses.field(default=False, compare=False, repr=False)
    """Whether no one stated the actions' bounds: `of` took [-1, 1]."""
    team: Team | None = None
    """Of a problem whose rows are agents of teams."""

    def __init__(
        self,
        observations: int | Mapping[str, Array],
        action_dim: int,
        action_low: tuple[float, ...],
        action_high: tuple[float, ...],
        discrete: bool = False,
        environment: str | None = None,
        range_assumed: bool = False,
        team: Team | None = None,
    ) -> None:
        """Take the sizes and bounds; a number of `observations` is the width of one vector.

        A problem without actions (action_dim 0, no bounds) is one of prediction.

        Raises:
            ConfigError: sizes below 1, bounds that are not finite, not ordered, or not one for each action dimension; a
                key that is no name.
        """
        if isinstance(observations, Mapping):
            arrays = dict(observations)
        else:
            if observations < 1:
                raise ConfigError(f"observation_dim is {observations}: observations need at least one number")
            arrays = {VECTOR: Array((observations,))}
        bounds = (tuple(action_low), tuple(action_high))
        found = (arrays, action_dim, *bounds, discrete, environment, range_assumed, team)
        for field, value in zip(dataclasses.fields(self), found, strict=True):
            object.__setattr__(self, field.name, value)
        self._check()

    def _check(self) -> None:
        low, high = self.action_low, self.action_high
        if not self.observations:
            raise ConfigError("a problem needs at least one observation")
        for key in self.observations:
            if not key.isidentifier() or key in {"actions", "noise"}:
                raise ConfigError(
                    f"{key!r} can't be the key of an observation: it needs letters, digits and underscores, and "
                    "'actions' and 'noise' are taken; rename it in the environment's Dict"
                )
        if self.observations.get(VECTOR, None) is not None and (len(self.observations) > 1 or self.image_keys):
            raise ConfigError(f"{VECTOR!r} is the key of a lone vector: rename it in the environment's Dict")
        if self.action_dim < 0:
            raise ConfigError(f"action_dim is {self.action_dim}, must be 0 or more")
        if not len(low) == len(high) == self.action_dim:
            raise ConfigError(
                f"action bounds have {len(low)} and {len(high)} numbers; action_dim is {self.action_dim}, so give as "
                "many of each"
            )
        if MASK in self.observations:
            mask, others = self.observations[MASK], len(self.observations) > 1
            if not self.discrete or mask.shape != (self.action_dim,) or not others:
                raise ConfigError(
                    f"the observation {MASK!r} has shape {mask.shape}: it is a mask of discrete actions, "
                    f"({self.action_dim},) where there are {self.action_dim}, beside another observation; give it that "
                    "shape, or rename it in the environment's Dict"
                )
        if self.discrete and (set(low) != {0.0} or set(high) != {1.0}):
            raise ConfigError(f"discrete actions have bounds 0 and 1, not {low} to {high}: use Spec.of_choices")
        with np.errstate(over="ignore", invalid="ignore"):  # as policies hold them
            middle, half = middle_and_half(np.array(low, np.float32), np.array(high, np.float32))
        locked = np.equal(low, high)
        if not (np.isfinite(middle) & np.isfinite(half) & ((half > 0) | locked)).all() or (
            self.action_dim and locked.all()
        ):
            raise ConfigError(
                f"action bounds {list(low)} to {list(high)} must be finite and low < high, or equal where an "
                "action is locked and another is not, and their sums and differences finite in float32: give the range "
                "that actions are really taken from"
            )

    @property
    def locked(self) -> tuple[int, ...]:
        """Actions whose lowest and highest value are equal, as of a locked joint: they always have that value."""
        pairs = zip(self.action_low, self.action_high, strict=True)
        return tuple(index for index, (low, high) in enumerate(pairs) if low == high)

    @property
    def one_vector(self) -> bool:
        """Whether an observation is one vector: then batches hold it as it is, under the key `observations`."""
        return VECTOR in self.observations

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Keys of the images, in order."""
        return tuple(key for key, array in self.observations.items() if array.image)

    @property
    def vector_keys(self) -> tuple[str, ...]:
        """Keys of the float vectors that are normalised, in order: not that of a mask of actions."""
        return vectors_of(self.observations)

    @property
    def vector_dim(self) -> int:
        """Numbers of all these vectors together; what a normaliser is as wide as."""
        return sum(self.observations[key].shape[0] for key in self.vector_keys)

    @property
    def masked(self) -> bool:
        """Whether observations say which choices are allowed."""
        return MASK in self.observations

    @property
    def observation_dim(self) -> int:
        """Width of the observation vector.

        Raises:
            ConfigError: observations are not one vector.
        """
        if not self.one_vector:
            raise ConfigError(f"observations are {self.described()}, not one vector that has a width")
        return self.observations[VECTOR].shape[0]

    def described(self) -> str:
        """The observations in a few words, for messages."""
        return in_words(self.observations)

    def columns(self, name: str = VECTOR) -> dict[str, tuple[tuple[int, ...], str]]:
        """Column -> shape of a row and dtype, as stores, files and batches hold observations.

        One vector is the column `name` itself; anything else is NAME/KEY for each key.

        Args:
            name: "observations", or "next_observations".
        """
        if self.one_vector:
            return {name: ((self.observation_dim,), "float32")}
        return {f"{name}/{key}": (array.shape, array.dtype) for key, array in self.observations.items()}

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` reads: one vector by its width, other observations by key."""
        value: dict[str, Any] = {
            "action_dim": self.action_dim,
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "discrete": self.discrete,
            **({} if self.environment is None else {"environment": self.environment}),
            **({} if self.team is None else {"team": self.team.to_json()}),
        }
        if self.one_vector:
            return {"observation_dim": self.observation_dim, **value}
        return {"observations": arrays_to_json(self.observations), **value}

    @classmethod
    def from_json(cls, value: Any) -> Spec:
        """What `to_json` gave.

        Raises:
            CheckpointError: it is damaged: a key is missing, one too many, or of another type.
        """
        check(value, PROBLEM, "the description of a control problem")
        try:
            left = dict(value)
            width = left.pop("observation_dim", None)
            if (team := left.pop("team", None)) is not None:
                left["team"] = Team(tuple(team["names"]), int(team["state_dim"]))
            observations = arrays_from_json(left.pop("observations")) if width is None else int(width)
            bounds = [tuple(float(bound) for bound in left.pop(name)) for name in ("action_low", "action_high")]
            return cls(observations, action_low=bounds[0], action_high=bounds[1], **left)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(
                f"the description of a control problem is damaged ({error}): restore a copy"
            ) from error

    @classmethod
    def of_choices(cls, observations: int | Mapping[str, Array], choices: int) -> Spec:
        """The spec of a problem with discrete actions."""
        return cls(observations, choices, (0.0,) * choices, (1.0,) * choices, discrete=True)

    @classmethod
    def of(cls, dataset: DatasetLike, low: Any = None, high: Any = None) -> Spec:
        """The spec of a dataset; without bounds, actions lie in the range that it states, or else in [-1, 1].

        Args:
            dataset: whose `action_range`, where it has one, holds the lowest and highest actions.
            low: lowest action, one number for all or one for each of the A.
            high: highest action, likewise.

        Raises:
            ConfigError: bounds that are not finite, not ordered, or of another size than the actions.
        """
        size = dataset.action_dim
        if getattr(dataset, "choices", None) is not None:
            if low is not None or high is not None:
                raise ConfigError("these actions are discrete choices, which have no range: leave low and high out")
            return cls.of_choices(dataset.arrays, size).posed_by(getattr(dataset, "env_id", None))
        stated = getattr(dataset, "action_range", None)
        assumed = low is None and high is None and stated is None
        if stated is not None:
            low, high = stated[0] if low is None else low, stated[1] if high is None else high
        for name, bound in (("low", low), ("high", high)):
            if bound is not None and np.shape(bound) not in ((), (1,), (size,)):
                raise ConfigError(
                    f"{name} has shape {np.shape(bound)}; actions have {size} numbers: give one, or one for each"
                )
        low = np.full(size, -1.0) if low is None else np.broadcast_to(np.asarray(low, np.float64), (size,))
        high = np.full(size, 1.0) if high is None else np.broadcast_to(np.asarray(high, np.float64), (size,))
        bounds = tuple(low.tolist()), tuple(high.tolist())
        return cls(dataset.arrays, size, *bounds, environment=getattr(dataset, "env_id", None), range_assumed=assumed)

    def posed_by(self, environment: str | None) -> Spec:
        """The same problem, of the environment of this id."""
        kept = (self.observations, self.action_dim, self.action_low, self.action_high, self.discrete)
        return Spec(*kept, environment=environment, team=self.team)

    @property
    def agents(self) -> int:
        """Agents of a team, A: each environment has so many rows; 1 where no one acts together."""
        return 1 if self.team is None else self.team.agents

    @property
    def state_dim(self) -> int:
        """Numbers at the end of the vector that are the team's state; 0 where there are none."""
        return 0 if self.team is None else self.team.state_dim

    def of_one_agent(self) -> Spec:
        """The problem as an agent's policy has it: without the team's state."""
        if self.state_dim == 0:
            return self
        arrays = dict(self.observations)
        key = self.vector_keys[0]
        arrays[key] = Array((arrays[key].shape[0] - self.state_dim,))
        kept = (self.action_dim, self.action_low, self.action_high, self.discrete, self.environment)
        team = None if self.team is None else Team(self.team.names)
        return Spec(arrays, *kept, team=team)


def vectors_of(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """Keys of the float vectors that are normalised, in order: not that of a mask of actions."""
    return tuple(key for key, array in arrays.items() if not array.image and key != MASK)


def mapped(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """What a function makes of observations: of an array, or of each array of several by itself.

    Args:
        function: takes as many arrays as there are observations.
        first: one array, of either kind, or a mapping of them; spaces likewise.
        others: with the same keys.
    """
    if isinstance(first, Mapping):
        return {key: function(value, *(other[key] for other in others)) for key, value in first.items()}
    return function(first, *others)


def named(name: str, observations: Any) -> dict[str, Any]:
    """Observations as columns of batches, stores and checkpoints: NAME, or NAME/KEY of each of several arrays."""
    if isinstance(observations, Mapping):
        return {f"{name}/{key}": value for key, value in observations.items()}
    return {name: observations}


def unnamed(name: str, columns: Mapping[str, Any]) -> Any:
    """The inverse of `named`; a KeyError where the columns hold neither form."""
    if name in columns:
        return columns[name]
    found = {key.removeprefix(f"{name}/"): value for key, value in columns.items() if key.startswith(f"{name}/")}
    return found or columns[name]


def no_dataset(given: Any) -> str:
    """The sentence on something that stands where a dataset should, with what makes one of it."""
    what = repr(given) if isinstance(given, str) else f"an object of type {type(given).__name__}"
    return (
        f"{what} is no dataset: surefoot.data.load reads one from a path, surefoot.data.from_arrays makes one of arrays"
    )


def in_words(arrays: Mapping[str, Array]) -> str:
    """Named arrays for messages: "3 numbers", or "image (64, 64, 3) and state (2,)"."""
    if VECTOR in arrays:
        return f"{arrays[VECTOR].shape[0]} numbers"
    parts = [f"{key} {array.shape}" for key, array in arrays.items()]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def arrays_to_json(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Named arrays as JSON values; of an image its channels and range too, where older files would mean others."""
    found: dict[str, Any] = {}
    for key, array in arrays.items():
        found[key] = {"shape": list(array.shape), "dtype": array.dtype}
        if array.image and array.channels_last != _last_in_old_files(array.shape):
            found[key]["channels"] = LAST if array.channels_last else FIRST
        if array.image and array.range != BYTES:
            found[key]["range"] = list(array.range or ())  # empty: not stated
        if array.scaled is not None:
            found[key]["scaled"] = array.scaled
    return found


def arrays_from_json(value: Any) -> dict[str, Array]:
    """What `arrays_to_json` gave.

    Raises:
        KeyError, TypeError, ConfigError: it is damaged.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"observations are {value!r}, not a mapping of names to shapes")
    found = {}
    for key, part in value.items():
        shape, span = tuple(part["shape"]), part.get("range", BYTES)
        channels = None
        if len(shape) > 2:
            channels = part.get("channels", LAST if _last_in_old_files(shape) else FIRST)
        low, high = span if len(span) and len(shape) > 1 else (None, None)
        found[str(key)] = Array(shape, part["dtype"], channels, low, high, part.get("scaled"))
    return found


def _last_in_old_files(shape: tuple[int, ...]) -> bool:
    """Whether channels are last where a file does not state it: the rule when none did."""
    return len(shape) > 2 and shape[-3] >= shape[-1]
