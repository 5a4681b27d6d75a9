"""How safe episodes were: the distribution of their costs, how many broke the constraint, and the limit beside it.

A mean alone hides the one episode in twenty that is far over. So whatever shows a cost shows where the costliest
twentieth begins, the share of episodes with any violation, and violations per step and per episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.schema import Record, check
from surefoot.data.dsrl import normalized_cost
from surefoot.evaluation.rollout import Episodes

TAIL = 0.95


@dataclasses.dataclass(frozen=True)
class Safety:
    """Costs of the episodes of all seeds together, as undiscounted sums over an episode."""

    episodes: int
    mean: float
    percentile_95: float
    """Nineteen of twenty episodes cost at most this (linear between order statistics)."""
    largest: float
    violated: float
    """Share of the episodes with a step of a cost above 0; where steps were not counted, with a sum above 0."""
    per_step: float | None
    """Steps with a cost above 0, as a share of all steps; None where steps were not counted."""
    per_episode: float | None
    """Steps with a cost above 0, per episode."""
    limit: float | None = None
    """That the sum of an episode's costs should keep to; None where there is none."""
    normalized: float | None = None
    """(mean + e) / (limit + e), e = 1 where the limit is 0 (DSRL): at most 1 keeps to the limit."""
    over_limit: float | None = None
    """Share of the episodes that cost more than the limit."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Safety:
        """Inverse of `to_json`.

        Raises:
            CheckpointError: a key is missing, unknown or no number, or a limit or count of steps has no numbers to it.
        """
        check(value, Record.of(cls), "the costs")
        found = cls(**value)
        for given, needed in (("limit", "normalized"), ("per_step", "per_episode")):
            if (getattr(found, given) is None) != (getattr(found, needed) is None):
                raise CheckpointError(f"the costs: of {given} and {needed} one is given and one is not; it is damaged")
        return found

    def sentence(self) -> str:
        """The numbers in words."""
        steps = "" if self.per_step is None else f", {100 * self.per_step:.3g} % of steps ({self.per_episode:.4g} each)"
        text = (
            f"cost of an episode: mean {self.mean:.1f}, 95th percentile {self.percentile_95:.1f}, "
            f"largest {self.largest:.1f}; {100 * self.violated:.3g} % of {self.episodes:,} episodes violate{steps}"
        )
        if self.limit is None:
            return text
        above = "" if self.over_limit is None else f", {100 * self.over_limit:.3g} % of episodes above it"
        return f"{text}; normalised cost {self.normalized:.3g} at the limit {self.limit:g}{above}"


def safety(found: Sequence[Episodes], limit: float | None = None) -> Safety | None:
    """The safety of the episodes of some seeds; None where any of them has no costs.

    Args:
        found: the episodes of each seed.
        limit: of an episode's undiscounted cost, at least 0.

    Raises:
        ConfigError: a limit below 0 or not finite.
    """
    check_limit(limit)
    given = [episodes.costs for episodes in found if episodes.costs is not None]
    if not given or len(given) < len(found):
        return None
    costs = np.concatenate(given)
    violated = costs > 0
    counted = [episodes.violations for episodes in found if episodes.violations is not None]
    steps = per_episode = None
    if len(counted) == len(found):
        violations = np.concatenate(counted)
        violated = violations > 0
        steps = int(violations.sum()) / int(sum(episodes.lengths.sum() for episodes in found))
        per_episode = int(violations.sum()) / len(costs)
    return Safety(
        episodes=len(costs),
        mean=float(costs.mean()),
        percentile_95=float(np.quantile(costs, TAIL)),
        largest=float(costs.max()),
        violated=float(violated.mean()),
        per_step=steps,
        per_episode=per_episode,
        limit=limit,
        normalized=None if limit is None else float(normalized_cost(costs.mean(), limit)),
        over_limit=None if limit is None else float((costs > limit).mean()),
    )


def with_limit(found: Safety, limit: float) -> Safety:
    """The same numbers beside another limit; how many episodes are above that one is not known."""
    check_limit(limit)
    normalized = float(normalized_cost(found.mean, limit))
    return dataclasses.replace(found, limit=limit, normalized=normalized, over_limit=None)


def check_limit(limit: float | None) -> None:
    """Refuse a cost limit that no sum of costs could be held to."""
    if limit is not None and not (np.isfinite(limit) and limit >= 0):
        raise ConfigError(f"the cost limit is {limit}; it bounds what an episode costs, so it must be 0 or more")
