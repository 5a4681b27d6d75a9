"""Comparisons of stretches of episodes: which of two has more of an attribute, stated by people or in words."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.base.random import generator
from surefoot.core.base.unpacking import read_npz
from surefoot.core.losses.attributes import measured

FIELDS = ("first", "second", "preferred")


class Comparisons(NamedTuple):
    """P pairs of stretches of H observations."""

    first: Tensor
    """(P, H, O) in the environment's units."""
    second: Tensor
    """(P, H, O) likewise."""
    preferred: Tensor
    """(P, m) in [0, 1]: 1 where the first has more of the attribute, 0 where the second, 0.5 for neither."""


def starts(segments: np.ndarray, length: int) -> np.ndarray:
    """(W,) rows of a store from which `length` rows followed each other in one episode; there may be none.

    Args:
        segments: (N,) of `data.store.segment_ids`.
        length: H.
    """
    if len(segments) < length:
        return np.zeros(0, np.int64)
    return np.flatnonzero(segments[: len(segments) - length + 1] == segments[length - 1 :])


def compared(rows: np.ndarray, observations: Tensor, length: int, words: Sequence[str], pairs: int) -> Comparisons:
    """Comparisons that words make of stretches of a dataset, drawn evenly; the same each time.

    Args:
        rows: (W,) at least one: `starts`.
        observations: (N, O) in the environment's units.
        length: H.
        words: m, of `core.losses.attributes.measured`.
        pairs: P.

    Raises:
        ConfigError: a word that is none.
    """
    draw, steps = generator(0, "comparisons", 0), np.arange(length)
    first, second = (
        observations[torch.from_numpy(rows[draw.integers(0, len(rows), pairs)][:, None] + steps)] for _ in range(2)
    )
    ours, theirs = measured(words, first), measured(words, second)
    return Comparisons(first, second, 0.5 * (torch.sign(ours - theirs) + 1))


def read_comparisons(path: str | pathlib.Path, length: int, observation_dim: int, attributes: int) -> Comparisons:
    """Comparisons by people, from a .npz file of the arrays `first`, `second` and `preferred`.

    Args:
        path: of the file.
        length: H.
        observation_dim: O.
        attributes: m.

    Raises:
        DataError: the file is no such one; it names the array and the first wrong entry.
    """
    try:
        held, names = read_npz(path, FIELDS.__contains__, DataError)
        if missing := [name for name in FIELDS if name not in names]:
            raise DataError(f"{path}: has no array {missing[0]!r}; it needs {', '.join(FIELDS)}")
        arrays = {name: np.asarray(held[name], np.float32) for name in FIELDS}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no .npz file of arrays of numbers: {error}") from error
    count = len(arrays["first"])
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(FIELDS[:2], (count, length, observation_dim))
    wanted["preferred"] = (count, attributes)
    for name, shape in wanted.items():
        found = arrays[name]
        if found.shape != shape or count == 0:
            raise DataError(
                f"{path}: {name} is {found.shape}, must be {('P', *shape[1:])}: stretches of algo.horizon observations "
                "in the environment's units, and a column of preferred for each of algo.attributes"
            )
        bad = np.flatnonzero(~np.isfinite(found).reshape(count, -1).all(-1))
        if len(bad):
            raise DataError(f"{path}: {name}[{bad[0]}] is not finite")
    bad = np.flatnonzero(~((arrays["preferred"] >= 0) & (arrays["preferred"] <= 1)).all(-1))
    if len(bad):
        raise DataError(f"{path}: preferred[{bad[0]}] is {arrays['preferred'][bad[0]].tolist()}; must be in [0, 1]")
    return Comparisons(*(torch.from_numpy(arrays[name]) for name in FIELDS))
