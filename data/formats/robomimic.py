"""robomimic's HDF5 layout, read and written: a group `data/demo_K` for each episode.

A demonstration holds `actions` (T, A), `obs/KEY` and `next_obs/KEY` (T, ...), and mostly `rewards` and `dones` (T,).
Source: robomimic's documentation, "Dataset Contents and Structure" (Mandlekar et al., "What Matters in Learning from
Offline Human Demonstrations for Robot Manipulation").
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.core.base.files import written_aside
from surefoot.core.base.scaling import RULE, scaled
from surefoot.core.base.unpacking import is_picture
from surefoot.data.cameras import CAMERAS, Cameras
from surefoot.data.checks import concatenated, exact_matrix, exact_vector, flags, validate
from surefoot.data.dataset import NO_REWARDS, REWARDS, SCALED_BY, Dataset
from surefoot.data.files import sha256_of
from surefoot.data.formats.columns import Table
from surefoot.data.formats.flat import Source, dataset_from_arrays, flag_columns
from surefoot.data.formats.hdf5 import check_seal, read_hdf5
from surefoot.data.formats.named import beside_state, need_one_vector
from surefoot.data.frame_cache import cached
from surefoot.data.left_out import stated

Array = np.ndarray[Any, Any]

USUAL = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""The observations that robomimic's own configurations read, in their order."""
DEMO = "demo"
"""Column of a table that numbers the demonstrations."""
DONES = "surefoot_dones"
"""Attribute of files that we wrote: their `dones` are terminations and nothing else."""
ALONE = "flat"
"""Key of an observation that is one vector, as robomimic's gym environments give it."""
STEPS_AT_ONCE = 4_000
"""Of demonstrations whose pictures are read at once: 85 MB of 84 x 84 pixels."""
_ROW = re.compile(r"data/demo_(\d+)/(?:(obs|next_obs)/)?([^/]+)")


def fits(names: Iterable[str]) -> bool:
    """Whether a file with these datasets is of this layout."""
    return any(re.fullmatch(r"data/demo_\d+/actions", name) for name in names)


def read(
    path: pathlib.Path,
    source: Source,
    view: str = "corrected",
    keys: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    cameras: Cameras | None = None,
) -> Dataset:
    """The dataset in a robomimic file.

    Observations are vectors joined in the order of `keys`. A demonstration ends with a termination where its last step
    is done with a reward above 0, as success is; else it is cut off. Without rewards the data can only be cloned.

    Args:
        path: of the file.
        source: what is known of it.
        view: as `formats.flat`.
        keys: of observations; None: those that robomimic's configurations read, or else all vectors in alphabetical
            order.
        names: of the file's datasets, where they have been read before.
        cameras: that are read too, by their keys, as `agentview_image`, into the cache of frames, and the vectors as
            `state`; None: none, unless there are no vectors. What followed a picture is the next step's; `next_obs` of
            pictures are not read, so that of a demonstration's last step none is known.

    Raises:
        DataError: a demonstration lacks something that others have, or is inconsistent; names it.
    """
    names = read_hdf5(path, []).names if names is None else names
    first = min(int(match[1]) for match in map(_ROW.fullmatch, names) if match)
    held = sorted(name.split("/")[-1] for name in names if name.startswith(f"data/demo_{first}/obs/"))
    if not held:
        raise DataError(
            f"{path}: 'data/demo_{first}' has no observations ('obs'); extract them with robomimic's scripts"
        )
    shapes = read_hdf5(path, [f"data/demo_{first}/obs/{key}" for key in held], shapes_alone=True).arrays
    there = {name.split("/")[-1]: array for name, array in shapes.items()}
    pictured = [key for key, array in there.items() if is_picture(array.shape, array.dtype)]
    if keys is None:
        vectors = [key for key, array in there.items() if array.ndim <= 2 and array.dtype != np.uint8]
        keys = USUAL if set(USUAL) <= set(vectors) else sorted(vectors)
    if not keys and not pictured:
        raise DataError(f"{path}: 'data/demo_{first}' has neither vectors nor pictures, only {', '.join(held)}")
    if cameras is None and not keys:
        cameras = Cameras()
    taken = [] if cameras is None else cameras.chosen(str(path), pictured)
    observed = "|".join(map(re.escape, keys)) if keys else "(?!)"
    wanted = rf"data/demo_\d+/(actions|rewards|dones|costs|valid|next_known|(next_)?obs/({observed}))"
    contents = read_hdf5(path, [], pattern=wanted)
    demonstrations: dict[int, dict[str, Array]] = {}
    for name, array in contents.arrays.items():
        match = _ROW.fullmatch(name)
        assert match is not None
        demonstrations.setdefault(int(match[1]), {})[f"{match[2]}/{match[3]}" if match[2] else match[3]] = array
    exact = DONES in contents.attributes
    parts = [_episode(f"{path}, data/demo_{k}", one, keys, exact) for k, one in sorted(demonstrations.items())]
    shared = set.intersection(*(set(part) for part in parts))
    for k, part in zip(sorted(demonstrations), parts, strict=True):
        if odd := set(part) - shared:
            raise DataError(f"{path}: 'data/demo_{k}' has {min(odd)!r}, and another demonstration has not")
    arrays = {key: concatenated(str(path), key, [part[key] for part in parts]) for key in shared}
    attributes: dict[str, Any] = {"kind": "robomimic", "observation_keys": ",".join(keys)}
    if pictured:
        attributes[CAMERAS] = json.dumps({key: list(there[key].shape[1:]) for key in pictured})
    if "rewards" not in arrays:
        arrays["rewards"], attributes[REWARDS] = np.zeros(len(arrays["actions"]), np.float32), NO_REWARDS
    read = {"actions", "rewards", "dones", "costs", "valid", "next_known", *(f"obs/{key}" for key in keys)}
    read |= {f"next_obs/{key}" for key in held} | {f"obs/{key}" for key in taken}
    attributes |= stated({name: "an array" for name in _features(names) if name not in read})
    extras: dict[str, Any] = {}
    if taken and cameras is not None:
        lengths = {k: len(part["actions"]) for k, part in zip(sorted(demonstrations), parts, strict=True)}
        frames = {key: _pictures(path, source, key, lengths, cameras) for key in taken}
        arrays, extras = beside_state(arrays, frames, str(path))
        if cameras.size is not None:
            attributes[SCALED_BY] = RULE
    known = dataclasses.replace(source, attributes={**source.attributes, **attributes})
    return dataset_from_arrays(arrays, known, view, extras)


def _pictures(path: pathlib.Path, source: Source, key: str, lengths: Mapping[int, int], cameras: Cameras) -> Array:
    """(N, ...) pictures of a camera from the cache, into which some demonstrations at a time are read.

    Args:
        path: of the file.
        source: with its SHA-256.
        key: of the camera.
        lengths: number of a demonstration -> its steps, in order.
        cameras: size and place.
    """

    def each() -> Iterator[Array]:
        sealed = check_seal(path)
        for some in _at_once(lengths):
            numbers = "|".join(map(str, some))
            arrays = read_hdf5(path, [], pattern=rf"data/demo_({numbers})/obs/{re.escape(key)}", sealed=sealed).arrays
            for k in some:
                held = arrays.get(f"data/demo_{k}/obs/{key}")
                if held is None or len(held) != lengths[k]:
                    found = "is missing" if held is None else f"has {len(held)} rows and 'actions' {lengths[k]}"
                    raise DataError(f"{path}, data/demo_{k}: 'obs/{key}' {found}")
                for picture in held:
                    yield scaled(picture, cameras.size)

    count, digest = sum(lengths.values()), str(source.sha256 or sha256_of(path))
    return cached(str(path), digest, key, count, cameras.size, each, cameras.folder, cameras.done)


def _at_once(lengths: Mapping[int, int]) -> Iterator[list[int]]:
    """Demonstrations that are read together, of about `STEPS_AT_ONCE` steps."""
    some: list[int] = []
    for k in lengths:
        some.append(k)
        if sum(lengths[one] for one in some) >= STEPS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def table(path: pathlib.Path, names: Iterable[str]) -> Table:
    """The features of all demonstrations as columns, such as `obs/agentview_image`, and `demo`, which tells them apart.

    Args:
        path: of a file of this layout.
        names: of its datasets.
    """

    def read(wanted: Sequence[str], text: str | None) -> dict[str, Array]:
        plain = "|".join(re.escape(name) for name in wanted if name != DEMO) or "actions"
        held: dict[int, dict[str, Array]] = {}
        for whole, array in read_hdf5(path, [], pattern=rf"data/demo_\d+/({plain})").arrays.items():
            number, _, feature = whole.removeprefix("data/demo_").partition("/")
            held.setdefault(int(number), {})[feature] = array
        for k, one in held.items():
            for name in wanted:
                if name != DEMO and name not in one:
                    raise DataError(f"{path}: 'data/demo_{k}' has no {name!r}, and another demonstration has")
        parts = [held[k] for k in sorted(held)]
        found = {name: concatenated(str(path), name, [one[name] for one in parts]) for name in wanted if name != DEMO}
        if DEMO in wanted:
            lengths = [len(next(iter(one.values()))) for one in parts]
            found[DEMO] = np.repeat(np.array(sorted(held), np.float64), lengths)
        return {name: found[name] for name in wanted}

    return Table(path, {DEMO: "numbers", **dict.fromkeys(_features(names), "an array")}, read, episodes=(DEMO,))


def _features(names: Iterable[str]) -> list[str]:
    """What demonstrations hold, without their own names, in alphabetical order."""
    return sorted({name.split("/", 2)[2] for name in names if re.fullmatch(r"data/demo_\d+/.+", name)})


def _episode(name: str, held: dict[str, Array], keys: Sequence[str], exact: bool) -> dict[str, Array]:
    """One demonstration's columns under D4RL's names."""
    missing = [key for key in ("actions", *(f"obs/{key}" for key in keys)) if key not in held]
    if missing:
        raise DataError(f"{name}: {missing[0]!r} is missing")
    found: dict[str, Array] = {"actions": exact_matrix(name, "actions", held["actions"])}
    for prefix, key in (("obs", "observations"), ("next_obs", "next_observations")):
        if keys and all(f"{prefix}/{one}" in held for one in keys):
            parts = [exact_matrix(name, f"{prefix}/{one}", held[f"{prefix}/{one}"]) for one in keys]
            if odd := [one for one, part in zip(keys, parts, strict=True) if len(part) != len(found["actions"])]:
                raise DataError(f"{name}: '{prefix}/{odd[0]}' has another number of rows than 'actions'")
            found[key] = np.concatenate(parts, 1)
    rows = len(found["actions"])
    for key in ("rewards", "costs"):
        if key in held:
            found[key] = exact_vector(name, key, held[key])
    done = flags(name, "dones", held["dones"]) if "dones" in held else np.zeros(rows, bool)
    if any(len(array) != rows for array in (done, *found.values())):
        raise DataError(f"{name}: its arrays have different numbers of rows: each step has one in each")
    last = np.arange(rows) == rows - 1
    found["terminals"] = last & done & (exact | (found.get("rewards", np.zeros(rows)) > 0))
    found["timeouts"] = last & ~found["terminals"]
    for key in ("valid", "next_known"):
        if key in held:
            found[key] = flags(name, key, held[key])
    return found


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write the dataset with its observations under the key `flat`; the file appears whole or not at all.

    Raises:
        DataError: the dataset breaks its invariants, is of images, or the file can't be written.
    """
    validate(dataset)
    need_one_vector(dataset, "robomimic's layout as we write it")
    image = io.BytesIO()
    starts = dataset.episode_starts
    with h5py.File(image, "w") as file:
        group = file.create_group("data")
        group.attrs["total"] = len(dataset)
        made: dict[str, Any] = {
            "env_name": dataset.env_id or "",
            "type": 2,
            "env_kwargs": {},
        }  # 2: robomimic's gym environments
        group.attrs["env_args"] = json.dumps(made)
        file.attrs[DONES] = "terminations"
        if dataset.env_id is not None:
            file.attrs["env_id"] = dataset.env_id
        for k, (start, stop) in enumerate(itertools.pairwise(starts)):
            rows = slice(int(start), int(stop))
            columns = {
                "actions": dataset.actions,
                f"obs/{ALONE}": dataset.observations,
                f"next_obs/{ALONE}": dataset.next_observations,
                "dones": dataset.terminations.astype(np.uint8),
                "valid": dataset.transitions.astype(np.uint8),
                **{key: column.astype(np.uint8) for key, column in flag_columns(dataset).items()},
            }
            if dataset.has_rewards:
                columns["rewards"] = dataset.rewards
            if dataset.costs is not None:
                columns["costs"] = dataset.costs
            one = group.create_group(f"demo_{k}")
            one.attrs["num_samples"] = int(stop - start)
            for key, column in columns.items():
                one.create_dataset(key, data=column[rows])
    with written_aside(path, DataError) as aside, open(aside, "wb") as raw:
        raw.write(image.getbuffer())
        raw.flush()
        os.fsync(raw.fileno())
