"""Comparisons of stretches of a dataset, answered by a person or by rewards, as `algo=preferences` reads them."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.files import written_aside
from surefoot.data.comparisons import drawn_pairs, starts
from surefoot.data.dataset import Array, Dataset
from surefoot.data.store import segment_ids

ANSWERS = {"1": 1.0, "2": 0.0, "0": 0.5}
"""What a person types -> preferred."""
SKIP, QUIT = "s", "q"

Answer = Callable[[int, Array, Array], float | None]
"""(number of the pair, (H,) rows of the first, (H,) of the second) -> preferred, None to skip it; EOFError ends."""


def by_rewards(dataset: Dataset) -> Answer:
    """Prefers the stretch with the greater sum of the dataset's rewards.

    Raises:
        DataError: it has none.
    """
    if not dataset.has_rewards:
        raise DataError(f"{dataset.name}: has no rewards to compare by: label by a person or a function")

    def answer(number: int, first: Array, second: Array) -> float:
        difference = float(dataset.rewards[first].sum(dtype=np.float64) - dataset.rewards[second].sum(dtype=np.float64))
        return 0.5 * (float(np.sign(difference)) + 1)

    return answer


def by_person(dataset: Dataset, say: Callable[[str], None], ask: Callable[[str], str]) -> Answer:
    """Shows both stretches in numbers and asks: 1, 2, 0 for equal, s to skip, q to end."""
    names = dataset.observation_names or tuple(f"observation {i}" for i in range(dataset.observation_dim))

    def answer(number: int, first: Array, second: Array) -> float | None:
        for which, rows in (("1", first), ("2", second)):
            say(f"pair {number}, stretch {which}: episode {int(dataset.episode_ids[rows[0]])}, {len(rows)} steps")
            shown = rows[[0, len(rows) // 2, -1]]
            for name, column in zip(names, dataset.observations[shown].T, strict=True):
                say(f"  {name}: " + " -> ".join(f"{value:.4g}" for value in column))
            for i, column in enumerate(dataset.actions[rows].T):
                say(f"  action {i}: mean {column.mean():.4g}, from {column.min():.4g} to {column.max():.4g}")
        while True:
            typed = ask("better: 1 or 2, 0 equal, s skip, q end? ").strip().lower()
            if typed in ANSWERS:
                return ANSWERS[typed]
            if typed == SKIP:
                return None
            if typed == QUIT:
                raise EOFError
            say(f"{typed!r} is none of 1, 2, 0, s and q")

    return answer


def label(
    dataset: Dataset, path: str | os.PathLike[str], answer: Answer, *, pairs: int, horizon: int, seed: int = 0
) -> dict[str, Any]:
    """Draw pairs of stretches, have them answered, and write those that were, in the dataset's units.

    Args:
        dataset: of one vector an observation.
        path: a new .npz file.
        answer: who compares.
        pairs: drawn.
        horizon: H steps of a stretch.
        seed: of the draw.

    Returns:
        JSON values: pairs written, skipped, and of how many neither was better.

    Raises:
        ConfigError: a number out of range, a file that exists or is none of .npz.
        DataError: images, or no episode as long as a stretch.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: labels are written as .npz; name such a file")
    if path.exists():
        raise ConfigError(f"{path}: exists already; delete it or choose another name")
    for name, value in (("pairs", pairs), ("horizon", horizon)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1", field=name, code="range")
    if not dataset.observation_dim:
        raise DataError(f"{dataset.name}: observations are images or named arrays; labels are of one vector")
    known = np.flatnonzero(dataset.valid)
    found = starts(segment_ids(dataset, ()), horizon)
    if len(found) == 0:
        raise DataError(f"{dataset.name}: no episode has {horizon} steps in a row: lower the horizon")
    one, other = drawn_pairs(found, horizon, pairs, seed)
    chosen, preferred, skipped = [], [], 0
    for number, (first, second) in enumerate(zip(known[one], known[other], strict=True), start=1):
        try:
            given = answer(number, first, second)
        except EOFError:
            break
        if given is None:
            skipped += 1
            continue
        if not 0 <= given <= 1:
            raise ConfigError(f"pair {number}: the answer is {given}; it must be in [0, 1]")
        chosen.append((first, second))
        preferred.append(given)
    if not chosen:
        raise ConfigError("no pair was answered, so nothing is written")
    firsts, seconds = (np.stack([pair[i] for pair in chosen]) for i in range(2))
    arrays = {
        "first": dataset.observations[firsts],
        "second": dataset.observations[seconds],
        "first_actions": dataset.actions[firsts],
        "second_actions": dataset.actions[seconds],
        "preferred": np.array(preferred, np.float32)[:, None],
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with written_aside(path, DataError) as aside:
        aside.write_bytes(buffer.getvalue())
    return {"pairs": len(chosen), "skipped": skipped, "equal": sum(one == 0.5 for one in preferred)}
