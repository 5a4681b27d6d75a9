"""Minari datasets, through the minari package: local ids, remote ids (downloaded by minari) and folders.

Observations that are dictionaries of numbers become vectors: the keys `observation`, `achieved_goal`, `desired_goal` in
this order, those that exist; any other dictionary in the alphabetical order of its keys, and tuples in theirs. The
order is kept in `attributes["observation_keys"]`. An image (a uint8 Box of two to four dimensions) has the key `image`;
a dictionary with one or more keeps each of its entries under a key of its own, those inside an entry joined by `_`.
Discrete actions and observations are numbers from 0 on. All three goal keys are kept because the ant mazes give the
ant's position only in `achieved_goal`. Minari's sets are not D4RL's, also where the names agree: never compare their
scores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import (
    ConfigError,
    DataError,
    DownloadError,
    MissingExtraError,
    SurefootError,
    nearest,
    printable,
)
from surefoot.core.base.files import why
from surefoot.core.base.library_output import held_output
from surefoot.core.base.spec import IMAGE
from surefoot.data.checks import concatenated, validate
from surefoot.data.choices import CHOICES
from surefoot.data.dataset import ACTION_HIGH, ACTION_LOW, REWARDS, WITHOUT, Dataset
from surefoot.data.files import sha256_of
from surefoot.data.formats.chained import need_chain, with_known_ends
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.named import need_one_vector, take_named

Array = np.ndarray[Any, Any]

REWARDS_KEY = "surefoot_rewards"
"""In the metadata of data without rewards, whose rewards are 0 in the episodes: the attribute that says so."""
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def read_id(name: str, source: Source, view: str = "corrected") -> Dataset:
    """The Minari dataset of an id such as `D4RL/door/human-v2`, downloaded where it isn't local.

    Raises:
        MissingExtraError: the minari package is not installed.
        ConfigError: the id is malformed.
        DownloadError: it is neither local nor could be fetched.
        DataError: it can't be used: other spaces, damage.
    """
    minari = _minari()
    _check_id(name)
    with _refusals(name):
        local = list(minari.list_local_datasets())
    try:
        if name not in local:
            minari.download_dataset(name)
    except ImportError:
        raise MissingExtraError("huggingface_hub", "minari", f"downloading minari/{name}") from None
    except Exception as error:  # the hub's client raises a wide range
        raise DownloadError(
            f"minari dataset {name!r} is not local and could not be fetched: {_line(error)}; local: "
            f"{nearest(name, local)}"
        ) from error
    with held_output(name):
        with _refusals(name):
            loaded = minari.load_dataset(name)
        return _convert(loaded, source, view)


def _check_id(name: str) -> None:
    if not re.fullmatch(r"[\w-]+(/[\w-]+)*-v\d+", name):
        raise ConfigError(f"minari/{name}: is no Minari id; they read namespace/name-v0, such as D4RL/door/human-v2")


def read_folder(path: pathlib.Path, source: Source, view: str = "corrected") -> Dataset:
    """The Minari dataset in a folder (the folder that contains `data/`, or `data/` itself).

    Raises:
        MissingExtraError: the minari package is not installed.
        DataError: the folder holds no Minari dataset, or a damaged or unusable one.
    """
    folder = path / "data" if (path / "data").is_dir() else path
    if not (folder / "metadata.json").is_file():
        raise DataError(
            f"{path}: is a folder without a Minari dataset (data/metadata.json is missing); give a file, or a "
            "mapping whose `files` name the logs in it, which `surefoot datasets draft LOG ... -o log.yaml` writes "
            "(docs/own_data.md)"
        )
    minari = _minari()
    with held_output(path):
        with _refusals(str(path)):
            loaded = minari.MinariDataset(folder)
        return _convert(loaded, source, view)


def _convert(loaded: Any, source: Source, view: str) -> Dataset:
    """Flat arrays of all episodes, with the observation after each last step."""
    name = source.name
    actions, choices = loaded.action_space, None
    if isinstance(actions, gymnasium.spaces.Discrete):
        choices = int(actions.n)
    elif not isinstance(actions, gymnasium.spaces.Box):
        raise DataError(f"{name}: has actions {actions}; only continuous (Box) and Discrete ones can be used")
    space = loaded.observation_space
    with _refusals(name):
        keys, apart = _observation_keys(space), _has_images(space)
        start = 0 if choices is None else int(actions.start)
        episodes = [_episode(episode, space, keys, start, name) for episode in loaded.iterate_episodes()]
    if not episodes:
        raise DataError(f"{name}: is empty: no episode")
    with_cost = all("costs" in episode for episode in episodes)
    columns = [key for key in episodes[0] if key != "costs" or with_cost]
    arrays = {}
    for key in columns:  # each part goes as soon as it is joined: images would not fit the memory twice
        arrays[key] = concatenated(name, key, [episode.pop(key) for episode in episodes])
    attributes: dict[str, Any] = {"minari_id": printable(str(loaded.spec.dataset_id)), "kind": "minari"}
    if keys and not apart:
        attributes["observation_keys"] = printable(",".join(keys))
    with _refusals(name):
        metadata = loaded.storage.metadata
        attributes |= {
            key: printable(str(metadata[key]))
            for key in ("author", "code_permalink", "algorithm_name")
            if key in metadata
        }
        if metadata.get(REWARDS_KEY) in WITHOUT:
            attributes[REWARDS] = str(metadata[REWARDS_KEY])
        main = pathlib.Path(loaded.spec.data_path) / "main_data.hdf5"
        digest = sha256_of(main) if main.is_file() else None
    unit = False
    if choices is not None:
        attributes[CHOICES] = choices
    else:
        if np.isfinite(actions.low).all() and np.isfinite(actions.high).all():
            attributes |= {ACTION_LOW: json.dumps(actions.low.tolist()), ACTION_HIGH: json.dumps(actions.high.tolist())}
        unit = bool(np.all(actions.low == -1) and np.all(actions.high == 1))
    known = Source(
        name=name,
        env_id=source.env_id or (printable(loaded.env_spec.id) if loaded.env_spec is not None else None),
        unit_actions=unit,
        sha256=digest,
        attributes=attributes,
    )
    left, named = take_named(arrays, name)
    return dataset_from_arrays(left, known, view, named)


def _episode(episode: Any, space: gymnasium.Space[Any], keys: list[str], start: int, name: str) -> dict[str, Array]:
    """One episode's columns under D4RL's names; a last row without an end flag is a truncation."""
    steps = len(episode.rewards)
    if _has_images(space):
        parts = {f"/{key}": value for key, value in _parts(episode.observations, space).items()}
    else:
        parts = {"": _vectors(episode.observations, keys)}
    for key, part in parts.items():
        if part.ndim != 2 and part.dtype != np.uint8:
            raise DataError(
                f"{name}: episode {episode.id} has observations{key} of shape {part.shape[1:]} and type {part.dtype}; "
                "vectors and uint8 images can be used"
            )
        if len(part) != steps + 1:
            raise DataError(
                f"{name}: episode {episode.id} has {len(part)} observations{key} for {steps} steps; it needs "
                "one more than steps"
            )
    truncations = np.array(episode.truncations, dtype=bool)
    truncations[-1:] |= not np.any(episode.terminations[-1:])
    columns = {
        **{f"observations{key}": part[:-1] for key, part in parts.items()},
        **{f"next_observations{key}": part[1:] for key, part in parts.items()},
        "actions": np.asarray(episode.actions) - start if start else np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "terminals": np.asarray(episode.terminations, dtype=bool),
        "timeouts": truncations,
    }
    cost = (episode.infos or {}).get("cost")
    if cost is not None and len(cost) in (steps, steps + 1):
        columns["costs"] = np.asarray(cost)[-steps:]  # minari puts the reset's info before the first step's
    return columns


def _image(space: gymnasium.Space[Any]) -> bool:
    """Whether observations of a space are images."""
    return isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def _inside(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]]:
    """The entries of a dictionary or tuple; empty of any other space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(index): one for index, one in enumerate(space.spaces)}
    return {}


def _has_images(space: gymnasium.Space[Any]) -> bool:
    """Whether it is, or holds, images, whose arrays lie apart."""
    return _image(space) or any(map(_has_images, _inside(space).values()))


def _parts(observations: Any, space: gymnasium.Space[Any], path: tuple[str, ...] = ()) -> dict[str, Array]:
    """Key -> (T + 1, ...) of every image and vector, those inside others by their joined names."""
    found: dict[str, Array] = {}
    for key, part in _inside(space).items():
        value = observations[key] if isinstance(observations, Mapping) else observations[int(key)]
        found |= _parts(value, part, (*path, key))
    if found:
        return found
    array = np.asarray(observations)
    array = array[:, None] if array.ndim == 1 else array
    if not _image(space):
        array = array.astype(np.float32)
    joined = "_".join(path) or IMAGE
    return {joined if joined[0].isalpha() else f"part_{joined}": array}


def _observation_keys(space: gymnasium.Space[Any]) -> list[str]:
    """The order in which a dictionary's or tuple's entries are concatenated; empty for plain vectors."""
    inside = _inside(space)
    if inside and set(inside) <= set(GOAL_KEYS):
        return [key for key in GOAL_KEYS if key in inside]
    return list(inside) if isinstance(space, gymnasium.spaces.Tuple) else sorted(inside)


def _vectors(observations: Any, keys: list[str]) -> Array:
    """(T + 1, d) from an array or from (nested) dictionaries and tuples of arrays."""
    if isinstance(observations, tuple | list) and keys:
        observations = dict(zip(keys, observations, strict=True))
    if not isinstance(observations, Mapping):
        array = np.asarray(observations)
        return array[:, None] if array.ndim == 1 else array
    parts = [_vectors(observations[key], _keys_of(observations[key])) for key in keys]
    return np.concatenate(parts, axis=1)


def _keys_of(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [str(index) for index in range(len(value))]
    return sorted(value) if isinstance(value, Mapping) else []


def write(dataset: Dataset, name: str) -> None:
    """Store the dataset under a new local Minari id (namespace/name-v0).

    Minari keeps the environment only where it can be made on this machine; the description names it in any
    case. A last row that may not be sampled is left out: Minari has an observation after every step. It has a reward
    at every step too: of data without any they are 0, and the metadata say that they are none (`REWARDS_KEY`).

    Raises:
        MissingExtraError: the minari package is not installed.
        DataError: the id is taken, or an episode's next observations are not its next rows' (corrupted dynamics), which
            Minari can't hold, or no row may be sampled.
    """
    need_one_vector(dataset, "a Minari dataset written here")
    validate(dataset)
    minari = _minari()
    _check_id(name)
    from minari.data_collector.episode_buffer import EpisodeBuffer

    need_chain(dataset, "Minari")
    dataset = with_known_ends(dataset)
    starts = dataset.episode_starts
    actions = dataset.actions if dataset.choices is None else dataset.actions.argmax(1)
    with _refusals(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an author's e-mail address and more
        if name in minari.list_local_datasets():
            raise DataError(f"minari dataset {name!r} exists already; choose another id")
        buffers = [
            EpisodeBuffer(
                observations=np.concatenate(
                    [dataset.observations[start:stop], dataset.next_observations[stop - 1 : stop]]
                ),
                actions=actions[start:stop],
                rewards=dataset.rewards[start:stop].astype(np.float64),
                terminations=dataset.terminations[start:stop],
                truncations=dataset.truncations[start:stop],
                infos={} if dataset.costs is None else {"cost": np.append(0.0, dataset.costs[start:stop])},
            )
            for start, stop in itertools.pairwise(starts)
        ]
        made = minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=buffers,
            env=_spec(dataset.env_id),
            observation_space=_box(dataset.observations),
            action_space=_action_space(dataset),
            description=f"converted by surefoot from {dataset.name}, recorded in {dataset.env_id}",
        )
        if not dataset.has_rewards:
            made.storage.update_metadata({REWARDS_KEY: str(dataset.attributes[REWARDS])})


def _spec(env_id: str | None) -> Any:
    """The environment's specification, or None where it can't be made here (Minari makes it)."""
    if env_id is None:
        return None
    try:
        env = gymnasium.make(env_id)
    except Exception:  # whatever an environment of others raises while it is made
        return None
    env.close()
    return env.spec


def _action_space(dataset: Dataset) -> gymnasium.Space[Any]:
    """Choices, or the range that the data state, where all actions lie in it, as Minari demands; else as `_box`."""
    if dataset.choices is not None:
        return gymnasium.spaces.Discrete(dataset.choices)
    stated = dataset.action_range
    if stated is None:
        return _box(dataset.actions)
    low, high = (bound.astype(np.float32) for bound in stated)
    if (dataset.actions < low).any() or (dataset.actions > high).any():
        return _box(dataset.actions)
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def _box(values: Array) -> gymnasium.spaces.Box:
    """A box around the values: [-1, 1] where they fit it, else unbounded."""
    bound = 1.0 if np.abs(values).max() <= 1 else np.inf
    return gymnasium.spaces.Box(-bound, bound, shape=values.shape[1:], dtype=np.float32)


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise MissingExtraError("minari", "minari", "reading or writing a Minari dataset") from None
    return minari


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Turn what minari raises on damaged or odd datasets into one sentence of ours."""
    try:
        yield
    except SurefootError:
        raise
    except OSError as error:
        raise DataError(f"{name}: {why(error)}") from error
    except Exception as error:  # minari raises assertions, key and value errors on damaged files
        raise DataError(f"{name}: the minari package can't use it ({type(error).__name__}: {_line(error)})") from error


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
