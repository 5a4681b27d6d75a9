"""`PlanSettings`: how plans are made, on a processor and on a GPU alike."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """What native/plan.h's job does to each row."""

    populations: tuple[int, ...]
    """New samples of each iteration."""
    sigma: float
    """First deviation, in half ranges of the action."""
    elites: int = 1
    kept: int = 0
    """Elites that are candidates again, at most `elites`."""
    temperature: float | None = None
    """Weights instead of elites (MPPI); the first candidate is then the mean itself."""
    momentum: float = 0.0
    discount: float = 1.0
    cost_limit: float | None = None
    tail: int | None = None
    """A candidate is worth the mean of so many of its worst futures, and costs likewise; None: of all."""
    truncated: bool = False
    """Samples are of a normal distribution cut at two deviations, which are at most half the way to a bound."""
    noisy: bool = False
    """Futures have process noise, which all candidates of a plan share."""
