"""LeRobot datasets of versions 2 and 3, read: a folder of Parquet files with a row a frame, and videos beside them.

Version 2 has a Parquet file and a video for each episode, version 3 several episodes in each.

`meta/info.json` names the features. What `load` takes without a mapping: `observation.state` and
`observation.environment_state` joined, `action`, `next.reward`. An episode ends with a termination where
`next.terminated` says so, which surefoot writes, or where its last frame is a `next.success`; else it is cut off, since
`next.done` marks every last frame. Source: huggingface/lerobot, docs/source/lerobot-dataset-v3.mdx.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, DataError, nearest
from surefoot.core.base.files import read_json
from surefoot.core.base.scaling import RULE
from surefoot.core.base.schema import Many, Number, Record, Table, Text
from surefoot.data.cameras import CAMERAS, Cameras
from surefoot.data.checks import concatenated, exact_matrix, exact_vector, flags
from surefoot.data.dataset import ACTION_NAMES, NO_REWARDS, OBSERVATION_NAMES, REWARDS, SCALED_BY, Dataset
from surefoot.data.files import digest_of
from surefoot.data.formats import columns, pictures
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.named import beside_state
from surefoot.data.frame_cache import cached
from surefoot.data.left_out import key_of, stated

if TYPE_CHECKING:
    from surefoot.data.formats.mapping import LogMapping

Array = np.ndarray[Any, Any]

STATE, ENVIRONMENT, ACTION, NEXT = (
    "observation.state",
    "observation.environment_state",
    "action",
    "next.observation.state",
)
REWARD, DONE, SUCCESS, TERMINATED, COST = "next.reward", "next.done", "next.success", "next.terminated", "next.cost"
EPISODE, EXTRAS = "episode_index", "extras."
OF_EXTRAS = {"complementary_info.is_intervention": "intervened", "complementary_info.discrete_penalty": "penalties"}
"""Features of LeRobot's -> extras: whether a person chose the action, and what a gripper's command cost."""
OF_EPISODES, VERSIONS = "v2.", ("v2.", "v3.")
"""Versions with files of an episode each, and all that are read."""
COUNTS = ("index", "frame_index", "timestamp")
"""Features that number frames, by whose order and rate the rows stand."""
UNKNOWN_ENDS = "episode ends taken as cut off"
FPS = (1e-3, 1e6)
"""Fewest and most steps a second of a dataset."""
_SHAPE = Many(Number(1, 2**31, whole=True), 0, 5)
INFO = Record(
    {
        "codebase_version": Text(40),
        "features": Table(Record({"dtype": Text(40), "shape": _SHAPE}, others=True)),
        "fps": Number(*FPS),
    },
    others=True,
)
CELLS = 8
"""Pictures as PNG or JPEG that are read at once."""
_KEY = re.compile(r"[\w.\-]+")


def is_lerobot(folder: pathlib.Path) -> bool:
    """Whether a folder holds a LeRobot dataset."""
    return (folder / "meta" / "info.json").is_file()


def info_of(folder: pathlib.Path) -> dict[str, Any]:
    """What `meta/info.json` says, checked.

    Raises:
        DataError: it is damaged, or of another version than 2 and 3.
    """
    try:
        info: dict[str, Any] = read_json(folder / "meta" / "info.json", INFO)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    version = info["codebase_version"]
    if not version.startswith(VERSIONS):
        raise DataError(
            f"{folder}: is a LeRobot dataset of version {version}, and v2 and v3 are read; convert it by LeRobot's own "
            "scripts, of version 2 by lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    if odd := [key for key in info["features"] if not _KEY.fullmatch(key)]:
        raise DataError(f"{folder}: the feature {odd[0]!r} has a name that is no column's")
    return info


def table(folder: pathlib.Path, mapping: LogMapping | None = None) -> columns.Table:
    """The features of a dataset by name; pictures are decoded, and scaled as the mapping says."""
    info = info_of(folder)
    size = None if mapping is None else mapping.image_size
    names = {key: f"{one['dtype']} {one['shape']}" for key, one in info["features"].items()}

    def read(wanted: Sequence[str], text: str | None) -> dict[str, Array]:
        plain = [key for key in wanted if info["features"][key]["dtype"] not in ("image", "video")]
        found = _numbers(folder, [*plain, "index"] if "index" in names and "index" not in plain else plain)
        rows = len(next(iter(found.values()))) if found else 0
        total = info.get("total_frames")
        if found and info["codebase_version"].startswith(OF_EPISODES) and isinstance(total, int) and rows != total:
            raise DataError(
                f"{folder}: has {rows} frames, and meta/info.json says {total}: an episode's file is missing, or there "
                "too often; fetch it again"
            )
        for key in wanted:
            if key not in found:
                video = info["features"][key]["dtype"] == "video"
                taken = _from_videos(folder, key, info, size, rows) if video else _from_cells(folder, key, size)
                found[key] = pictures.stack(f"{folder}, {key!r}", taken, rows)
        return {key: found[key] for key in wanted}

    return columns.Table(folder, names, read, episodes=(EPISODE,) if EPISODE in names else ())


def read(folder: pathlib.Path, source: Source, view: str = "corrected", cameras: Cameras | None = None) -> Dataset:
    """The dataset in a folder, its states and actions.

    Pictures are read where they are asked for, by keys that are the last parts of their names: decoded once, in order,
    into the cache of frames. Or they come by a mapping (docs/own_data.md).

    Its SHA-256 is of all files in the folder and their names, videos included; files that have not changed since the
    last time are not read for it (`files.digest_of`).

    Raises:
        DataError: the folder is damaged, of another version, or lacks states or actions.
        MissingExtraError: pyarrow is not installed.
    """
    digest = digest_of(folder)
    info, held = info_of(folder), table(folder)
    features = {key: one for key, one in info["features"].items() if one["dtype"] not in ("image", "video", "string")}
    states = [key for key in (STATE, ENVIRONMENT) if key in features]
    if not states or ACTION not in features:
        missing = ACTION if states else STATE
        raise DataError(
            f"{folder}: has no feature {missing!r} of numbers: {nearest(missing, list(info['features']))}; a mapping "
            "can name others (docs/own_data.md)"
        )
    wanted = [key for key in (REWARD, DONE, SUCCESS, TERMINATED, COST, NEXT, "valid", "next_known") if key in features]
    extras = {key: key.removeprefix(EXTRAS) for key in features if key.startswith(EXTRAS)}
    extras |= {key: extra for key, extra in OF_EXTRAS.items() if key in features and extra not in extras.values()}
    got = held.read([*states, ACTION, EPISODE, *wanted, *extras])
    name = str(folder)
    arrays, attributes = _arrays(name, got, states), _attributes(info, states)
    if REWARD not in got:
        attributes[REWARDS] = NO_REWARDS
    pictured = camera_features(folder, info)
    if pictured:
        attributes[CAMERAS] = json.dumps({key: info["features"][name]["shape"] for key, name in pictured.items()})
    taken = {} if cameras is None else {key: pictured[key] for key in cameras.chosen(name, pictured)}
    read_of_steps = (key for key in wanted if key != NEXT or len(states) == 1)
    used = {*taken.values(), *states, ACTION, EPISODE, *extras, *read_of_steps, *COUNTS}
    left = {key: f"{one['dtype']} {one['shape']}" for key, one in info["features"].items() if key not in used}
    attributes |= stated(left)
    ends, named = _ends(name, got)
    arrays |= ends
    own: dict[str, Any] = {extra: _extra(name, key, extra, got[key]) for key, extra in extras.items()}
    if taken and cameras is not None:
        arrays, named_arrays = _seen(folder, info, taken, cameras, arrays, digest)
        own |= named_arrays
        if cameras.size is not None:
            attributes[SCALED_BY] = RULE
    known = dataclasses.replace(source.with_attributes(attributes), sha256=digest)
    made = dataset_from_arrays(arrays, known, view, own)
    if named is None and DONE in got:
        made = made.replace(warnings={**made.warnings, UNKNOWN_ENDS: int((ends["terminals"] | ends["timeouts"]).sum())})
    return made


def _arrays(name: str, got: Mapping[str, Array], states: Sequence[str]) -> dict[str, Array]:
    """Columns of a dataset but for the ends of episodes; rewards are 0 where there are none."""
    observations = [exact_matrix(name, key, got[key]) for key in states]
    arrays = {"observations": np.concatenate(observations, 1) if len(observations) > 1 else observations[0]}
    arrays[ACTION + "s"] = got[ACTION]
    if NEXT in got and len(states) == 1:
        arrays["next_observations"] = got[NEXT]
    for key, column in ((COST, "costs"), ("valid", "valid"), ("next_known", "next_known")):
        if key in got:
            arrays[column] = got[key]
    has_rewards = REWARD in got
    arrays["rewards"] = (
        exact_vector(name, REWARD, got[REWARD]) if has_rewards else np.zeros(len(got[ACTION]), np.float32)
    )
    return arrays


def _attributes(info: Mapping[str, Any], states: Sequence[str]) -> dict[str, Any]:
    """What the folder says of itself, and the names of its states' and actions' numbers."""
    attributes: dict[str, Any] = {"kind": "lerobot", "fps": info["fps"], "lerobot_version": info["codebase_version"]}
    if isinstance(info.get("surefoot_attributes"), dict):
        kept = info["surefoot_attributes"]
        attributes = {key: one for key, one in kept.items() if isinstance(one, str | int | float | bool)} | attributes
    for key, of in ((OBSERVATION_NAMES, states), (ACTION_NAMES, [ACTION])):
        if (reported := _names([info["features"][one] for one in of])) is not None:
            attributes[key] = json.dumps(reported)
    return attributes


def _ends(name: str, got: Mapping[str, Array]) -> tuple[dict[str, Array], str | None]:
    """Terminals and time-outs by the episodes' numbers, and the feature that says which end was a terminal one."""
    ids = got[EPISODE]
    last = np.append(np.diff(ids) != 0, True)
    named = TERMINATED if TERMINATED in got else SUCCESS if SUCCESS in got else None
    ended = last & flags(name, named, got[named]) if named is not None else np.zeros(len(ids), bool)
    return {"terminals": ended, "timeouts": last & ~ended}, named


def _extra(name: str, key: str, extra: str, values: Array) -> Array:
    """A further column; whether a person acted as truth values, one a row."""
    if extra not in OF_EXTRAS.values():
        return values
    row = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    return flags(name, key, row) if extra == "intervened" else exact_vector(name, key, row)


def camera_features(folder: pathlib.Path, info: dict[str, Any]) -> dict[str, str]:
    """Key of a camera -> its feature.

    Raises:
        DataError: two have the same key.
    """
    found: dict[str, str] = {}
    for name, one in info["features"].items():
        if one["dtype"] not in ("image", "video"):
            continue
        if (key := key_of(name)) in found:
            raise DataError(
                f"{folder}: {found[key]!r} and {name!r} end alike; name them in a mapping (docs/own_data.md)"
            )
        found[key] = name
    return found


def _seen(
    folder: pathlib.Path,
    info: dict[str, Any],
    taken: dict[str, str],
    cameras: Cameras,
    arrays: dict[str, Array],
    digest: str | None,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Flat arrays without the state, and named ones: pictures from the cache, and the state."""
    rows, size = len(arrays["actions"]), cameras.size
    frames: dict[str, Array] = {}
    for key, name in taken.items():
        video = info["features"][name]["dtype"] == "video"

        def each(name: str = name, video: bool = video) -> Iterator[Array]:
            return _from_videos(folder, name, info, size, rows) if video else _from_cells(folder, name, size)

        where = f"{folder}, {name!r}"
        frames[key] = cached(where, str(digest), name, rows, size, each, cameras.folder, cameras.done)
    return beside_state(arrays, frames, str(folder))


def _names(features: Sequence[dict[str, Any]]) -> list[str] | None:
    """Names of the numbers of features, a list or one under a word such as `motors`; None where one has none."""
    found: list[str] = []
    for feature in features:
        names = feature.get("names")
        if isinstance(names, dict) and len(names) == 1:
            names = next(iter(names.values()))
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            return None
        found += names
    return found


def _files(folder: pathlib.Path, within: str) -> list[pathlib.Path]:
    """The Parquet files of a part of a dataset of version 3, or the data files of one of version 2, in their order."""
    found: list[pathlib.Path] = []
    for name in ("file-*.parquet", "episode_*.parquet"):
        found = found or [path for path in (folder / within).glob(f"chunk-*/{name}") if path.is_file()]
    if not found:
        raise DataError(
            f"{folder}: has no file {within}/chunk-*/file-*.parquet, nor episode_*.parquet as version 2; fetch it again"
        )
    return sorted(found, key=lambda path: (path.parent.name, path.name))


def _numbers(folder: pathlib.Path, keys: Sequence[str]) -> dict[str, Array]:
    """Columns of all data files, frames in the order of their index."""
    files = _files(folder, "data")
    parts: dict[str, list[Array]] = {key: [] for key in keys}
    for path in files:
        with columns.parquet_errors(path):
            file = columns.parquet().ParquetFile(path)
            columns.check_unpacked(path, file, keys)
            if missing := [key for key in keys if key not in file.schema_arrow.names]:
                raise DataError(f"{path}: the column {missing[0]!r} is missing, which meta/info.json names")
            held = file.read(list(keys))
        for key in keys:
            parts[key].append(columns.arrow_array(path, key, held.column(key)))
    found = {key: part[0] if len(part) == 1 else concatenated(str(folder), key, part) for key, part in parts.items()}
    if "index" in found and (np.diff(found["index"]) != 1).any():
        raise DataError(
            f"{folder}: 'index' does not count the frames through all files: one is missing, or there twice"
        )
    return found


def _from_cells(folder: pathlib.Path, key: str, size: pictures.Size | None) -> Iterator[Array]:
    """Pictures that stand in the Parquet files themselves."""
    for path in _files(folder, "data"):
        with columns.parquet_errors(path):
            file = columns.parquet().ParquetFile(path)
            columns.check_unpacked(path, file, [key])
            for batch in file.iter_batches(batch_size=CELLS, columns=[key]):
                for place in range(len(batch)):  # one by one: python's copy of a picture is as large as Arrow's
                    cell = batch.column(0)[place].as_py()
                    content = cell.get("bytes") if isinstance(cell, dict) else None
                    if content is None:
                        raise DataError(f"{path}: a picture of {key!r} is not in the file; fetch the dataset whole")
                    yield pictures.decoded(f"{path}, {key!r}", content, size)


def _from_videos(
    folder: pathlib.Path, key: str, info: dict[str, Any], size: pictures.Size | None, rows: int
) -> Iterator[Array]:
    """Pictures of videos, in which episodes stand one after another, of a dataset of so many rows."""
    if str(info.get("codebase_version", "")).startswith(OF_EPISODES):
        yield from _from_episode_videos(folder, key, info, size)
        return
    prefix = f"videos/{key}/"
    wanted = ["episode_index", "length", *(f"{prefix}{one}" for one in ("chunk_index", "file_index", "from_timestamp"))]
    episodes: dict[str, list[Array]] = {name: [] for name in wanted}
    for path in _files(folder, "meta/episodes"):
        held = columns.parquet_table(path).read(wanted)
        for name in wanted:
            episodes[name].append(held[name])
    _, lengths, chunks, numbers, starts = (np.concatenate(episodes[name]) for name in wanted)
    if not np.isfinite([chunks, numbers, starts]).all() or math.isnan(float(info["fps"])):
        raise DataError(f"{folder}: meta/episodes has a file or time of {key!r} that is not finite")
    if not (lengths >= 0).all() or lengths.sum() != rows:
        raise DataError(f"{folder}: the lengths in meta/episodes are of {lengths.sum():g} frames, and there are {rows}")
    for chunk, number in dict.fromkeys(zip(chunks.tolist(), numbers.tolist(), strict=True)):
        held_here = np.flatnonzero((chunks == chunk) & (numbers == number))
        if (np.diff(starts[held_here]) < 0).any():
            raise DataError(
                f"{folder}: meta/episodes has episodes of {key!r} in file {int(number)} of chunk {int(chunk)} whose "
                "times do not increase; a video holds episodes in their order"
            )
        seconds = np.concatenate([starts[k] + np.arange(int(lengths[k])) / info["fps"] for k in held_here])
        path = folder / "videos" / key / f"chunk-{int(chunk):03d}" / f"file-{int(number):03d}.mp4"
        yield from pictures.frames(path, seconds.tolist(), 0.5 / info["fps"], size)


def _from_episode_videos(
    folder: pathlib.Path, key: str, info: dict[str, Any], size: pictures.Size | None
) -> Iterator[Array]:
    """Pictures of a dataset of version 2, whose episodes have a video each, named as their Parquet files."""
    for path in _files(folder, "data"):
        with columns.parquet_errors(path):
            rows = columns.parquet().ParquetFile(path).metadata.num_rows
        video = folder / "videos" / path.parent.name / key / f"{path.stem}.mp4"
        seconds = (np.arange(rows) / info["fps"]).tolist()
        yield from pictures.frames(video, seconds, 0.5 / info["fps"], size)
