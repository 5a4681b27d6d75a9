"""Minari datasets, through the minari package: local ids, remote ids (downloaded by minari) and folders.

Observations that are dictionaries become vectors: the keys `observation`, `achieved_goal`, `desired_goal` in
this order, those that exist; any other dictionary in the alphabetical order of its keys. The order is kept in
`attributes["observation_keys"]`. All three are kept because the ant mazes give the ant's position only in
`achieved_goal`. Minari's sets are not D4RL's, also where the names agree: never compare their scores.
"""

from __future__ import annotations

import contextlib
import itertools
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
)
from surefoot.core.base.files import why
from surefoot.core.base.library_output import held_output
from surefoot.data.checks import concatenated, validate
from surefoot.data.dataset import REWARDS, WITHOUT, Dataset
from surefoot.data.files import sha256_of
from surefoot.data.formats.chained import need_chain, with_known_ends
from surefoot.data.formats.flat import Source, dataset_from_arrays
from surefoot.data.formats.named import need_one_vector

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
        DataError: it can't be used: discrete actions, images, damage.
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
            "mapping whose `files` name the logs in it (docs/own_data.md)"
        )
    minari = _minari()
    with held_output(path):
        with _refusals(str(path)):
            loaded = minari.MinariDataset(folder)
        return _convert(loaded, source, view)


def _convert(loaded: Any, source: Source, view: str) -> Dataset:
    """Flat arrays of all episodes, with the observation after each last step."""
    name = source.name
    actions = loaded.action_space
    if not isinstance(actions, gymnasium.spaces.Box):
        raise DataError(f"{name}: has actions {actions}; only continuous ones (Box) can be used")
    with _refusals(name):
        keys = _observation_keys(loaded.observation_space)
        episodes = [_episode(episode, keys, name) for episode in loaded.iterate_episodes()]
    if not episodes:
        raise DataError(f"{name}: is empty: no episode")
    with_cost = all("costs" in episode for episode in episodes)
    columns = [key for key in episodes[0] if key != "costs" or with_cost]
    arrays = {key: concatenated(name, key, [episode[key] for episode in episodes]) for key in columns}
    attributes: dict[str, Any] = {"minari_id": loaded.spec.dataset_id, "kind": "minari"}
    if keys:
        attributes["observation_keys"] = ",".join(keys)
    with _refusals(name):
        metadata = loaded.storage.metadata
        attributes |= {
            key: str(metadata[key]) for key in ("author", "code_permalink", "algorithm_name") if key in metadata
        }
        if metadata.get(REWARDS_KEY) in WITHOUT:
            attributes[REWARDS] = str(metadata[REWARDS_KEY])
        main = pathlib.Path(loaded.spec.data_path) / "main_data.hdf5"
        digest = sha256_of(main) if main.is_file() else None
    unit = bool(np.all(actions.low == -1) and np.all(actions.high == 1))
    known = Source(
        name=name,
        env_id=source.env_id or (loaded.env_spec.id if loaded.env_spec is not None else None),
        unit_actions=unit,
        sha256=digest,
        attributes=attributes,
    )
    return dataset_from_arrays(arrays, known, view)


def _episode(episode: Any, keys: list[str], name: str) -> dict[str, Array]:
    """One episode's columns under D4RL's names; a last row without an end flag is a truncation."""
    observations = _vectors(episode.observations, keys)
    steps = len(episode.rewards)
    if observations.ndim != 2:
        raise DataError(
            f"{name}: episode {episode.id} has observations of shape {observations.shape[1:]}; only vectors can be used"
        )
    if len(observations) != steps + 1:
        raise DataError(
            f"{name}: episode {episode.id} has {len(observations)} observations for {steps} steps; it needs "
            "one more than steps"
        )
    truncations = np.array(episode.truncations, dtype=bool)
    truncations[-1:] |= not np.any(episode.terminations[-1:])
    columns = {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "terminals": np.asarray(episode.terminations, dtype=bool),
        "timeouts": truncations,
    }
    cost = (episode.infos or {}).get("cost")
    if cost is not None and len(cost) in (steps, steps + 1):
        columns["costs"] = np.asarray(cost)[-steps:]  # minari puts the reset's info before the first step's
    return columns


def _observation_keys(space: gymnasium.Space[Any]) -> list[str]:
    """The order in which a dictionary's entries are concatenated; empty for plain vectors."""
    if isinstance(space, gymnasium.spaces.Dict):
        if set(space.spaces) <= set(GOAL_KEYS):
            return [key for key in GOAL_KEYS if key in space.spaces]
        return sorted(space.spaces)
    return []


def _vectors(observations: Any, keys: list[str]) -> Array:
    """(T + 1, d) from an array or from (nested) dictionaries of arrays."""
    if not isinstance(observations, Mapping):
        array = np.asarray(observations)
        return array[:, None] if array.ndim == 1 else array
    return np.concatenate([_vectors(observations[key], sorted(_keys_of(observations[key]))) for key in keys], axis=1)


def _keys_of(value: Any) -> list[str]:
    return list(value) if isinstance(value, Mapping) else []


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
    with _refusals(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an author's e-mail address and more
        if name in minari.list_local_datasets():
            raise DataError(f"minari dataset {name!r} exists already; choose another id")
        buffers = [
            EpisodeBuffer(
                observations=np.concatenate(
                    [dataset.observations[start:stop], dataset.next_observations[stop - 1 : stop]]
                ),
                actions=dataset.actions[start:stop],
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
            action_space=_box(dataset.actions),
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
