"""Checks of a dataset's costs: present, not negative, not the same in every step."""

from __future__ import annotations

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.dataset import Array, Dataset


def checked_costs(dataset: Dataset, algorithm: str) -> Array:
    """(N,) float32 costs, > 0 on a violating step; of a dataset that has margins only, 1 where one is negative.

    Raises:
        DataError: there are neither costs nor margins, a cost is negative, or the margins that stand for costs are not
            (N,) finite numbers.
    """
    if dataset.costs is None and "margins" not in dataset.extras:
        raise DataError(
            f"{dataset.name}: has no costs, and {algorithm} learns to avoid them; add a column `costs` (N,), > 0 on "
            "each step that violates the constraint, or `margins` (N,), negative there"
        )
    if dataset.costs is None:
        return np.asarray(checked_margins(dataset) < 0, np.float32)
    negative = np.flatnonzero(dataset.costs < 0)
    if len(negative):
        row = int(negative[0])
        raise DataError(
            f"{dataset.name}: costs[{row}] is {dataset.costs[row]:g} ({len(negative)} are negative); a cost is 0 on a "
            "safe step and > 0 on a violating one: if these are margins, name the column `margins`"
        )
    return dataset.costs


def checked_margins(dataset: Dataset) -> Array:
    """(N,) margins of a dataset that has them, negative on a violating step.

    Raises:
        DataError: another shape, or a margin that is not finite.
    """
    margins = dataset.extras["margins"]
    if margins.shape != (len(dataset),):
        raise DataError(f"{dataset.name}: margins have shape {margins.shape}, must be ({len(dataset)},)")
    odd = np.flatnonzero(~np.isfinite(margins))
    if len(odd):
        raise DataError(f"{dataset.name}: margins[{odd[0]}] is {margins[odd[0]]}; margins must be finite")
    return margins


def cost_notes(dataset: Dataset, algorithm: str) -> list[str]:
    """What costs that are the same everywhere make impossible, in words; nothing where they differ.

    Raises:
        DataError: as `checked_costs`.
    """
    violating = checked_costs(dataset, algorithm) > 0
    if not violating.any():
        return [
            f"{dataset.name}: all {len(dataset)} costs are zero: nothing in the data shows {algorithm} what a "
            "violation is, so it can't learn where they are and only keeps near the data"
        ]
    if violating.all():
        return [
            f"{dataset.name}: all {len(dataset)} steps violate the constraint: nothing in the data shows {algorithm} "
            "a safe step, so no policy from it can be expected to keep within a cost limit"
        ]
    return []
