"""Layouts that hold no next observations: what followed a row is the next row's observation, or one behind the last."""

from __future__ import annotations

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Dataset


def need_chain(dataset: Dataset, what: str) -> None:
    """Refuse data that such a layout would change.

    Raises:
        DataError: a next observation is not the next row's, or a row that may not be sampled is not an episode's last.
    """
    inside = np.flatnonzero(np.diff(dataset.episode_ids) == 0)
    torn = inside[np.any(dataset.next_observations[inside] != dataset.observations[inside + 1], axis=1)]
    if len(torn):
        raise DataError(
            f"{dataset.name}: row {torn[0]}'s next observation is not the next row's ({len(torn)} such rows); {what} "
            "can't hold that, HDF5 can"
        )
    unsampled = inside[~dataset.transitions[inside]]
    if len(unsampled):
        raise DataError(
            f"{dataset.name}: row {unsampled[0]} is inside an episode and may not be sampled ({len(unsampled)} such "
            f"rows); {what} can't hold that, HDF5 can"
        )


def with_known_ends(dataset: Dataset) -> Dataset:
    """The dataset without rows that may not be sampled, each an episode's last, for nothing says what followed it.

    The row before is the last then, and what followed it is known: the observation of the row that is left out.

    Raises:
        DataError: no row is left.
    """
    if dataset.transitions.all():
        return dataset
    rows = np.flatnonzero(dataset.transitions)
    if len(rows) == 0:
        raise DataError(f"{dataset.name}: no row is valid as a transition, so there is nothing to write")
    kept = dataset.select_rows(rows)
    last = np.append(np.diff(kept.episode_ids) != 0, True)
    return kept.replace(truncations=last & ~kept.terminations)
