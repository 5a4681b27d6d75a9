"""What evaluation asks of an adapter's rows beside the contract: pauses, seeds of the next resets, a time limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefoot.envs.interface import Array, VectorEnvironment


class PausableRows(VectorEnvironment):
    """A vector environment whose rows can be paused and whose next automatic resets can be seeded.

    A paused row repeats its last observation with reward 0 and no flag, and `info["valid"]` is False there.
    """

    max_episode_steps: int | None = None
    """Time limit of an episode."""
    called: str | None = None
    """The id that it was made by, for messages."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.active: Array = np.ones(self.num_envs, np.bool_)
        """(N,) bool: rows that `step` moves."""
        self.next_seeds: list[int | None] = [None] * self.num_envs
        """Seed of each row's next automatic reset; None continues the row's own random numbers."""
        self._heeded: list[int | None] = list(self.next_seeds)

    @property
    def paused(self) -> bool:
        """Whether any row is."""
        return not bool(self.active.all())

    def newly_seeded(self) -> list[int]:
        """Rows whose `next_seeds` were set, or set otherwise, since the last call."""
        if self.next_seeds == self._heeded:
            return []
        pairs = zip(self.next_seeds, self._heeded, strict=True)
        found = [row for row, (now, before) in enumerate(pairs) if now is not None and now != before]
        self._heeded = list(self.next_seeds)
        return found

    def all_active(self) -> None:
        """As after a reset of all rows."""
        self.active[:] = True
