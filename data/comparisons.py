"""Comparisons of stretches of episodes: which of two has more of an attribute, stated by people or in words."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.base.random import generator
from surefoot.core.base.unpacking import read_npz
from surefoot.core.losses.attributes import measured

FIELDS = ("first", "second", "preferred")
ACTIONS = ("first_actions", "second_actions")


class Comparisons(NamedTuple):
    """P pairs of stretches of H observations."""

    first: Tensor
    """(P, H, O) in the environment's units."""
    second: Tensor
    """(P, H, O) likewise."""
    preferred: Tensor
    """(P, m) in [0, 1]: 1 where the first has more of the attribute, 0 where the second, 0.5 for neither."""


class ActedComparisons(NamedTuple):
    """P pairs of stretches of H observations and actions."""

    first: Tensor
    """(P, H, O), as the next two in the units of who made it."""
    second: Tensor
    """(P, H, O)."""
    preferred: Tensor
    """(P, 1) in [0, 1]: 1 where the first is better, 0 where the second, 0.5 for neither."""
    first_actions: Tensor | None
    """(P, H, A); None where they are not read."""
    second_actions: Tensor | None
    """(P, H, A) likewise."""


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


def drawn_pairs(rows: np.ndarray, length: int, pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(P, H) and (P, H) rows of two stretches, drawn evenly; the same each time.

    Args:
        rows: (W,) at least one: `starts`.
        length: H.
        pairs: P.
        seed: of the draw.
    """
    draw, steps = generator(seed, "comparisons", 0), np.arange(length)
    first, second = (rows[draw.integers(0, len(rows), pairs)][:, None] + steps for _ in range(2))
    return first, second


def by_sums(first: Tensor, second: Tensor) -> Tensor:
    """(P, 1) 1 where the sum of the first (P, H) rewards is the greater, 0 where that of the second is, else 0.5."""
    return 0.5 * (torch.sign(first.sum(-1) - second.sum(-1)) + 1)[:, None]


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
    stretches = dict.fromkeys(FIELDS[:2], (length, observation_dim))
    return Comparisons(**_read(path, {**stretches, "preferred": (attributes,)}))


def read_acted_comparisons(
    path: str | pathlib.Path, length: int, observation_dim: int, action_dim: int | None
) -> ActedComparisons:
    """Comparisons of one kind, with the actions of the stretches, `first_actions` and `second_actions`.

    Args:
        path: of the file.
        length: H.
        observation_dim: O.
        action_dim: A; None: actions are not read.

    Raises:
        DataError: as `read_comparisons`.
    """
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(FIELDS[:2], (length, observation_dim))
    shapes["preferred"] = (1,)
    if action_dim is not None:
        shapes |= dict.fromkeys(ACTIONS, (length, action_dim))
    return ActedComparisons(**{**dict.fromkeys(ACTIONS), **_read(path, shapes)})  # type: ignore[arg-type]


def _read(path: str | pathlib.Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The arrays of a file, each of as many pairs, with these shapes of one."""
    try:
        held, names = read_npz(path, shapes.__contains__, DataError)
        if missing := [name for name in shapes if name not in names]:
            raise DataError(f"{path}: has no array {missing[0]!r}; it needs {', '.join(shapes)}")
        arrays = {name: np.asarray(held[name], np.float32) for name in shapes}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no .npz file of arrays of numbers: {error}") from error
    count = len(arrays["first"])
    for name, shape in shapes.items():
        found = arrays[name]
        if found.shape != (count, *shape) or count == 0:
            raise DataError(
                f"{path}: {name} is {found.shape}, must be {('P', *shape)}: stretches of algo.horizon observations "
                "in the environment's units, and a column of preferred for each attribute"
            )
        bad = np.flatnonzero(~np.isfinite(found).reshape(count, -1).all(-1))
        if len(bad):
            raise DataError(f"{path}: {name}[{bad[0]}] is not finite")
    bad = np.flatnonzero(~((arrays["preferred"] >= 0) & (arrays["preferred"] <= 1)).all(-1))
    if len(bad):
        raise DataError(f"{path}: preferred[{bad[0]}] is {arrays['preferred'][bad[0]].tolist()}; must be in [0, 1]")
    return {name: torch.from_numpy(found) for name, found in arrays.items()}
