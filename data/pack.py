"""`pack`: files of any format that `load` reads into one store on disk, in blocks of whole episodes.

HDF5 and Parquet with a row a step, and stores, are read block by block; other files are read whole, one after another.
What comes out is what `load` gives of the same files, one behind the other.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.unpacking import ALWAYS, EXPANSION, VARIABLE
from surefoot.data.building import Building, row_bytes
from surefoot.data.cameras import cameras_of
from surefoot.data.checks import flags, refuse_oddities
from surefoot.data.choices import CHOICES
from surefoot.data.dataset import Dataset
from surefoot.data.formats import d3rlpy, d4rl, on_disk, parquet, robomimic
from surefoot.data.formats.flat import (
    EPISODE_ENDS,
    FINAL_OBSERVATIONS,
    FLAGS,
    KEYS,
    REQUIRED,
    Source,
    counted_out,
    dataset_from_arrays,
)
from surefoot.data.formats.hdf5 import check_seal, is_hdf5, read_hdf5
from surefoot.data.formats.named import PREFIXES
from surefoot.data.frame_cache import size_of
from surefoot.data.load import load, require_there
from surefoot.data.pictures import Pictures
from surefoot.data.rewards import Reward, name_of

Array = np.ndarray[Any, Any]
Tell = Callable[[str], None]
Done = Callable[[int, int], None]

BLOCK_BYTES, FEWEST_ROWS = 64 << 20, 1000
"""What a block of rows takes in the store; rows that it has at least."""
PICTURES = "it holds images or several named arrays"
OF_EPISODES = (FINAL_OBSERVATIONS, EPISODE_ENDS)
"""Arrays with a row for each episode."""
BYTES_PER_SECOND = {"hdf5": 20e6, "parquet": 30e6, "store": 50e6, "memory": 30e6}
"""Bytes of a store that one slow core makes in a second, read from, checked, written and hashed: docs/scale.md."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """What `pack` made."""

    path: str
    rows: int
    episodes: int
    nbytes: int
    """Of the columns' files."""
    sha256: str
    seconds: float
    """That this process took; less than the whole where it went on with what another had started."""


@dataclasses.dataclass(frozen=True)
class _Origin:
    """A source: how many rows it has, where they may be cut, and how some are read."""

    name: str
    kind: str
    """Key of BYTES_PER_SECOND."""
    rows: int
    per_row: int
    """Bytes of a row in the store."""
    ends: Array
    """(E,) int64: behind the last row of each episode."""
    read: Callable[[int, int], Dataset]


class _Whole(Exception):
    """A source can't be read in blocks; the argument says why."""


def pack(
    sources: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    strict: bool = False,
    view: str = "corrected",
    max_episode_steps: int | None = None,
    mapping: str | os.PathLike[str] | None = None,
    reward: Reward | None = None,
    image_size: int | Sequence[int] | None = None,
    cameras: str | Sequence[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
    tell: Tell = lambda text: None,
    progress: Done = lambda done, total: None,
) -> Packed:
    """Make a store on disk of files, which `load` then maps; where that is stopped, the same call continues.

    Args:
        sources: as of `load`, one or several, whose columns are the same; their episodes stand one after another.
        destination: a folder that does not exist.
        strict, view, max_episode_steps, mapping, reward, image_size, cameras: as of `load`; the last four read each
            source whole, as does another view than `corrected`.
        block_bytes: of the store that are made at once.
        tell: called with sentences: what it will take, and what is read whole and why.
        progress: called with the rows that are on the disk, and all that are known of.

    Raises:
        ConfigError: the destination exists, another process builds it, or a source is unknown.
        DataError: a source can't be read, they don't fit together, or the disk is too small.
    """
    started, path = time.monotonic(), pathlib.Path(destination)
    if not sources:
        raise ConfigError("pack needs at least one file")
    if path.name in ("", "..") or "\0" in str(path):
        raise ConfigError(f"{str(path)!r}: is no name for a store")
    names = [os.fspath(source) for source in sources]
    for name in names:
        require_there(name)
    options = {"strict": strict, "view": view, "max_episode_steps": max_episode_steps, "mapping": mapping}
    options |= {"image_size": image_size, "cameras": cameras}
    reader = _Reader({**options, "reward": reward})
    settings = [view, max_episode_steps, strict, _identity(mapping), None if reward is None else name_of(reward)]
    if image_size is not None or cameras is not None:  # part of what tells one build from another
        settings += [size_of(image_size), cameras_of(cameras)]
    request = [[_identity(name) for name in names], [str(one) for one in settings], block_bytes]
    with Building(path, request) as building:
        if building.rows:
            tell(f"{path}: {building.rows:,} rows are there already; the rest is built behind them")
        origins = [reader.origin(name, tell, len(names) > 1) for name in names]
        known = [origin for origin in origins if origin is not None]
        rows = sum(origin.rows for origin in known)
        if known:
            _tell_size(path, building, known, len(known) == len(names), tell)
        part = 0
        for number, name in enumerate(names):
            origin = origins[number] or reader.whole(name)
            if origins[number] is None:
                rows += origin.rows
            building.require_disk(rows, origin.per_row)
            for start, stop in _cuts(origin.ends, max(FEWEST_ROWS, block_bytes // max(1, origin.per_row))):
                part += 1
                if part <= building.parts:
                    continue
                found = origin.read(start, stop)
                if strict:
                    refuse_oddities(found, name)
                building.append(found)
                progress(building.rows, rows)
            origins[number] = None  # an array of a source that was read whole goes before the next comes
            del origin
        tell("computing its SHA-256")
        sha256 = building.finish([{"name": name} for name in names])
        episodes = int(building.state["episodes"])
    nbytes = sum(one.stat().st_size for one in path.glob("*.bin"))
    return Packed(str(path), rows, episodes, nbytes, sha256, time.monotonic() - started)


def _tell_size(path: pathlib.Path, building: Building, known: list[_Origin], all_known: bool, tell: Tell) -> None:
    """What a store takes, before it is started."""
    rows = sum(origin.rows for origin in known)
    size = sum(origin.rows * origin.per_row for origin in known)
    seconds = sum(origin.rows * origin.per_row / BYTES_PER_SECOND[origin.kind] for origin in known)
    seconds *= 1 - building.rows / rows if building.rows < rows else 0
    building.require_disk(rows, known[0].per_row)
    more = "" if all_known else " of the files whose size is known before they are read"
    tell(
        f"{path}: {rows:,} rows of {known[0].per_row} bytes{more}: {size / 1e9:,.2f} GB of disk, about "
        f"{in_time(seconds)}. Training writes the rows that it prepares into it: two to three times as much, once for "
        "all seeds and runs that prepare alike"
    )


def in_time(seconds: float) -> str:
    """A duration in words, rounded."""
    return f"{max(1, math.ceil(seconds)):,} s" if seconds < 100 else f"{math.ceil(seconds / 60):,} minutes"


def _identity(source: str | os.PathLike[str] | None) -> Any:
    """What tells a source from one that takes its place: its path, and sizes and times of change."""
    if source is None:
        return None
    path = pathlib.Path(source)
    if not path.exists():
        return os.fspath(source)  # an id of the catalogue
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    if path.is_dir() and on_disk.is_store(path):
        files = [path / on_disk.HEADER]
    facts = [[str(one.relative_to(path)), one.stat().st_size, one.stat().st_mtime_ns] for one in files[:10_000]]
    return [str(path.resolve()), *facts]


def _cuts(ends: Array, rows: int) -> list[tuple[int, int]]:
    """First row and row behind the last of blocks of at most `rows` rows, or of one episode that is longer."""
    found, start, total = [], 0, int(ends[-1])
    while start < total:
        place = int(np.searchsorted(ends, start + rows, side="right")) - 1
        stop = int(ends[place]) if place >= 0 and ends[place] > start else int(ends[place + 1])
        found.append((start, stop))
        start = stop
    return found


@dataclasses.dataclass(frozen=True)
class _Reader:
    """How sources are read, by the options of `load`."""

    options: Mapping[str, Any]

    def origin(self, name: str, tell: Tell, several: bool) -> _Origin | None:
        """A source that is read in blocks, or alone and so read now; None: it is read whole when its turn comes."""
        path = pathlib.Path(name)
        try:
            if path.is_dir() and on_disk.is_store(path):
                return self._in_memory(name, "store")
            if self.options["mapping"] is not None or self.options["reward"] is not None:
                raise _Whole("a mapping or a reward function is given")
            if self.options["image_size"] is not None or self.options["cameras"] is not None:
                raise _Whole("cameras are chosen, or their pictures scaled, which the cache on disk holds")
            if self.options["view"] != "corrected":
                raise _Whole(f"view={self.options['view']} is of a whole file")
            if path.is_file() and path.stat().st_size and is_hdf5(path):
                return _of_hdf5(path, Source(name=name, max_episode_steps=self.options["max_episode_steps"]))
            if path.is_file() and path.stat().st_size and parquet.is_parquet(path):
                return _of_parquet(path, Source(name=name, max_episode_steps=self.options["max_episode_steps"]))
            raise _Whole("its format has no rows that can be read by themselves")
        except _Whole as why:
            tell(f"{name}: is read into memory whole: {why}")
            return None if several else self.whole(name)

    def whole(self, name: str) -> _Origin:
        """A source that is read into memory."""
        return self._in_memory(name, "memory")

    def _in_memory(self, name: str, kind: str) -> _Origin:
        dataset = load(name, **self.options)
        return _Origin(
            name=name,
            kind=kind,
            rows=len(dataset),
            per_row=row_bytes(dataset),
            ends=dataset.episode_starts[1:],
            read=lambda start, stop: _part(dataset, start, stop, whole=len(dataset)),
        )


def _part(dataset: Dataset, start: int, stop: int, whole: int) -> Dataset:
    """Rows of a dataset that begin and end with an episode; its warnings go with the first."""
    rows = slice(start, stop)
    columns: dict[str, Any] = {
        field.name: value[rows]
        for field in dataclasses.fields(dataset)
        if isinstance(value := getattr(dataset, field.name), np.ndarray)
    }
    columns["episode_ids"] = columns["episode_ids"] - columns["episode_ids"][0]
    extras = {
        key: value.select_rows(rows) if isinstance(value, Pictures) else value[rows]
        for key, value in dataset.extras.items()
    }
    warnings = dict(dataset.warnings) if start == 0 else {}
    return dataset.replace(**columns, extras=extras, warnings=warnings)


def _of_hdf5(path: pathlib.Path, source: Source) -> _Origin:
    """A file of D4RL's layout, whose rows are read by ranges.

    Raises:
        _Whole: it is of another layout, or where episodes end is not marked row by row.
        DataError: it is damaged.
    """
    sealed = check_seal(path)
    as_is = (d4rl.EXTRAS, *FLAGS)
    prefixes = [d4rl.EXTRAS, *PREFIXES]
    shapes = read_hdf5(path, KEYS, prefixes=prefixes, as_is=as_is, shapes_alone=True, sealed=sealed)
    if any(kind.fits(shapes.names) for kind in (robomimic, d3rlpy)) or not {*REQUIRED} <= {*shapes.names}:
        raise _Whole("it is not of D4RL's layout")
    source = source.with_attributes(shapes.attributes)
    by_row = {key: value for key, value in shapes.arrays.items() if key not in OF_EPISODES}
    _require_plain(path, by_row, source)
    small = [key for key in ("terminals", "timeouts", *OF_EPISODES) if key in shapes.arrays]
    held = read_hdf5(path, small, as_is=FLAGS, sealed=sealed).arrays
    ends = _ends(path, held, source)
    unchanged = _identity(path)

    def read(start: int, stop: int) -> Dataset:
        if _identity(path) != unchanged:
            raise DataError(f"{path}: was changed while it was read; begin again")
        keys = [key for key in KEYS if key in by_row]
        arrays = read_hdf5(path, keys, prefixes=[d4rl.EXTRAS], as_is=as_is, rows=(start, stop), sealed=sealed).arrays
        if FINAL_OBSERVATIONS in held:
            first, last = np.searchsorted(ends, (start, stop), side="right")
            arrays[FINAL_OBSERVATIONS] = held[FINAL_OBSERVATIONS][first:last]
        if EPISODE_ENDS in held:
            first, last = np.searchsorted(ends, (start, stop), side="right")
            arrays[EPISODE_ENDS] = held[EPISODE_ENDS][first:last] - start
        extras = {key.removeprefix(d4rl.EXTRAS): arrays[key] for key in list(arrays) if key.startswith(d4rl.EXTRAS)}
        return dataset_from_arrays(arrays, source, extras=extras)

    return _origin(path, "hdf5", by_row, ends, read)


def _of_parquet(path: pathlib.Path, source: Source) -> _Origin:
    """A file with a row a step, whose groups of rows are read by themselves.

    Raises:
        _Whole: it is of another layout, or where episodes end is not marked row by row.
        DataError: it is damaged.
    """
    table = parquet.RowGroups(path)
    if not {*REQUIRED} <= {*table.names.values()}:
        raise _Whole("its columns are not those of a Parquet file of surefoot's")
    source = source.with_attributes(parquet.attributes(path))
    _require_no_pictures(table.names.values())
    first = table.rows(0, min(1, table.length))
    by_row = {key: np.broadcast_to(value[:1], (table.length, *value.shape[1:])) for key, value in first.items()}
    _require_plain(path, by_row, source)
    ends = _ends(path, table.rows(0, table.length, ["terminals", "timeouts"]), source)
    unchanged = _identity(path)

    def read(start: int, stop: int) -> Dataset:
        if _identity(path) != unchanged:
            raise DataError(f"{path}: was changed while it was read; begin again")
        arrays = table.rows(start, stop)
        extras = {
            key.removeprefix(parquet.EXTRAS): arrays.pop(key) for key in list(arrays) if key.startswith(parquet.EXTRAS)
        }
        return dataset_from_arrays(arrays, source, extras=extras)

    return _origin(path, "parquet", by_row, ends, read)


def _origin(
    path: pathlib.Path, kind: str, by_row: Mapping[str, Array], ends: Array, read: Callable[[int, int], Dataset]
) -> _Origin:
    """An origin, with the bytes of a row as the dataset will have it."""
    sizes = {key: math.prod(value.shape[1:]) for key, value in by_row.items()}
    per_row = 4 * (2 * sizes["observations"] + sizes["actions"] + 1 + ("costs" in sizes)) + 8 + 3 + 1
    for key, value in by_row.items():
        if key.startswith(d4rl.EXTRAS):
            per_row += sizes[key] * value.dtype.itemsize
        elif key == "margins":
            per_row += 4
    size = path.stat().st_size
    text = os.environ.get(VARIABLE)
    most = float(text) * (1 << 20) if text else max(ALWAYS, EXPANSION * size)
    if int(ends[-1]) * per_row > most:
        raise DataError(
            f"{path}: would unpack to {int(ends[-1]) * per_row / 1e9:,.1f} GB, more than a file of {size:,} bytes may "
            f"({most / 1e9:,.1f} GB); if you trust it, set {VARIABLE}"
        )
    return _Origin(str(path), kind, int(ends[-1]), per_row, ends, read)


def _require_plain(path: pathlib.Path, arrays: Mapping[str, Array], source: Source) -> None:
    """Refuse, for blocks, what is decided by a whole file.

    Raises:
        _Whole: says what.
        DataError: arrays have different numbers of rows, or none.
    """
    _require_no_pictures(arrays)
    if arrays["observations"].ndim > 2:
        raise _Whole(PICTURES)
    if arrays["actions"].dtype.kind not in "f" and CHOICES not in source.attributes:
        raise _Whole("whether its actions are choices follows from all of them")
    if "timeouts" not in arrays and "next_observations" in arrays:
        raise _Whole("it has no 'timeouts', and its ends follow from all next observations")
    lengths = {key: len(value) for key, value in arrays.items() if value.ndim}
    if len(set(lengths.values())) != 1 or 0 in lengths.values() or len(lengths) < len(arrays):
        raise _Whole("its arrays are not of one length")  # read whole, it is refused by name


def _require_no_pictures(keys: Iterable[str]) -> None:
    """Refuse, for blocks, images and named arrays; raises _Whole."""
    if any(key.startswith(PREFIXES) for key in keys):
        raise _Whole(PICTURES)


def _ends(path: pathlib.Path, arrays: Mapping[str, Array], source: Source) -> Array:
    """(E,) int64: behind the last row of each episode, as `formats.flat` finds it."""
    ends = flags(str(path), "terminals", arrays["terminals"]).copy()
    if "timeouts" in arrays:
        ends |= flags(str(path), "timeouts", arrays["timeouts"])
    ends[-1] = True
    if "timeouts" not in arrays and source.max_episode_steps is not None:
        ends |= counted_out(ends, source.max_episode_steps)
    return np.flatnonzero(ends) + 1
