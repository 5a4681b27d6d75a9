"""How good and how varied a dataset is: trajectory quality, and how much of state and action space it covers.

TQ and SACo: Schweighofer, Dinu, Radler, Hofmarcher, Patil, Bitto-Nemling, Eghbal-zadeh and Hochreiter, "A dataset
perspective on offline reinforcement learning" (2022). Their counts of continuous data are of the first 100,000
transitions of a file, each dimension cut by 5 edges between the least and the largest value of a reference dataset. A
count says nothing without these numbers, and nothing near its ceiling, the number of rows: so `Coverage` has them, and
`projected_coverage` beside it does not saturate.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import in_words
from surefoot.data.catalogue import reference_scores
from surefoot.data.conventions import scored
from surefoot.data.dataset import Array, Dataset

EDGES, ROWS = 5, 100_000
"""Edges a dimension, and transitions that are counted, as published for continuous data."""
REGISTERS = 14
"""log2 of the registers of `approximate_count`: its standard error is 1.04 / sqrt(2^14), 0.8 %."""
PROJECTIONS, CELLS = 32, 16
"""Of `projected_coverage`: random planes, and cells along each of their two axes."""

Limits = tuple[Array, Array]
"""(d,) least and largest value of each dimension of state and action."""


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How many different cells of state and action space a dataset visits, and how that was counted."""

    unique: int
    rows: int  # that were counted: the ceiling of `unique`
    edges: int  # a dimension; below the first and above the last is a cell too
    limits_of: str  # the dataset whose range the edges divide

    @property
    def saturated(self) -> bool:
        """Whether nine rows of ten are in cells of their own, so that the count says little of the data."""
        return self.unique > 0.9 * self.rows


def state_actions(dataset: Dataset, rows: int = ROWS) -> Array:
    """(n, d) observation and action of the first `rows` transitions, side by side.

    Raises:
        DataError: observations are images or several arrays.
    """
    if dataset.observation_dim == 0:
        raise DataError(
            f"{dataset.name}: coverage is counted of one vector, and observations are {in_words(dataset.arrays)}"
        )
    return np.concatenate([dataset.observations[:rows], dataset.actions[:rows]], 1).astype(np.float64)


def limits(*datasets: Dataset) -> Limits:
    """The range that all rows of these datasets span together."""
    pairs = [state_actions(dataset, len(dataset)) for dataset in datasets]
    return np.min([pair.min(0) for pair in pairs], 0), np.max([pair.max(0) for pair in pairs], 0)


def cells(values: Array, bounds: Limits, edges: int = EDGES) -> Array:
    """(n, d) uint8 or uint16: which of the edges + 1 cells each value lies in, as np.digitize counts them.

    Raises:
        ConfigError: fewer than two edges, or more than 60,000.
    """
    if not 2 <= edges <= 60_000:
        raise ConfigError(f"edges is {edges}; coverage needs from 2 to 60,000 a dimension")
    kind = np.uint8 if edges < 256 else np.uint16
    found = np.zeros(values.shape, kind)
    for i, (low, high) in enumerate(zip(*bounds, strict=True)):
        found[:, i] = np.digitize(values[:, i], np.linspace(low, high, edges))
    return found


def exact_count(rows: Array) -> int:
    """How many different rows a (n, d) table of whole numbers has."""
    whole = np.ascontiguousarray(rows)
    return len(np.unique(whole.view([("", whole.dtype)] * whole.shape[1])))


def approximate_count(rows: Array, registers: int = REGISTERS) -> int:
    """As `exact_count`, by HyperLogLog: 16 kB of memory whatever the number of rows, and 0.8 % of error.

    Source: Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog: the analysis of a near-optimal cardinality estimation
    algorithm" (2007), with its correction for small counts (linear counting).
    """
    size = 1 << registers
    hashed = _hashes(rows)
    place = (hashed >> np.uint64(64 - registers)).astype(np.int64)
    rest = (hashed << np.uint64(registers)) | np.uint64(size - 1)  # a sentinel: the rank is at most 64 - registers + 1
    rank = (64 - np.floor(np.log2(rest.astype(np.float64)))).astype(np.int64)
    highest = np.zeros(size, np.int64)
    np.maximum.at(highest, place, rank)
    estimate = 0.7213 / (1 + 1.079 / size) * size**2 / float((2.0**-highest).sum())
    empty = int((highest == 0).sum())
    if estimate <= 2.5 * size and empty:
        estimate = size * math.log(size / empty)
    return round(estimate)


def _hashes(rows: Array) -> Array:
    """(n,) uint64 of a (n, d) table of whole numbers: each column mixed into a state by splitmix64's finaliser."""
    state = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        for column in rows.T:
            state = (state ^ column.astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(30)
            state *= np.uint64(0xBF58476D1CE4E5B9)
            state ^= state >> np.uint64(27)
            state *= np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return state


def coverage(
    dataset: Dataset,
    reference: Dataset | None = None,
    edges: int = EDGES,
    rows: int = ROWS,
    bounds: Limits | None = None,
) -> Coverage:
    """Cells of state and action space that a dataset visits.

    Args:
        dataset: of one observation vector.
        reference: whose range the edges divide; None: the dataset itself.
        edges: a dimension.
        rows: the first so many transitions count.
        bounds: the range, where it is known already; the reference then only lends its name.
    """
    of = reference or dataset
    counted = state_actions(dataset, rows)
    _same_problem(dataset, of)
    unique = exact_count(cells(counted, limits(of) if bounds is None else bounds, edges))
    return Coverage(unique, len(counted), edges, of.name)


def saco(dataset: Dataset, reference: Dataset, edges: int = EDGES, rows: int = ROWS) -> float:
    """SACo: cells that the dataset visits over those of a reference of the same size, such as the task's replay buffer.

    1 of the reference itself; random data may exceed it. Both are counted on the number of rows of the smaller one, at
    most `rows`.
    """
    rows = min(rows, len(dataset), len(reference))
    bounds = limits(reference)
    mine, theirs = (coverage(one, reference, edges, rows, bounds).unique for one in (dataset, reference))
    return mine / theirs


def projected_coverage(dataset: Dataset, bounds: Limits | None = None, rows: int = ROWS, seed: int = 0) -> float:
    """Share of the cells of random planes through state and action space that a dataset visits, 0 to 1.

    Each dimension is scaled to [-1, 1] by `bounds`; `PROJECTIONS` planes are drawn, and `CELLS` by `CELLS` cells
    of each, three standard deviations of a uniform point wide, are counted. Unlike `coverage` it does not saturate in
    many dimensions, and it compares datasets of one task whatever their size beyond some thousands of rows.
    """
    low, high = limits(dataset) if bounds is None else bounds
    span = np.where(high > low, high - low, 1.0)
    points = 2 * (state_actions(dataset, rows) - low) / span - 1
    generator = np.random.default_rng(seed)
    shares = []
    for _ in range(PROJECTIONS):
        plane, _ = np.linalg.qr(generator.standard_normal((points.shape[1], min(2, points.shape[1]))))
        seen = points @ plane * math.sqrt(3)  # a uniform point has deviation 1 then
        inside = np.clip(((seen + 3) / 6 * CELLS).astype(np.int64), 0, CELLS - 1)
        shares.append(exact_count(inside) / CELLS ** inside.shape[1])
    return float(np.mean(shares))


def trajectory_quality(dataset: Dataset, reference: tuple[float, float] | None = None) -> float | None:
    """TQ: (mean return - random) / (expert - random); None where no reference returns are known, or no rewards.

    Args:
        dataset: all stored episodes count, each to its stored end, by what its task scores (`conventions.scored`).
        reference: returns of random and of expert behaviour; None: those of the catalogue.
    """
    reference = reference or reference_of(dataset)
    if reference is None or not dataset.has_rewards:
        return None
    low, high = reference
    return float((scored(dataset).mean() - low) / (high - low))


def reference_of(dataset: Dataset) -> tuple[float, float] | None:
    """Returns that count as 0 and as 1 for a dataset: of its name, else of its environment."""
    found = reference_scores(dataset.name)
    return found if found is not None or dataset.env_id is None else reference_scores(dataset.env_id)


def measures(dataset: Dataset, reference: Dataset | None = None) -> dict[str, Any]:
    """TQ, unique cells, SACo where there is a reference, and projected coverage, with what they depend on.

    All counts are of as many rows, those of the smaller of the two, at most `ROWS`.
    """
    bounds = limits(reference or dataset)
    rows = min(ROWS, len(dataset), len(reference or dataset))
    found = coverage(dataset, reference, rows=rows, bounds=bounds)
    theirs = None if reference is None else coverage(reference, rows=rows, bounds=bounds).unique
    return {
        "tq": trajectory_quality(dataset),
        "unique_cells": found.unique,
        "cells_of_rows": found.rows,
        "cells_saturated": found.saturated,
        "edges": found.edges,
        "limits_of": found.limits_of,
        "saco": None if theirs is None else found.unique / theirs,
        "projected_coverage": projected_coverage(dataset, bounds, rows),
    }


def _same_problem(dataset: Dataset, reference: Dataset) -> None:
    mine, theirs = ((one.observation_dim, one.action_dim) for one in (dataset, reference))
    if mine != theirs:
        raise DataError(
            f"{dataset.name} has {mine[0]} observations and {mine[1]} actions, and the reference {reference.name} "
            f"{theirs[0]} and {theirs[1]}: give a reference of the same task"
        )
