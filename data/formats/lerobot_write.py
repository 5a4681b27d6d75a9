"""LeRobot datasets of version 3, written (docs/own_data.md says which features); pictures as PNG, without loss.

Source: huggingface/lerobot, docs/source/lerobot-dataset-v3.mdx.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import why
from surefoot.core.base.spec import VECTOR
from surefoot.data.checks import validate
from surefoot.data.dataset import NAMED, Dataset
from surefoot.data.formats import pictures
from surefoot.data.formats.columns import parquet
from surefoot.data.formats.flat import flag_columns
from surefoot.data.formats.lerobot import ACTION, COST, DONE, EXTRAS, FPS, NEXT, OF_EXTRAS, REWARD, STATE, TERMINATED

Array = np.ndarray[Any, Any]

VERSION = "v3.0"
USUAL_FPS = 50
FILE_BYTES = 100 << 20
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
FRAMES_OF_STATISTICS = 100
"""Pictures that their statistics are of."""


def fps_of(dataset: Dataset) -> int | float:
    """Steps a second that the data say they were recorded at, or `USUAL_FPS` where they don't.

    A whole number is an int, as LeRobot's recorder writes it; another one stays what it is, so that time does.
    """
    reported = dataset.attributes.get("fps")
    if not isinstance(reported, int | float) or not FPS[0] <= reported <= FPS[1]:
        return USUAL_FPS
    return int(reported) if reported == int(reported) else float(reported)


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset as a folder, which appears whole or not at all.

    Raises:
        DataError: the dataset breaks its invariants, its pictures have other channels than 1 or 3, or the folder can't
            be written.
        MissingExtraError: pyarrow is not installed.
    """
    validate(dataset)
    parquet()
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        aside.mkdir(parents=True)
        _write(dataset, aside)
        os.replace(aside, path)
    except OSError as failure:
        raise DataError(f"{path}: can't be written: {why(failure)}. Nothing was changed") from failure
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(dataset: Dataset, folder: pathlib.Path) -> None:
    import pyarrow as pa

    columns, images = _features(dataset), _images(dataset)
    starts, lengths = dataset.episode_starts, dataset.episode_lengths
    fps = fps_of(dataset)
    frame = np.arange(len(dataset)) - np.repeat(starts[:-1], lengths)
    columns |= {
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame.astype(np.int64),
        "episode_index": dataset.episode_ids,
        "index": np.arange(len(dataset), dtype=np.int64),
        "task_index": np.zeros(len(dataset), np.int64),
    }
    names = _names(dataset)
    features: dict[str, Any] = {
        key: {"dtype": str(array.dtype), "shape": list(array.shape[1:]) or [1], "names": names.get(key)}
        for key, array in columns.items()
    }
    for key, array in images.items():
        height, width, channels = _shape(array[0])
        axes = ["height", "width", "channels"]
        features[key] = {"dtype": "image", "shape": [height, width, channels], "names": axes}
    files = _file_of_episode(columns, images, lengths)
    rows_of_file = np.repeat(files, lengths)
    for number in range(int(files[-1]) + 1):
        rows = np.flatnonzero(rows_of_file == number)
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        arrays = {key: _arrow(array[part]) for key, array in columns.items()}
        for key, array in images.items():
            cells = [{"bytes": pictures.encoded(picture), "path": None} for picture in array[part]]
            arrays[key] = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        _put(pa.table(arrays), folder / "data" / "chunk-000" / f"file-{number:03d}.parquet")
    task = str(dataset.attributes.get("task") or dataset.env_id or pathlib.Path(dataset.name).stem)
    episodes = {
        "episode_index": pa.array(range(len(lengths)), pa.int64()),
        "tasks": pa.array([[task]] * len(lengths), pa.list_(pa.string())),
        "length": _arrow(lengths),
        "data/chunk_index": _arrow(np.zeros(len(lengths), np.int64)),
        "data/file_index": _arrow(files),
        "dataset_from_index": _arrow(starts[:-1]),
        "dataset_to_index": _arrow(starts[1:]),
        "meta/episodes/chunk_index": _arrow(np.zeros(len(lengths), np.int64)),
        "meta/episodes/file_index": _arrow(np.zeros(len(lengths), np.int64)),
    }
    _put(pa.table(episodes), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    _put(_tasks(task), folder / "meta" / "tasks.parquet")
    statistics = {key: _statistics(array) for key, array in columns.items()}
    statistics |= {key: _picture_statistics(array) for key, array in images.items()}
    _json(folder / "meta" / "stats.json", statistics)
    attributes = {**dataset.attributes, **({} if dataset.env_id is None else {"env_id": dataset.env_id})}
    info = {
        "codebase_version": VERSION,
        "robot_type": attributes.get("robot_type"),
        "total_episodes": len(lengths),
        "total_frames": len(dataset),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
        "surefoot_attributes": attributes,
    }
    _json(folder / "meta" / "info.json", info)


def _features(dataset: Dataset) -> dict[str, Array]:
    """Columns of numbers by the feature's name."""
    found: dict[str, Array] = {}
    if dataset.observation_dim:
        found |= {STATE: dataset.observations, NEXT: dataset.next_observations}
    vectors = {key: array for key, array in dataset.extras.items() if key.startswith(NAMED) and array.ndim == 2}
    for key, array in vectors.items():
        found[f"observation.{key.removeprefix(NAMED)}"] = array
        found[f"next.observation.{key.removeprefix(NAMED)}"] = dataset.extras[f"next_{key}"]
    found[ACTION] = dataset.actions
    if dataset.has_rewards:
        found[REWARD] = dataset.rewards
    found |= {DONE: dataset.terminations | dataset.truncations, TERMINATED: dataset.terminations}
    if dataset.costs is not None:
        found[COST] = dataset.costs
    found |= flag_columns(dataset)
    for key, array in dataset.extras.items():
        if not key.startswith((NAMED, f"next_{NAMED}")):
            own = next((name for name, extra in OF_EXTRAS.items() if extra == key), EXTRAS + key.replace("/", "."))
            found[own] = array
    return {key: array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for key, array in found.items()}


def _names(dataset: Dataset) -> dict[str, list[str]]:
    """Names of the numbers of an observation's only vector and of an action, where the data have them, by feature."""
    found = {}
    if dataset.observation_names is not None:
        key = next(key for key, array in dataset.arrays.items() if not array.image)
        features = (STATE, NEXT) if key == VECTOR else (f"observation.{key}", f"next.observation.{key}")
        found = {feature: list(dataset.observation_names) for feature in features}
    return found if dataset.action_names is None else {**found, ACTION: list(dataset.action_names)}


def _images(dataset: Dataset) -> dict[str, Array]:
    found = {key: array for key, array in dataset.extras.items() if key.startswith(NAMED) and array.ndim > 2}
    for key, array in found.items():
        if array.ndim == 5 or _shape(array[0])[2] not in (1, 3):
            raise DataError(
                f"{dataset.name}: {key!r} has pictures of shape {array.shape[1:]}; LeRobot's have 1 or 3 colours"
            )
    return {f"observation.images.{key.removeprefix(NAMED)}": array for key, array in found.items()}


def _shape(picture: Array) -> tuple[int, int, int]:
    """Height, width and colours."""
    if picture.ndim == 2:
        return picture.shape[0], picture.shape[1], 1
    first, *_, last = picture.shape
    return (picture.shape[1], last, first) if first < last else (first, picture.shape[1], last)


def _file_of_episode(columns: dict[str, Array], images: dict[str, Array], lengths: Array) -> Array:
    """(E,) int64: the number of the file that each episode stands in, from 0 without gaps."""
    row = sum(array.nbytes // len(array) for array in columns.values())
    row += sum(array.nbytes // len(array) // 2 for array in images.values())  # as PNG, roughly
    started = np.append(0, np.cumsum(lengths)[:-1]) * row // FILE_BYTES  # jumps where an episode is larger than a file
    return np.unique(started, return_inverse=True)[1].astype(np.int64)


def _arrow(array: Array) -> Any:
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in array.shape[:0:-1]:
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _put(table: Any, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet().write_table(table, path, compression="snappy")


def _json(path: pathlib.Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, default=str) + "\n", encoding="utf-8")


def _tasks(task: str) -> Any:
    """The table of tasks as pandas would have written it: the sentence is the index."""
    import pyarrow as pa

    index = "__index_level_0__"
    described: list[dict[str, str | None]] = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"},
    ]
    reported = {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [{**one, "metadata": None} for one in described],
        "pandas_version": "2.0.0",
    }
    made = pa.table({"task_index": pa.array([0], pa.int64()), index: pa.array([task])})
    return made.replace_schema_metadata({b"pandas": json.dumps(reported).encode()})


def _statistics(array: Array) -> dict[str, Any]:
    """What LeRobot's policies normalise by: of each number of a feature."""
    values = np.asarray(array, np.float64).reshape(len(array), math.prod(array.shape[1:]))
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    found |= {
        f"q{round(100 * q):02d}": one for q, one in zip(QUANTILES, np.quantile(values, QUANTILES, 0), strict=True)
    }
    shape: Sequence[int] = array.shape[1:] or (1,)
    return {key: one.reshape(shape).tolist() for key, one in found.items()} | {"count": [len(array)]}


def _picture_statistics(array: Array) -> dict[str, Any]:
    """Of each colour, from 0 to 1, over some pictures."""
    chosen = array[np.linspace(0, len(array) - 1, min(len(array), FRAMES_OF_STATISTICS)).astype(int)]
    channels = _shape(chosen[0])[2]
    last = chosen if chosen.ndim == 4 and chosen.shape[-1] == channels else np.moveaxis(chosen, 1, -1)
    found = _statistics(last.reshape(-1, channels) / 255)
    return {
        key: found[key] if key == "count" else np.reshape(one, (channels, 1, 1)).tolist() for key, one in found.items()
    }
