"""Which cameras of a dataset are kept, and the size that their pictures are scaled to, in the cache of frames."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.scaling import RULE, scaled
from surefoot.data.dataset import NAMED, SCALED_BY, Dataset
from surefoot.data.derived import content_digest
from surefoot.data.frame_cache import Done, cached
from surefoot.data.pictures import Pictures, column_of

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Cameras:
    """What `load` is asked for."""

    size: tuple[int, int] | None = None
    """(H, W) that pictures are scaled to; None: as they are."""
    keys: tuple[str, ...] | None = None
    """Of the cameras that are kept; None: all."""
    folder: str | os.PathLike[str] | None = None
    """Of the cache; None: the usual one."""
    done: Done | None = None
    """Called with the pictures of a camera that are in the cache, and all."""

    @property
    def asked(self) -> bool:
        """Whether anything is asked for."""
        return self.size is not None or self.keys is not None

    def chosen(self, name: str, there: Iterable[str]) -> list[str]:
        """The cameras of those that are there.

        Raises:
            ConfigError: one is not there, or none is.
        """
        there = list(there)
        if not there:
            raise ConfigError(f"{name}: has no pictures: leave out image_size and cameras")
        for key in self.keys or ():
            if key not in there:
                raise ConfigError(f"{name}: has no camera {key!r}: {nearest(key, there)}")
        return there if self.keys is None else [key for key in there if key in self.keys]


def cameras_of(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Keys of cameras, from one or several.

    Raises:
        ConfigError: they are no names.
    """
    if value is None:
        return None
    keys = (value,) if isinstance(value, str) else tuple(value)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigError(f"cameras={value!r}: must be names of cameras, as [top,wrist]")
    return keys


def seen_by(dataset: Dataset, cameras: Cameras) -> Dataset:
    """The dataset with some of its cameras, their pictures scaled into the cache where they have another size.

    Raises:
        ConfigError: it has no such camera.
        DataError: the disk is too small or full.
    """
    there = [key for key, array in dataset.arrays.items() if array.image and array.dtype == "uint8"]
    kept = cameras.chosen(dataset.name, there)
    extras = {key: value for key, value in dataset.extras.items() if _camera(key) not in there or _camera(key) in kept}
    attributes = dict(dataset.attributes)
    for key in kept:
        own, following = (dataset.extras[f"{which}{NAMED}{key}"] for which in ("", "next_"))
        if cameras.size is None or np.array_equal(scaled(own[0], cameras.size), own[0]):
            continue
        extras |= _scaled(dataset, key, own, following, cameras)
        attributes[SCALED_BY] = RULE
    return dataset.replace(extras=extras, attributes=attributes)


def _camera(key: str) -> str | None:
    """The camera of an extra; None of others."""
    plain = key.removeprefix("next_")
    return plain.removeprefix(NAMED) if plain.startswith(NAMED) else None


def _scaled(dataset: Dataset, key: str, own: Pictures, following: Pictures, cameras: Cameras) -> dict[str, Any]:
    """The two columns of a camera, scaled: further pictures stand behind the others in the cache."""
    count, more = len(own.pictures), len(own.further)
    source = dataset.sha256 or content_digest(own.pictures) + content_digest(own.further)

    def each() -> Iterator[Array]:
        for one in itertools.chain(own.pictures, own.further):
            yield scaled(one, cameras.size)

    source = f"{source} {count} {more}"
    frames = cached(dataset.name, source, key, count + more, cameras.size, each, cameras.folder, cameras.done)
    column = column_of(frames)
    found = {}
    for which, one in (("", own), ("next_", following)):
        numbers = np.where(one.numbers >= 0, one.numbers, count - 1 - one.numbers)
        found[f"{which}{NAMED}{key}"] = dataclasses.replace(column, numbers=numbers)
    return found


CAMERAS = "cameras"
"""Attribute: a JSON object of the cameras of a source, read or not -> height, width and colors."""


def stated_cameras(dataset: Dataset) -> dict[str, list[int]]:
    """Camera -> shape of its pictures in the source, where that says it."""
    text = dataset.attributes.get(CAMERAS)
    try:
        found = json.loads(text) if isinstance(text, str) else {}
        return {str(key): [int(length) for length in shape] for key, shape in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):  # any file may hold an attribute of this name
        return {}
