"""How differently the numbers of an observation vary: what a network that gets them as they are has to even out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.data.dataset import Dataset

RATIO = 10.0
"""The largest standard deviation by the smallest, from which a note says so."""
ROWS = 65_536
"""Rows, evenly spaced, that deviations are estimated from."""


def notes(dataset: Dataset, config: Mapping[str, Any]) -> list[str]:
    """A sentence where observations are left as they are and vary by more than `RATIO` times another.

    Args:
        dataset: before `prepare`; numbers that never change and images don't count.
        config: the algorithm's options; those without `normalization` are left alone.
    """
    if config.get("normalization") != "none" or not dataset.observations.shape[1]:
        return []
    rows = dataset.observations[:: max(1, len(dataset) // ROWS)].astype(np.float64)
    deviations = rows.std(0)
    moving = np.flatnonzero(deviations > 0)
    if len(moving) < 2:
        return []
    least, most = (int(moving[place]) for place in (deviations[moving].argmin(), deviations[moving].argmax()))
    ratio = deviations[most] / deviations[least]
    if ratio <= RATIO:
        return []
    return [
        f"{dataset.name}: observation number {most} has a standard deviation of {deviations[most]:.3g}, number {least} "
        f"one of {deviations[least]:.3g}, and the networks get both as they are (algo.normalization=none); "
        "algo.normalization=observations evens them out, and learning is often much quicker"
    ]
