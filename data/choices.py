"""Discrete actions of recorded data: the number of a choice becomes a one-hot row, as agents that choose have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefoot.core.base.errors import DataError
from surefoot.data.checks import look_like_choices

Array = np.ndarray[Any, Any]
CHOICES = "choices"
"""Attribute of data whose actions are choices: how many there are."""
MOST = 4096
"""Choices that an action may have: each is a column of the data."""


def as_choices(name: str, key: str, actions: Array, stated: Any) -> tuple[Array, int | None]:
    """(N, C) float32 one-hot rows and C, where actions are choices; otherwise the actions as they are, and None.

    They are choices where the data state how many there are, or where they are of a type of whole numbers and but a few
    of them, from 0 on: then there are as many as the highest says.

    Args:
        name: of the data, for errors.
        key: of the actions, for errors.
        actions: (N,) or (N, 1) numbers of choices from 0 on, (N, C) one-hot rows, or something else.
        stated: C, or None.

    Raises:
        DataError: a stated number that is none, or actions that are not choices of so many.
    """
    alone = actions.ndim == 1 or (actions.ndim == 2 and actions.shape[1] == 1)
    if stated is None:
        if not alone or actions.dtype.kind not in "iub" or not look_like_choices(actions.reshape(-1, 1)):
            return actions, None
        count = int(actions.max()) + 1
    else:
        count = _count(name, stated)
    if not alone:
        if actions.ndim != 2 or actions.shape[1] != count or actions.dtype.kind not in "biuf":
            raise DataError(
                f"{name}: {key!r} has shape {actions.shape}; of {count} {CHOICES} it must be (steps,) numbers of "
                f"choices, or (steps, {count}) one-hot rows"
            )
        wrong = np.flatnonzero(~((actions == 0) | (actions == 1)).all(1) | (actions.sum(1) != 1))
        if len(wrong):
            raise DataError(f"{name}: {key!r} is no choice in row {wrong[0]}: one number must be 1 and the others 0")
        return np.ascontiguousarray(actions, np.float32), count
    numbers = actions.reshape(-1)
    if numbers.dtype.kind not in "biuf":
        raise DataError(f"{name}: {key!r} has type {numbers.dtype}; it must be numbers of choices")
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(~((numbers >= 0) & (numbers < count) & (numbers == np.floor(numbers))))
    if len(wrong):
        raise DataError(
            f"{name}: {key!r} is {numbers[wrong[0]]} in row {wrong[0]}; of {count} {CHOICES} it must be a whole number "
            f"from 0 to {count - 1}"
        )
    found = np.zeros((len(numbers), count), np.float32)
    found[np.arange(len(numbers)), numbers.astype(np.int64)] = 1
    return found, count


def _count(name: str, stated: Any) -> int:
    try:
        number = float(stated)
        whole = int(number) if number == int(number) else 0
    except (TypeError, ValueError, OverflowError):
        whole = 0
    if not 2 <= whole <= MOST:
        raise DataError(f"{name}: {CHOICES!r} is {str(stated)[:100]!r}; it must be a whole number from 2 to {MOST}")
    return whole
