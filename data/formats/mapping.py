"""Mapping files: which columns of a log are observations, actions, rewards and ends of episodes (docs/own_data.md).

A mapping is a small YAML file. It is a dataset by itself where it names its `files`, and otherwise goes with one. Logs
may be CSV, Parquet, NPZ, HDF5, MCAP, a ROS 2 bag or a LeRobot dataset; each file begins an episode of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.schema import Many, Number, Plain, Record, Text, check
from surefoot.core.base.schema import Table as Object
from surefoot.core.base.settings import read_settings
from surefoot.core.base.spec import IMAGE, VECTOR
from surefoot.core.base.unpacking import check_free
from surefoot.data.checks import INSIDE, PAUSED, check_extra, check_finite, exact_vector, flags
from surefoot.data.choices import CHOICES
from surefoot.data.dataset import ACTION_HIGH, ACTION_LOW, ACTION_NAMES, NO_REWARDS, OBSERVATION_NAMES, REWARDS, Dataset
from surefoot.data.formats import pictures
from surefoot.data.formats.chosen import names_in, picked, split
from surefoot.data.formats.columns import LATER, RULES_HELP, Table
from surefoot.data.formats.file_patterns import files_like
from surefoot.data.formats.flat import Source, counted_out, dataset_from_arrays
from surefoot.data.formats.named import PREFIXES, followed
from surefoot.data.formats.repairs import (
    COUNT,
    REPAIRS,
    RULES,
    TERMINATION,
    TRUNCATION,
    Repaired,
    gaps,
    repaired,
    summed,
)

Array = np.ndarray[Any, Any]

SUFFIXES = (".yaml", ".yml")
STATE = "state"
"""Key of the vector beside images."""
OWN = frozenset(field.name for field in dataclasses.fields(Dataset))
"""What extras may not be called: the names of a dataset's other parts."""
EARLY = "early"
"""Rows of a termination that is not the last row of an episode of the mapping's column."""
PAUSE, LONG = "pause", 10.0
"""Rows before a step that is more than so many medians long, where no `gap` says what ends an episode."""
_NAMES = Many(Text(500), 1)
_NAME, _POSITIVE = Text(500), Number(1e-9)
KIND = Record(
    {"actions": _NAMES},
    {
        "observations": _NAMES,
        "files": _NAMES,
        "next_observations": _NAMES,
        "images": Object(_NAME),
        "image_size": Many(Number(1, 4096, whole=True), 2, 2),
        "extras": Object(_NAME),
        "reward": _NAME,
        "cost": _NAME,
        "termination": _NAME,
        "truncation": _NAME,
        "episode": _NAME,
        "time": _NAME,
        "gap": _POSITIVE,
        "rate": _POSITIVE,
        "drop": _NAMES,
        "interpolate": _NAMES,
        "hold": _NAMES,
        "fill_at_most": Number(1, 2**31 - 1, whole=True),
        "end_where": Record({"column": _NAME, "in": Many(Plain(1), 1)}, {"as": Text(among=(TERMINATION, TRUNCATION))}),
        "choices": Number(2, 4096, whole=True),
        "action_low": Many(Number(), 1),
        "action_high": Many(Number(), 1),
        "environment": _NAME,
        "max_episode_steps": Number(1, 2**31 - 1, whole=True),
    },
)
LISTS = ("observations", "actions", "next_observations", "files", *RULES)
EXTRAS = "extras/"
"""What names of further columns begin with among a file's arrays."""


@dataclasses.dataclass(frozen=True)
class LogMapping:
    """What a mapping file says; columns as `name`, `name[2]`, `name[0:3]`, or with `*` for several."""

    path: str
    actions: tuple[str, ...]
    observations: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    next_observations: tuple[str, ...] = ()
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)  # key of an observation -> column
    image_size: tuple[int, int] | None = None  # height and width that pictures are scaled to
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name of an extra -> column
    reward: str | None = None
    cost: str | None = None
    termination: str | None = None
    truncation: str | None = None
    episode: str | None = None  # a column that changes with each episode
    time: str | None = None  # a column of seconds
    gap: float | None = (
        None  # seconds without a row that end an episode; of a topic without a message, that are refused
    )
    rate: float | None = None  # steps per second that messages are sampled at
    drop: tuple[str, ...] = ()  # columns; rows in which one lacks a number are left out
    interpolate: tuple[str, ...] = ()  # columns whose gaps are filled between known numbers
    hold: tuple[str, ...] = ()  # columns whose gaps are filled by the last known number
    fill_at_most: int | None = None  # rows of a gap that these two fill
    end_where: Mapping[str, Any] | None = None  # a status column, and the values of it that end an episode
    choices: int | None = None  # discrete actions that there are; the column holds their number, from 0 on
    action_low: tuple[float, ...] | None = None  # of the actuators, one number for all actions or one for each
    action_high: tuple[float, ...] | None = None
    environment: str | None = None
    max_episode_steps: int | None = None

    @property
    def known_before(self) -> tuple[str, ...]:
        """Columns of what is known when a step begins, as it names them."""
        return (*self.observations, *self.images.values())

    @property
    def said_after(self) -> tuple[str, ...]:
        """Columns of what was done at a step, and what came of it, as it names them."""
        single = (self.reward, self.cost, self.termination, self.truncation, self.episode, self.time)
        named = (*self.actions, *self.next_observations, *self.extras.values())
        return (*named, *(name for name in single if name is not None))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it names, as it names them."""
        return (*self.known_before, *self.said_after)


def read_mapping(path: pathlib.Path) -> LogMapping:
    """The mapping in a YAML file.

    Raises:
        DataError: it can't be read, is no YAML, or has a key that is unknown, missing or of another kind.
    """
    value = read_settings(path, DataError)
    if isinstance(value, dict):
        value = {key: [one] if key in LISTS and isinstance(one, str) else one for key, one in value.items()}
        if isinstance(value.get("images"), str):
            value["images"] = {IMAGE: value["images"]}
        for key in ("action_low", "action_high"):
            if isinstance(value.get(key), int | float):
                value[key] = [value[key]]
        if isinstance(value.get("image_size"), int):
            value["image_size"] = [value["image_size"]] * 2
    try:
        check(value, KIND, path, ConfigError)
    except ConfigError as error:
        raise DataError(f"{error} (docs/own_data.md has the keys of a mapping)") from error
    if "observations" not in value and not value.get("images"):
        raise DataError(f"{path}: names no columns under 'observations', nor any under 'images'; add one of them")
    if "image_size" in value and not value.get("images"):
        raise DataError(f"{path}: 'image_size' scales pictures, and none is named under 'images'")
    for name in value.get("extras", {}):
        if name in OWN or name.startswith(PREFIXES):
            raise DataError(f"{path}: 'extras' names {name!r}, which has a key of its own (docs/own_data.md)")
    value = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
    return LogMapping(path=str(path), **value)


def files_of(mapping: LogMapping) -> list[pathlib.Path]:
    """The files that it names, relative to its own folder, with `*` for several; in the order of their names.

    Raises:
        DataError: it names none, one that is not there, or one twice.
    """
    if not mapping.files:
        raise DataError(
            f"{mapping.path}: names no files; add `files: [log.csv]`, or give it with a log: "
            "surefoot datasets convert LOG OUT --mapping MAPPING"
        )
    folder = pathlib.Path(mapping.path).parent
    found: dict[pathlib.Path, str] = {}
    missing: list[str] = []
    for name in mapping.files:
        matched = files_like(folder / name, mapping.path)
        if not matched:
            missing.append(f"{name}, and {folder / name} does not exist")
        for one in matched:
            if one in found:
                by = f"by {found[one]} and by {name}" if found[one] != name else f"by {name} twice"
                raise DataError(f"{mapping.path}: 'files' names {one} {by}; its rows would count double: name it once")
            found[one] = name
    if missing:
        raise DataError(f"{mapping.path}: 'files' names {'; '.join(missing)}")
    return [*found]


def fingerprint(mapping: LogMapping, path: pathlib.Path, columns: Sequence[str] = ()) -> str:
    """Changes whenever the mapping, the file or what lies in the folder does; by names, sizes and times of change.

    Args:
        mapping: as it is written.
        path: of the log.
        columns: those that names with `*` stand for.
    """
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    facts = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in inside if one.is_file()]
    reported = dataclasses.replace(mapping, path="", files=())
    return hashlib.sha256(repr((reported, facts, tuple(columns))).encode()).hexdigest()


def arrays_of(mapping: LogMapping, table: Table) -> dict[str, Array]:
    """One file's steps under D4RL's names, its last one an end; images as `observations/KEY`; names of their numbers.

    Args:
        mapping: `expanded`, by the first of all files: its columns are in the same order in every one of them.
        table: of the file.

    Raises:
        DataError: a column is missing or has the wrong shape; names file and column.
    """
    if mapping.rate is not None and not table.sampled:
        raise DataError(
            f"{mapping.path}: 'rate' is of recorded messages (MCAP, ROS 2), and {table.path} has a row for each step; "
            "leave it out, and thin the rows out before where they are too many"
        )
    if mapping.gap is not None and mapping.time is None and not table.sampled:
        raise DataError(f"{mapping.path}: 'gap' needs 'time', the column of seconds")
    named = [split(name)[0] for name in mapping.columns]
    alone = mapping.episode if named.count(mapping.episode or "") == 1 else None  # what it is elsewhere is numbers
    fixed = repaired(mapping, table, table.read(named, alone, gaps(mapping)))
    held = fixed.held

    def where(row: int) -> str:
        return table.where(int(fixed.rows[row]))

    def column(name: str, before: bool = False) -> Array:
        """Of recorded messages, what it held when a step begins, or at last before the next one."""
        plain = split(name)[0]
        array = picked(held[plain] if before else held.get(LATER + plain, held[plain]), name, table.path)
        if array.dtype.kind == "f":
            try:
                check_finite(str(table.path), name, array, where)
            except DataError as error:
                raise DataError(f"{error}, or: {RULES_HELP}") from error
            with np.errstate(over="ignore"):
                check_finite(str(table.path), name, array.astype(np.float32), where)  # what it becomes
        return array

    def joined(names: Sequence[str], before: bool = False) -> tuple[Array, Array]:
        """(N, d) numbers, and the names of the d."""
        parts, reported = [], []
        for name in names:
            part = column(name, before)
            if part.dtype.kind not in "biuf" or part.ndim > 2:
                raise DataError(
                    f"{table.path}: column {name!r} is {part.dtype} of shape {part.shape}; a vector's part is numbers, "
                    "one or several a step (name pictures under `images`)"
                )
            parts.append(part[:, None] if part.ndim == 1 else part)
            reported += names_in(held[split(name)[0]], name)
        return np.concatenate(parts, axis=1), np.array(reported)

    found: dict[str, Array] = {}
    found["actions"], found[ACTION_NAMES] = joined(mapping.actions)
    if mapping.observations:
        found["observations"], found[OBSERVATION_NAMES] = joined(mapping.observations, before=True)
    if mapping.next_observations:
        found["next_observations"], _ = joined(mapping.next_observations)
    for key, name in (("rewards", mapping.reward), ("costs", mapping.cost)):
        if name is not None:
            found[key] = exact_vector(str(table.path), name, column(name))
    for key, name in mapping.extras.items():
        found[EXTRAS + key] = column(name)
        check_extra(str(table.path), name, found[EXTRAS + key])
    found |= _ends(mapping, column, fixed, str(table.path))
    found |= {COUNT + what: np.array([count]) for what, count in fixed.counts.items()}
    if mapping.images:
        images = {key: column(name, before=True) for key, name in mapping.images.items()}
        _add_images(found, images, table.path, mapping.image_size)
    return found


def _ends(mapping: LogMapping, column: Any, fixed: Repaired, name: str) -> dict[str, Array]:
    """Where the task ends and where an episode is cut off: by flags, a column that changes, a gap in time, a limit, and
    the rules about status and rows that are left out."""
    rows = len(fixed.cut)
    terminals, long = fixed.terminated.copy(), np.zeros(rows, bool)
    if mapping.termination is not None:
        terminals |= flags(name, mapping.termination, column(mapping.termination))
    cut = fixed.cut.copy()
    if mapping.truncation is not None:
        cut |= flags(name, mapping.truncation, column(mapping.truncation))
    if mapping.episode is not None:
        ids = column(mapping.episode)
        cut[:-1] |= (ids[1:] != ids[:-1]) if ids.ndim == 1 else (ids[1:] != ids[:-1]).any(1)
    if mapping.time is not None:
        seconds = np.asarray(column(mapping.time), np.float64)  # float32 is too coarse for a clock
        if seconds.size != rows:
            raise DataError(f"{name}: the time {mapping.time!r} has shape {seconds.shape}; it must be ({rows},)")
        seconds = seconds.reshape(rows)
        steps = np.diff(seconds)
        cut[:-1] |= (steps < 0) | (steps > (np.inf if mapping.gap is None else mapping.gap))
        forward = steps[steps > 0]
        if mapping.gap is None and len(forward):
            long[:-1] = steps > LONG * np.median(forward)
    cut[-1] = True
    if mapping.max_episode_steps is not None and mapping.truncation is None and mapping.episode is None:
        cut |= counted_out(terminals | cut, mapping.max_episode_steps)
    early = {} if mapping.episode is None else {EARLY: terminals & ~cut}
    return {"terminals": terminals, "timeouts": cut & ~terminals, PAUSE: long & ~(cut | terminals), **early}


def _add_images(
    found: dict[str, Array], images: dict[str, Array], path: pathlib.Path, size: tuple[int, int] | None
) -> None:
    """Put pictures, scaled, and the vector under keys of their own; what followed comes where all files are joined."""
    for key, array in images.items():
        if array.dtype != np.uint8 or array.ndim < 2:
            raise DataError(
                f"{path}: the picture {key!r} is {array.dtype} of shape {array.shape}, must be uint8 pictures, or the "
                "bytes of a JPEG or PNG file a step"
            )
        if array.ndim == 2:  # padded with zeros, which come after a file's own end
            files = (pictures.decoded(f"{path}, {key!r}, step {k}", row.tobytes(), size) for k, row in enumerate(array))
            images[key] = pictures.stack(f"{path}, {key!r}", files, len(array))
            continue
        if len(array) and pictures.scaled(array[0], size).shape != array.shape[1:]:
            each = (pictures.scaled(one, size) for one in array)
            images[key] = pictures.stack(f"{path}, {key!r}", each, len(array))
    states = {STATE: _floats(found.pop("observations"))} if "observations" in found else {}
    parts = {**states, **images}
    after = {STATE: found.pop("next_observations", None)}
    for key, array in parts.items():
        found[f"{VECTOR}/{key}"] = array
        following = after.get(key)
        if following is not None:
            found[f"next_{VECTOR}/{key}"] = _floats(following)
    found["next_known"] = ~(found["terminals"] | found["timeouts"]) | found["terminals"]


def _floats(array: Array) -> Array:
    """Numbers as float32, or as float64 where they need it: what becomes float32 of those is counted later."""
    return array.astype(np.result_type(array, np.float32))


def dataset_of(
    mapping: LogMapping,
    parts: Sequence[dict[str, Array]],
    source: Source,
    view: str = "corrected",
    facts: Mapping[str, Any] | None = None,
) -> Dataset:
    """The dataset of the steps of several files, whose arrays are taken out of `parts` as they are joined.

    Args:
        mapping: that they were read by.
        parts: of each file.
        source: what else is known.
        view: as `formats.flat`.
        facts: further attributes.

    Raises:
        DataError: files differ in their columns, names or shapes, do not fit the memory together, or the data are
            inconsistent or not finite.
    """
    if counts := summed(parts):
        facts = {**(facts or {}), REPAIRS: json.dumps(counts)}
    for part in parts[1:]:
        for key, array in part.items():
            if key not in parts[0] or array.shape[1:] != parts[0][key].shape[1:]:
                raise DataError(
                    f"{source.name}: {key!r} has {array.shape[1:]} numbers a step in one file and "
                    f"{parts[0].get(key, array).shape[1:]} in another; map them by two mappings"
                )
    named = {key: _same_names(source.name, key, parts) for key in (OBSERVATION_NAMES, ACTION_NAMES) if key in parts[0]}
    arrays = {key: _joined(source.name, key, parts) for key in list(parts[0]) if key not in named}
    odd = {what: int(arrays.pop(key, np.zeros(0)).sum()) for key, what in ((EARLY, INSIDE), (PAUSE, PAUSED))}
    attributes: dict[str, Any] = {"mapping": pathlib.Path(mapping.path).name, **named, **(facts or {})}
    for name, bound in ((ACTION_LOW, mapping.action_low), (ACTION_HIGH, mapping.action_high)):
        if bound is not None:
            attributes[name] = json.dumps(bound)
    if "rewards" not in arrays:
        arrays["rewards"] = np.zeros(len(arrays["actions"]), np.float32)
        attributes[REWARDS] = NO_REWARDS
    extras: dict[str, Any] = {key: arrays.pop(key) for key in list(arrays) if key.startswith(PREFIXES)}
    if extras:
        empty = np.zeros((len(arrays["actions"]), 0), np.float32)
        arrays |= {VECTOR: empty, f"next_{VECTOR}": empty}
        extras = followed(extras, arrays["terminals"] | arrays["timeouts"])
    extras |= {key.removeprefix(EXTRAS): arrays.pop(key) for key in list(arrays) if key.startswith(EXTRAS)}
    if mapping.choices is not None:
        attributes[CHOICES] = mapping.choices
    given: dict[str, Any] = {"env_id": mapping.environment, "max_episode_steps": mapping.max_episode_steps}
    known = source.with_attributes({key: value for key, value in given.items() if value is not None})
    known = dataclasses.replace(known, attributes={**known.attributes, **attributes})
    made = dataset_from_arrays(arrays, known, view, extras)
    _ = made.action_range  # refused here, where it is reported
    return made.replace(warnings={**made.warnings, **{what: count for what, count in odd.items() if count}})


def _joined(name: str, key: str, parts: Sequence[dict[str, Array]]) -> Array:
    """The rows of all files; each part goes as soon as they are, for pictures would not fit the memory twice."""
    held = [part.pop(key) for part in parts]
    if len(held) == 1:
        return held[0]
    check_free(f"{name}: {key!r} of {len(held)} files", sum(one.nbytes for one in held), DataError)
    return np.concatenate(held)


def _same_names(name: str, key: str, parts: Sequence[dict[str, Array]]) -> str:
    """The attribute of names that all files share; arrays of other widths may have as many numbers in all."""
    first, *others = ([str(one) for one in part[key]] for part in parts)
    for other in others:
        if odd := [pair for pair in zip(first, other, strict=True) if pair[0] != pair[1]]:
            raise DataError(
                f"{name}: a number of {key.removesuffix('_names')}s is {odd[0][0]!r} in one file and {odd[0][1]!r} in "
                "another; map them by two mappings"
            )
    return json.dumps(first)
