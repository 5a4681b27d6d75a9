"""`info` and `verify`: what a dataset holds, and whether a file is what it should be."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import in_words
from surefoot.data import logs
from surefoot.data.cameras import stated_cameras
from surefoot.data.catalogue import normalized_score, task_facts
from surefoot.data.conventions import scored, success
from surefoot.data.dataset import ACTION_NAMES, OBSERVATION_NAMES, REWARDS, Dataset
from surefoot.data.download import sidecar_sha256
from surefoot.data.files import sha256_of
from surefoot.data.formats import on_disk
from surefoot.data.formats.lerobot import is_lerobot
from surefoot.data.formats.mapping import SUFFIXES
from surefoot.data.formats.named import NAMES, PREFIXES
from surefoot.data.formats.repairs import REPAIRS, applied
from surefoot.data.left_out import reported
from surefoot.data.load import load
from surefoot.data.measures import measures, reference_of
from surefoot.data.pictures import shown

SMALL = 96
"""A size of pictures that policies are usually trained on."""
PICTURE = 3 * 16 * 16
"""Numbers of an observation from which on whole numbers from 0 to 255 look like a picture."""


def info(dataset: Dataset) -> dict[str, Any]:
    """Facts for people: sizes, episodes, returns and their normalised mean, success, costs, oddities, origin."""
    returns, lengths = dataset.episode_returns, dataset.episode_lengths
    costs = dataset.episode_costs
    reference, solved = reference_of(dataset), success(dataset)
    named = {key for key in dataset.extras if key.startswith(PREFIXES)}
    facts: dict[str, Any] = {
        "name": dataset.name,
        "env_id": dataset.env_id,
        "transitions": len(dataset),
        "observation_dim": dataset.observation_dim,
        "observations": in_words(dataset.arrays),
        **_frames(dataset),
        "action_dim": dataset.action_dim,
        "choices": dataset.choices,
        OBSERVATION_NAMES: dataset.observation_names,
        ACTION_NAMES: dataset.action_names,
        "constant_observations": _constant(dataset),
        "episodes": len(lengths),
        "length_min": int(lengths.min()),
        "length_max": int(lengths.max()),
        "terminated_episodes": int(dataset.terminations.sum()),
        "truncated_episodes": int(dataset.truncations.sum()),
        "rewards": dataset.attributes.get(REWARDS),
        "return_mean": float(returns.mean()) if dataset.has_rewards else None,
        "return_min": float(returns.min()) if dataset.has_rewards else None,
        "return_max": float(returns.max()) if dataset.has_rewards else None,
        "normalized_mean": None
        if reference is None or not dataset.has_rewards
        else float(normalized_score(scored(dataset).mean(), reference)),
        "success_share": None if solved is None else float(solved.mean()),
        "action_min": float(dataset.actions.min()),
        "action_max": float(dataset.actions.max()),
        "cost_mean": None if costs is None else float(costs.mean()),
        "cost_min": None if costs is None else float(costs.min()),
        "cost_max": None if costs is None else float(costs.max()),
        "extras": {key: _span(value) for key, value in dataset.extras.items() if key not in named} or None,
        "rows_never_sampled": int((~dataset.valid).sum()),
        "rows_without_next": int((dataset.valid & ~dataset.transitions).sum()),
        "warnings": dict(dataset.warnings),
        "left_out": reported(dataset),
        REPAIRS: applied(dataset.attributes) or None,
        "sha256": dataset.sha256,
    }
    task = task_facts(dataset.env_id or dataset.name)
    facts |= {f"task_{key}": task.get(key) for key in ("observed", "hidden", "delay")}
    facts["published_scores"] = task.get("published")
    return facts | {key: dataset.attributes.get(key) for key in ("source", "licence", "kind")}


def _frames(dataset: Dataset) -> dict[str, Any]:
    """`frames`, how many pictures each camera has, of which each is counted once, and `frames_mb`, what they take.

    And `cameras` that the source has and that were not read.
    """
    frames, size = dict[str, int](), dict[str, float]()
    for key in (key for key, array in dataset.arrays.items() if array.image):
        own, following = (dataset.extras[f"{name}/{key}"] for name in NAMES)
        frames[key] = shown(own, following)
        size[key] = frames[key] * own.picture_bytes / 1e6
    left = {key: shape for key, shape in stated_cameras(dataset).items() if key not in frames}
    return {"frames": frames, "frames_mb": size} | ({"cameras": _cameras(left, len(dataset))} if left else {})


def _cameras(left: dict[str, list[int]], rows: int) -> dict[str, str]:
    """Of cameras that were not read: how many pictures of which size, and what they take in the cache."""
    return {
        key: f"{rows:,} of {shape}: {rows * math.prod(shape) / 1e9:,.2f} GB of disk as they are, "
        f"{rows * SMALL * SMALL * min(shape) / 1e9:,.2f} GB by image_size={SMALL}"
        for key, shape in left.items()
    }


def _span(column: np.ndarray[Any, Any]) -> tuple[float, float] | None:
    """The least and the greatest number of a column."""
    return (float(f"{column.min():.4g}"), float(f"{column.max():.4g}")) if column.size else None


def _constant(dataset: Dataset) -> tuple[str, ...] | None:
    """Names of the numbers of an observation that are the same in all rows; None: there are none."""
    still = np.flatnonzero((dataset.observations == dataset.observations[:1]).all(0))
    names = dataset.observation_names
    return tuple(names[i] if names else f"observation_{i}" for i in still) or None


def measured(dataset: Dataset, against: Dataset | None = None) -> dict[str, Any]:
    """`data.measures.measures` of data that are one vector; empty of images and several arrays."""
    return {} if dataset.observation_dim == 0 else measures(dataset, against)


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `verify` found; `ok` when nothing is wrong."""

    path: str
    ok: bool
    sha256: str | None  # of the file as it is; of a mapping and its logs, or of a folder's files, together
    known_sha256: str | None  # what it should be: given, or kept beside the file; None: unknown
    problems: list[str]  # sentences
    warnings: dict[str, int]  # accepted oddity -> rows
    transitions: int | None  # None: it can't be loaded
    episodes: int | None
    remarks: list[str]  # sentences on what is sound, and yet seldom meant


def remarks(dataset: Dataset) -> list[str]:
    """What is sound, and yet seldom meant: observations that look like a flattened picture."""
    width = dataset.observation_dim
    if width < PICTURE:
        return []
    some = dataset.observations[:: max(1, len(dataset) // 100)]
    if float(some.min()) < 0 or not 1 < float(some.max()) <= 255 or bool((some != np.round(some)).any()):
        return []
    return [
        f"observations are {width} whole numbers from 0 to 255, as of a flattened picture, of which a network of "
        "vectors learns little: store them as uint8 of shape (N, H, W, C) (docs/images.md)"
    ]


def verify(path: str | os.PathLike[str], sha256: str | None = None) -> Verification:
    """Compare a file with its known SHA-256 (given, or in `<path>.sha256`) and check every invariant.

    That of a mapping is of it and of the logs that it names (`logs.digest`), that of a LeRobot folder of all files in
    it, that of a Minari folder of its `main_data.hdf5`, and that of a store on disk of its content (`store.json`).

    Raises:
        ConfigError: there is no such path.
    """
    file = pathlib.Path(path)
    if not file.exists():
        raise ConfigError(f"{file}: no such file")
    problems: list[str] = []
    known = sha256.lower() if sha256 is not None else None
    digest = None
    try:
        if known is None:
            known = sidecar_sha256(file)
        if file.is_file():
            digest = logs.digest(file, kept=False) if file.suffix.lower() in SUFFIXES else sha256_of(file)
        elif is_lerobot(file):
            digest = sha256_of(file)
    except (OSError, DataError) as error:
        problems.append(str(error))
    dataset = None
    try:
        if file.is_dir() and on_disk.is_store(file):
            on_disk.check_again(file)
        dataset = load(file)
        digest = digest or dataset.sha256
    except DataError as error:
        problems += [] if str(error) in problems else [str(error)]
    if known is not None and digest is None:
        problems.append(f"{file}: its SHA-256 can't be found, and {known} is known for it: another folder, or damaged")
    elif known is not None and digest != known:
        problems.append(f"{file}: has SHA-256 {digest}, but {known} is known for it: another file, or damaged")
    return Verification(
        path=str(file),
        ok=not problems,
        sha256=digest,
        known_sha256=known,
        problems=problems,
        warnings=dict(dataset.warnings) if dataset is not None else {},
        transitions=len(dataset) if dataset is not None else None,
        episodes=len(dataset.episode_lengths) if dataset is not None else None,
        remarks=remarks(dataset) if dataset is not None else [],
    )
