"""Rows with goals: each row of a batch is asked for observations that came later, came at random, or is its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.sources import MAIN, Batch, Drawn, Stores
from surefoot.data.samplers import uniform_rows
from surefoot.data.store import Store, segment_ids

NUMBERS = 5
"""Uniform numbers of a row: the row itself, then kind and place of each of its two goals."""
OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"
VALUE_GOALS, ACTOR_GOALS, GOAL_REWARDS, GOAL_MASKS = "value_goals", "actor_goals", "goal_rewards", "goal_masks"
WAYPOINTS, SUBGOALS = "waypoints", "subgoals"


@dataclasses.dataclass(frozen=True)
class GoalShares:
    """Of which goals are: the row's own observation, one that came later in its episode, any of the data."""

    own: float
    later: float
    any: float
    geometric: bool = True
    """Whether a later row is a geometric number of steps ahead, by the discount; else uniform to the episode's end."""

    def __post_init__(self) -> None:
        parts = (self.own, self.later, self.any)
        if not all(math.isfinite(part) and part >= 0 for part in parts) or abs(sum(parts) - 1) > 1e-6:
            raise ConfigError(f"shares of goals are {parts}: the row's own, later ones and any add up to 1")


def goal_shares(name: str, shares: Sequence[float], geometric: bool, option: str) -> GoalShares:
    """The shares that an option of an algorithm gives.

    Raises:
        ConfigError: not three numbers that add up to 1; the message names algorithm and option.
    """
    if len(shares) != 3:
        raise ConfigError(f"{name}: {option} has {len(shares)} numbers; own, later and any are three that add up to 1")
    try:
        own, later, any_row = map(float, shares)
        return GoalShares(own, later, any_row, geometric)
    except ConfigError as error:
        raise ConfigError(f"{name}: {option}: {error}") from error


def last_rows(ids: Tensor) -> Tensor:
    """(N,) int64: the last row of each row's episode, for (N,) ids 0, 0, ..., 1, ... of rows in the order of time."""
    ends = torch.cat([(ids[1:] != ids[:-1]).nonzero().squeeze(1), torch.tensor([len(ids) - 1], device=ids.device)])
    return ends[ids]


def later_rows(rows: Tensor, last: Tensor, uniform: Tensor, discount: float | None) -> Tensor:
    """A row later in the same episode for each of `rows`; from the episode's last row on it is that row itself.

    Args:
        rows: (...,) int64.
        last: (...,) int64, the last rows of their episodes.
        uniform: (...,) float64 in [0, 1).
        discount: a row is k steps ahead with probability (1 - discount) discount^(k - 1), k = 1, 2, ..., and at the
            last where that is behind it; None: uniform from the next row to the last, the two at half the chance of
            the others (OGBench rounds).
    """
    if discount is None:
        first = torch.minimum(rows + 1, last)
        return (uniform * first + (1 - uniform) * last).round().long()
    ahead = (torch.log1p(-uniform) / math.log(discount)).floor() + 1
    return torch.minimum(rows + ahead.clamp(max=2.0**40).long(), last)


class GoalRows(Drawn):
    """Rows of a dataset, each with a goal for values and one for the actor, drawn independently of each other.

    A batch has the columns of the store and, all (B, G): `value_goals`, `actor_goals`; (B,): `goal_rewards` and
    `goal_masks`, which are -1 and 1 but for rows that are their own value goal, which have 0 and 0 (or 0 and 1 for a
    reward that counts successes). With `steps` also `waypoints` (B, O), the observation so many steps ahead, at most at
    the episode's end; and `subgoals` (B, O), the same, but not past the actor's goal where that is a later row of the
    episode.

    Whether a goal is met is encoded by rows, never by comparing observations. An episode's observation after its last
    action is no goal.

    Source: Park, Frans, Eysenbach and Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL" (ICLR 2025), appendix
    C, and seohongpark/ogbench.
    """

    def __init__(
        self,
        store: Store,
        ids: Tensor,
        *,
        value: GoalShares,
        actor: GoalShares,
        discount: float,
        columns: Sequence[int] = (),
        negative: bool = True,
        steps: int | None = None,
        stream: str = MAIN,
    ) -> None:
        """Draw rows of a store.

        Args:
            store: N rows in the order of time, with observations.
            ids: (N,) int64 of their episodes, as `store.segment_ids` gives them.
            value: shares of goals of values.
            actor: shares of goals of the actor.
            discount: of geometric numbers of steps.
            columns: numbers of the observation that are a goal; none: all.
            negative: reward -1 until the goal is met, then 0; else 0, then 1.
            steps: to the waypoints and subgoals; None: there are none.
            stream: of random numbers.

        Raises:
            ConfigError: a column that the observations do not have.
        """
        super().__init__(stream)
        self.store, self.value, self.actor = store, value, actor
        self.discount, self.negative, self.steps = discount, negative, steps
        self.last = last_rows(ids.to(store.device))
        width = store[OBSERVATIONS].shape[-1]
        bad = [column for column in columns if not 0 <= column < width]
        if bad:
            raise ConfigError(f"goal columns {bad}: observations have {width} numbers, 0 to {width - 1}")
        self.columns = torch.tensor(list(columns), device=store.device) if columns else None

    def draw(self, source: CounterGenerator, shape: tuple[int, ...]) -> Tensor:
        """(S, *shape, 3 or 5) int64: the row, its goals and, with `steps`, waypoint and subgoal."""
        numbers = source.random((*shape, NUMBERS)).unbind(-1)
        rows = uniform_rows(numbers[0], len(self.store))
        last = self.last[rows]
        value = self._goals(rows, last, numbers[1], numbers[2], self.value)
        actor = self._goals(rows, last, numbers[3], numbers[4], self.actor)
        found = [rows, value, actor]
        if self.steps is not None:
            ahead = torch.minimum(rows + self.steps, last)
            on_the_way = numbers[3] < self.actor.own + self.actor.later
            found += [ahead, torch.where(on_the_way, torch.minimum(ahead, actor), ahead)]
        return torch.stack(found, -1)

    def _goals(self, rows: Tensor, last: Tensor, kind: Tensor, place: Tensor, shares: GoalShares) -> Tensor:
        later = later_rows(rows, last, place, self.discount if shares.geometric else None)
        drawn = torch.where(kind < shares.own + shares.later, later, uniform_rows(place, len(self.store)))
        return torch.where(kind < shares.own, rows, drawn)

    def rows(self, step: int) -> Tensor:
        """(S, rows, 3 or 5) int64 rows of training step `step`: as `draw`."""
        return self.drawn(step)

    def goals(self, rows: Tensor) -> Tensor:
        """(..., G) goals: the observations of (...,) rows, or the chosen numbers of them."""
        found = self._observations(rows)
        return found if self.columns is None else found.index_select(-1, self.columns)

    def _observations(self, rows: Tensor) -> Tensor:
        column = self.store[OBSERVATIONS]
        return column.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *column.shape[1:])

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The rows at `indices` (..., 3 or 5), as `rows` gives them, and their goals."""
        rows, value, actor, *ways = indices.unbind(-1)
        batch = self.store.gather(rows.contiguous())
        met = (rows == value).to(batch[OBSERVATIONS].dtype)
        batch |= {
            VALUE_GOALS: self.goals(value),
            ACTOR_GOALS: self.goals(actor),
            GOAL_REWARDS: met - 1 if self.negative else met,
            GOAL_MASKS: 1 - met,
        }
        if ways:
            batch |= {WAYPOINTS: self._observations(ways[0]), SUBGOALS: self._observations(ways[1])}
        return batch


def episodes_of(stores: Stores) -> Tensor:
    """(N,) int64 ids of the episodes of a run's stored rows, as `GoalRows` takes them."""
    return torch.as_tensor(segment_ids(stores.dataset, stores.data.keys))
