"""Comparisons of stretches of episodes: which of two has more of an attribute, told by people or by words."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.attributes import measured
from surefoot.core.errors import DataError
from surefoot.core.random import generator

Comparisons = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(P,) int64 rows that the first and the second stretch begin at, and (P, m) float32 in [0, 1]: 1 where the first has
more of the attribute, 0 where the second, 0.5 for neither."""
FIELDS = ("first", "second", "preferred")


def starts(segments: np.ndarray, length: int) -> np.ndarray:
    """(W,) rows of a store from which `length` rows followed each other in one episode.

    Args:
        segments: (N,) of `data.store.segment_ids`.
        length: H.

    Raises:
        DataError: there are none.
    """
    short = len(segments) < length
    found: Any = np.flatnonzero(segments[: len(segments) - length + 1] == segments[length - 1 :]) if not short else []
    if len(found) == 0:
        raise DataError(
            f"no episode has {length} steps in a row, the longest has {np.bincount(segments).max()}: give a shorter "
            "algo.horizon"
        )
    return np.asarray(found)


def comparisons(
    segments: np.ndarray,
    observations: Tensor,
    length: int,
    attributes: Sequence[str],
    pairs: int,
    labels: str | pathlib.Path | None = None,
) -> Comparisons:
    """Comparisons of stretches of a dataset, read from a file, or drawn and made by words.

    Args:
        segments: (N,) of `data.store.segment_ids`: rows are numbered as in a store, those that are valid, in order.
        observations: (N, O) of these rows, in the environment's units.
        length: H, of a stretch.
        attributes: words of `core.attributes.measured`; with `labels` names, of which only the number counts.
        pairs: P, where they are drawn.
        labels: .npz with `first` and `second` (P,) and `preferred` (P, m).

    Raises:
        DataError: no stretch is long enough, or the file is not such a one.
        ConfigError: a word that is none.
    """
    known = starts(segments, length)
    if labels is not None:
        return _read(pathlib.Path(labels), known, len(attributes), length)
    draw = generator(0, "comparisons", 0)
    first, second = (known[draw.integers(0, len(known), pairs)] for _ in range(2))
    steps = np.arange(length)
    ours, theirs = (measured(attributes, observations[torch.from_numpy(rows[:, None] + steps)])
                    for rows in (first, second))  # fmt: skip
    return first, second, (0.5 * (torch.sign(ours - theirs) + 1)).float().cpu().numpy()


def _read(path: pathlib.Path, known: np.ndarray, attributes: int, length: int) -> Comparisons:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in FIELDS if name not in file]
            if missing:
                raise DataError(f"{path}: has no array {missing[0]!r}; it needs {', '.join(FIELDS)}")
            first, second, preferred = (np.asarray(file[name]) for name in FIELDS)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no .npz file of arrays: {error}") from error
    count = len(first)
    if first.shape != (count,) or second.shape != (count,) or preferred.shape != (count, attributes) or count == 0:
        raise DataError(
            f"{path}: first {first.shape}, second {second.shape} and preferred {preferred.shape}; they must be (P,), "
            f"(P,) and (P, {attributes}), one column for each of algo.attributes"
        )
    for name, rows in (("first", first), ("second", second)):
        bad = np.flatnonzero(~np.isin(rows, known))
        if len(bad):
            raise DataError(
                f"{path}: {name}[{bad[0]}] is {rows[bad[0]]}, from where no {length} steps of one episode follow"
            )
    bad = np.flatnonzero(~((preferred >= 0) & (preferred <= 1)).all(-1))
    if len(bad):
        raise DataError(f"{path}: preferred[{bad[0]}] is {preferred[bad[0]].tolist()}; must be in [0, 1]")
    return first.astype(np.int64), second.astype(np.int64), preferred.astype(np.float32)
