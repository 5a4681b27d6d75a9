"""`Timeline`: which planned action is for which control tick, and what became of every action that was planned.

Chunks come in while the robot moves: each action of a chunk is for one tick, counted from the tick at which the
observation was taken. A newer chunk takes over from the older one, which it replaces, fades out or is averaged with.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from surefoot.core.actors.overlap import check_decay, fade_weights

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(slots=True)
class Counts:
    """What happened since the last `clear`. Nothing is lost on the way, as two sums tell at any time:

    ticks == played + held, and received * C == played + stale + replaced + dropped + those still ahead.
    """

    ticks: int = 0
    """Control ticks: actions given."""
    played: int = 0
    """Ticks whose action a chunk had planned for them."""
    held: int = 0
    """Ticks without one: the last action was held, or the robot was brought towards the safe action."""
    mixed: int = 0
    """Of the played: those averaged or faded from several chunks."""
    limited: int = 0
    """Ticks whose action was cut to the rate bound."""
    asked: int = 0
    """Inferences started."""
    received: int = 0
    """Chunks that came."""
    late: int = 0
    """Chunks that were not there at their deadline."""
    expired: int = 0
    """Of the late: those that came when all their actions were over."""
    stale: int = 0
    """Planned actions whose tick passed before they could be played."""
    replaced: int = 0
    """Planned actions for whose tick a newer chunk has one; of a fade or an average they are a part of it."""
    dropped: int = 0
    """Planned actions that were left at the end of an episode."""
    largest_jump: float = 0.0
    """Between actions of successive ticks, over all dimensions, in the environment's units."""

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return dataclasses.asdict(self)


class Timeline:
    """The plan: an action for each tick from `base` on, C at most.

    Args:
        chunk: C.
        action_dim: A.
        counts: where stale, replaced and dropped actions are counted.
    """

    def __init__(self, chunk: int, action_dim: int, counts: Counts) -> None:
        self.chunk, self.action_dim, self.counts = chunk, action_dim, counts
        self.empty()

    def empty(self) -> None:
        """Nothing is planned."""
        self.actions: Array = np.zeros((0, self.action_dim))
        """(n, A) of the ticks base .. base + n - 1."""
        self.base = self.next = 0
        """`next` is the first tick whose action was neither played nor given up."""

    @property
    def ahead(self) -> int:
        """Actions that are planned and not over."""
        return max(0, self.base + len(self.actions) - self.next)

    def rest(self, tick: int) -> Array:
        """(n, A) what is planned for `tick` and the ticks after it."""
        return self.actions[max(0, tick - self.base) :]

    def at(self, tick: int) -> Array | None:
        """(A,) the action planned for `tick`, or None."""
        position = tick - self.base
        return self.actions[position] if 0 <= position < len(self.actions) else None

    def pass_by(self, tick: int, played: bool) -> None:
        """`tick` is over; its action, where there is one, was played or not."""
        if self.next <= tick < self.base + len(self.actions):
            if played:
                self.counts.played += 1
            else:
                self.counts.stale += 1
        self.next = tick + 1

    def drop(self) -> None:
        """Give up what is planned: the episode is over."""
        self.counts.dropped += self.ahead
        self.empty()

    def take(self, actions: Array, base: int, tick: int, last: Array | None) -> None:
        """A chunk takes over at `tick`.

        Args:
            actions: (C, A), the first one for the tick `base`.
            base: at most `tick`: the actions before are stale.
            tick: the present one.
            last: (A,) what was given at the tick before; None at an episode's first.
        """
        stale = min(tick - base, len(actions))
        self.counts.stale += stale
        self.counts.expired += stale == len(actions)
        if stale == len(actions):
            return
        older = self.rest(tick)
        self.counts.replaced += len(older)
        self.actions = self.joined(older, actions[stale:], last)
        self.base = self.next = tick

    def joined(self, older: Array, newer: Array, last: Array | None) -> Array:
        """(n, A) the plan from the present tick on, of (m, A) older and (n, A) newer actions; the newer ones alone."""
        return newer

    def mixed(self, tick: int) -> bool:
        """Whether the action for `tick` is made of several chunks."""
        return False


class FadingTimeline(Timeline):
    """The older chunk is faded out over n ticks (`core.actors.overlap.fade_weights`).

    Where it ends before, its last action continues for the fade; where it has ended, the action given last does.
    """

    def __init__(self, chunk: int, action_dim: int, counts: Counts, ticks: int, fade: str = "linear") -> None:
        self.shares: Array = np.array(fade_weights(ticks, fade)).reshape(-1, 1)
        self.mixing = 0
        super().__init__(chunk, action_dim, counts)

    def joined(self, older: Array, newer: Array, last: Array | None) -> Array:
        """As of any; the first actions are mixed."""
        self.mixing = count = 0 if last is None else min(len(self.shares), len(newer))
        if count == 0 or last is None:
            return newer
        end = older[-1:] if len(older) else last.reshape(1, -1)
        extended = np.concatenate([older[:count], np.repeat(end, count - min(count, len(older)), 0)])
        plan: Array = np.array(newer, np.float64)
        plan[:count] = extended + self.shares[:count] * (plan[:count] - extended)
        return plan

    def mixed(self, tick: int) -> bool:
        """As of any."""
        return tick - self.base < self.mixing


class AveragingTimeline(Timeline):
    """Each tick's action is the average of all chunks that have one for it (`core.actors.overlap.check_decay`)."""

    def __init__(self, chunk: int, action_dim: int, counts: Counts, decay: float = 0.01) -> None:
        check_decay(decay, chunk)
        self.powers = [math.exp(-decay * count) for count in range(chunk + 1)]
        super().__init__(chunk, action_dim, counts)

    def empty(self) -> None:
        """As of any."""
        super().empty()
        self.predictions: Array = np.zeros(0, np.int64)
        """(n,) chunks that each planned action is made of."""
        self.weights: Array = np.zeros(0)
        """(n,) sums of their weights."""

    def joined(self, older: Array, newer: Array, last: Array | None) -> Array:
        """As of any; where both have an action it is the average of all so far."""
        count, both = len(newer), min(len(older), len(newer))
        found, weights = np.zeros(count, np.int64), np.zeros(count)
        begin = len(self.predictions) - len(older)
        found[:both] = self.predictions[begin : begin + both]
        weights[:both] = self.weights[begin : begin + both]
        plan: Array = np.array(newer, np.float64)
        weight = np.take(self.powers, found)
        share = (weight / (weights + weight))[:both, None]
        plan[:both] = older[:both] + share * (plan[:both] - older[:both])
        self.predictions, self.weights = found + 1, weights + weight
        return plan

    def mixed(self, tick: int) -> bool:
        """As of any."""
        return bool(self.predictions[tick - self.base] > 1)
