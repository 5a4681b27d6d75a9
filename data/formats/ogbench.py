"""OGBench's and OCBench's NPZ files, read and written: whole recordings, with rewards only where a task was named.

OGBench: `observations`, `actions`, `terminals`, and the simulator's state before each action (`qpos`, `qvel`,
`button_states`); perhaps `rewards` and `masks`. `terminals` marks the last row of a recording, nothing more; that row
only supplies the observation after the row before. OCBench: `observations` has one row more than `actions` in each
recording, `terminals` marks its last action, and `observation_interval` must be 1.

Visual datasets: `observations` are pictures (N, H, W, C) of bytes. Each is held once, under the key `image`, as a lone
picture of an environment. In the compact form `valids` is 0 in the last row of each recording, in place of `terminals`.

`masks` is 0 where the task is solved and bootstrapping stops, though the recording runs on. In a `Dataset` such a row
is a termination, so that an episode ends with it and another begins with the next row
(`data.dataset.recording_ends` joins them again).
Rewards that follow success are so never summed with those before it, as they are where windows of several steps are cut
from the flat file (Li, Zhou and Levine, "Reinforcement Learning with Action Chunking", 2025, whose code does that).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.files import written_aside
from surefoot.core.base.precision import warnings_of
from surefoot.core.base.spec import IMAGE
from surefoot.core.base.unpacking import is_picture
from surefoot.data.checks import check_extra, flags, matrix, require_keys, validate, vector
from surefoot.data.dataset import NO_TASK, REWARDS, RUNS_ON, Dataset, recording_ends
from surefoot.data.formats.chained import need_chain, with_known_ends
from surefoot.data.formats.flat import LAYOUT_VERSION, OWN_MARK, Source
from surefoot.data.formats.named import need_one_vector
from surefoot.data.pictures import column_of

Array = np.ndarray[Any, Any]

INTERVAL = "observation_interval"
STATES = ("qpos", "qvel", "button_states")
"""Simulator states that come along as extras: a task's rewards are made of them."""
VALIDS = "valids"
KEYS = ("observations", "actions", "terminals", "rewards", "masks", INTERVAL, VALIDS, *STATES)
MARKS = ("masks", "qpos", INTERVAL, VALIDS)
"""An NPZ file with one of these is of this layout."""


def fits(arrays: Mapping[str, Array]) -> bool:
    """Whether arrays are of this layout: by one of `MARKS`, or pictures whose rewards and next ones are nowhere."""
    if set(MARKS) & set(arrays):
        return True
    seen = arrays.get("observations")
    pictured = seen is not None and is_picture(seen.shape, seen.dtype)
    return pictured and "actions" in arrays and not {"rewards", "next_observations", "timeouts"} & set(arrays)


def from_arrays(arrays: Mapping[str, Array], source: Source, view: str = "corrected") -> Dataset:
    """The dataset in the arrays of a file.

    Raises:
        ConfigError: another view than `corrected`.
        DataError: a key is missing, or the arrays are inconsistent or not finite; names key and row.
    """
    name = source.name
    if view != "corrected":
        raise ConfigError(
            f"view={view!r} is of D4RL's files, and {name} is of OGBench or OCBench: use view='corrected'"
        )
    if VALIDS in arrays:
        arrays = {**arrays, "terminals": ~flags(name, VALIDS, arrays[VALIDS])}
    require_keys(name, arrays, ("observations", "actions", "terminals"), arrays)
    given = arrays["observations"]
    pictured = is_picture(given.shape, given.dtype)
    observations = given if pictured else matrix(name, "observations", given)
    actions = matrix(name, "actions", arrays["actions"])
    ends = flags(name, "terminals", arrays["terminals"])
    if len(actions) == 0 or len(actions) != len(ends):
        raise DataError(
            f"{name}: 'terminals' has {len(ends)} rows but 'actions' has {len(actions)}; each step has both"
        )
    if not ends[-1]:
        raise DataError(f"{name}: 'terminals' is false in the last row, {len(ends) - 1}: the file was cut off")
    apart = INTERVAL in arrays
    rows, first = _apart(name, arrays, observations, ends) if apart else _shared(name, observations, ends)
    columns = _columns(name, arrays, len(ends))
    unsolved = columns.pop("masks", np.ones(len(ends), np.float32))
    if len(odd := np.flatnonzero((unsolved != 0) & (unsolved != 1))):
        raise DataError(f"{name}: 'masks' holds {unsolved[odd[0]]} in row {odd[0]}; each must be 0 or 1")
    of_numbers = ("actions", "rewards") if pictured else ("observations", "actions", "rewards")
    reported = warnings_of({key: arrays[key] for key in of_numbers if key in arrays})
    rewards = columns.pop("rewards", np.zeros(len(ends), np.float32))
    attributes = dict(source.attributes)
    if "rewards" not in arrays:
        attributes.setdefault(REWARDS, NO_TASK)
    terminations, last = unsolved[rows] == 0, (ends if apart else np.append(ends[1:], True))[rows]
    extras: dict[str, Any] = {key: np.ascontiguousarray(value[rows]) for key, value in columns.items()}
    if pictured:
        whole = column_of(observations)
        extras |= {f"observations/{IMAGE}": whole.select_rows(first)}
        extras |= {f"next_observations/{IMAGE}": whole.select_rows(first + 1)}
        before = after = np.zeros((len(rows), 0), np.float32)
    else:
        before, after = observations[first], observations[first + 1]
    return cut(
        Dataset(
            observations=before, actions=actions[rows], rewards=rewards[rows], next_observations=after,
            terminations=terminations, truncations=last, episode_ids=np.zeros(len(rows), np.int64),
            valid=np.ones(len(rows), bool), env_id=source.env_id, name=name, sha256=source.sha256,
            attributes=attributes, extras=extras, warnings=reported,
        )
    )  # fmt: skip


def cut(dataset: Dataset) -> Dataset:
    """A dataset of recordings made one of episodes: one ends at each termination and at each recording's last row.

    Args:
        dataset: with `truncations` at the last rows of recordings, `terminations` anywhere, and any `episode_ids`.

    Raises:
        DataError: it breaks another invariant.
    """
    ends = dataset.terminations | dataset.truncations
    made = dataset.replace(
        attributes={**dataset.attributes, RUNS_ON: 1},
        truncations=dataset.truncations & ~dataset.terminations,
        episode_ids=np.concatenate([[0], np.cumsum(ends)[:-1]]).astype(np.int64),
    )
    validate(made)
    return made


def write(dataset: Dataset, path: pathlib.Path) -> None:
    """Write OGBench's layout, compressed; the file appears whole or not at all.

    What the added last row of a recording holds beside its observation repeats the row before: readers drop it. A last
    row that may not be sampled is left out, and its observation is what followed the row before.

    Raises:
        DataError: the dataset breaks its invariants, is of images, has next observations that are not the next
            rows', or the file can't be written.
    """
    validate(dataset)
    need_one_vector(dataset, "OGBench's layout")
    need_chain(dataset, "OGBench's layout")
    dataset = with_known_ends(dataset)
    last = recording_ends(dataset)
    rows = np.repeat(np.arange(len(dataset)), 1 + last)
    added = np.append(rows[1:] == rows[:-1], False)
    added = np.concatenate([[False], added[:-1]])  # the second of two equal rows
    columns: dict[str, Array] = {
        "observations": np.where(added[:, None], dataset.next_observations[rows], dataset.observations[rows]),
        "actions": dataset.actions[rows],
        "terminals": added,
    }
    if dataset.has_rewards:
        columns["rewards"] = dataset.rewards[rows]
    if dataset.has_rewards or dataset.terminations.any():
        columns["masks"] = 1 - dataset.terminations[rows].astype(np.float32)
    columns |= {key: dataset.extras[key][rows] for key in STATES if key in dataset.extras}
    attributes = {**dataset.attributes, OWN_MARK: LAYOUT_VERSION}
    if dataset.env_id is not None:
        attributes["env_id"] = dataset.env_id
    if not set(MARKS) & set(columns):
        columns["masks"] = np.ones(len(rows), np.float32)
    columns["attributes"] = np.array(json.dumps(attributes, default=str))
    with written_aside(path, DataError) as aside, open(aside, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _shared(name: str, observations: Array, ends: Array) -> tuple[Array, Array]:
    """Rows that are transitions, and the numbers of their observations, where a recording has as many of both; what
    followed is the observation behind."""
    if len(observations) != len(ends):
        raise DataError(
            f"{name}: 'observations' has {len(observations)} rows but 'terminals' has {len(ends)}; one row per step is "
            "needed in each"
        )
    alone = np.flatnonzero(ends & np.concatenate([[True], ends[:-1]]))
    if len(alone):
        raise DataError(f"{name}: the recording in row {alone[0]} has one row, so nothing follows its observation")
    rows = np.flatnonzero(~ends)
    return rows, rows


def _apart(name: str, arrays: Mapping[str, Array], observations: Array, ends: Array) -> tuple[Array, Array]:
    """The same of OCBench's files, whose recordings have one observation more than actions."""
    interval = int(arrays[INTERVAL].reshape(-1)[0]) if arrays[INTERVAL].size == 1 else 0
    if interval != 1:
        raise DataError(
            f"{name}: {INTERVAL!r} is {interval or arrays[INTERVAL].shape}: what lies between is not in the file, and "
            "rows need each step's; only files with an interval of 1 can be read"
        )
    count = int(ends.sum())
    if len(observations) != len(ends) + count:
        raise DataError(
            f"{name}: 'observations' has {len(observations)} rows; {count} recordings of {len(ends)} steps in all need "
            f"{len(ends) + count}"
        )
    rows = np.arange(len(ends))
    return rows, rows + np.concatenate([[0], np.cumsum(ends)[:-1]])


def _columns(name: str, arrays: Mapping[str, Array], count: int) -> dict[str, Array]:
    """Rewards, masks and states, each with a row per step."""
    columns: dict[str, Array] = {}
    for key in ("rewards", "masks", *STATES):
        if key not in arrays:
            continue
        if key in STATES:
            check_extra(name, key, arrays[key])
            columns[key] = arrays[key]
        else:
            columns[key] = vector(name, key, arrays[key])
        if columns[key].ndim == 0 or len(columns[key]) != count:
            raise DataError(f"{name}: {key!r} has shape {columns[key].shape}; {count} steps need a row each")
    return columns
