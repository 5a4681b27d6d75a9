"""The constraint signal h of each step, h > 0 where it violates: the one place where margins change their sign.

A dataset's margin is >= 0 where the constraint is kept, and its cost > 0 where it is not; the room safe/ has
h > 0 for a violation and V <= 0 for a safe state throughout.

Time: h of row t is of that row's own step, as the stored costs and margins are: what the environment reported of taking
a_t in s_t. Physically it belongs to s_{t+1}; FISOR reads it as h(s_t), and so do we. V_h(s_t) is then about the steps
from t on, the first of which ends in s_{t+1}: a state that violates already, but whose next one does not, counts as
safe.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.data.dataset import Array, Dataset
from surefoot.safe.constraint.costs import checked_costs, checked_margins

SIGNALS = ("auto", "margin", "published")
PUBLISHED_VIOLATION = 25.0
"""M: what a violating step counts in FISOR's published signal; a safe one counts -1."""
MARGINS_FROM = "margins_from"
"""Attribute of a dataset whose margins were computed, not stored: says from what."""


@dataclasses.dataclass(frozen=True)
class Signal:
    """h of each step of a dataset, and where it comes from."""

    values: Array  # (N,) float32, > 0 on a violating step
    kind: str  # margin or published
    source: str  # in words, for the user


def constraint_signal(
    dataset: Dataset, how: str = "auto", violation: float = PUBLISHED_VIOLATION, algorithm: str = "fisor"
) -> Signal:
    """h of each step.

    Args:
        dataset: with costs, with `extras["margins"]` (N,), or both.
        how: "margin": minus the dataset's margin; "published": -1 on a safe step and `violation` on another, whatever
            the size of its cost (FISOR); "auto": the margin where there is one, else the published signal.
        violation: M > 0 of the published signal. A violation k steps ahead shows in V_h while
            k < ln(1 + M) / -ln(discount): 324 steps for 25 at 0.99, and 68 for 1.
        algorithm: whom errors name.

    Raises:
        ConfigError: another word, or `violation` <= 0.
        DataError: no costs, negative ones; "margin" without margins, margins that are not (N,) finite numbers; "auto"
            where margins and costs contradict each other.
    """
    if how not in SIGNALS:
        raise ConfigError(f"{algorithm}.signal is {how!r}; {nearest(how, SIGNALS)}")
    if not violation > 0:
        raise ConfigError(f"{algorithm}.violation is {violation}, must be > 0")
    costs = checked_costs(dataset, algorithm)
    has_margins = "margins" in dataset.extras
    if how == "margin" and not has_margins:
        raise DataError(
            f"{dataset.name}: has no margins, and none can be computed from its steps; choose "
            f"{algorithm}.signal=published, or add a column `margins` (N,), negative on each violating step"
        )
    if not has_margins or how == "published":
        values = np.where(costs > 0, np.float32(violation), np.float32(-1))
        return Signal(values, "published", f"the published signal: -1 on a safe step, {violation:g} on a violating one")
    margins = checked_margins(dataset)
    if how == "auto":
        _agree(dataset, margins, costs, algorithm)
    source = dataset.attributes.get(MARGINS_FROM, "stored in the dataset")
    return Signal((-margins).astype(np.float32), "margin", f"minus the margin {source}")


def _agree(dataset: Dataset, margins: Array, costs: Array, algorithm: str) -> None:
    differing = np.flatnonzero((margins < 0) != (costs > 0))
    if len(differing):
        row = int(differing[0])
        raise DataError(
            f"{dataset.name}: margins and costs contradict each other in {len(differing)} rows (row {row}: margin "
            f"{margins[row]:g}, cost {costs[row]:g}); choose {algorithm}.signal=margin or {algorithm}.signal=published"
        )
