"""`DrawnEpisodes`: an environment each of whose episodes begins with something drawn for its row, as seeds decide."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from surefoot.core.base.random import generator
from surefoot.envs.around import Around
from surefoot.envs.interface import Array, row_seeds


class DrawnEpisodes(Around):
    """Base of environments that draw where an episode starts, or what its constants are.

    What is drawn for a row depends on its seed and on how many draws there were, on nothing else.
    """

    purpose: ClassVar[str]
    """Names the random numbers (`core.base.random.generator`)."""
    passed_on: ClassVar[tuple[str, ...]] = ("active", "max_episode_steps", "goals", "diverged_episodes")

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._draws, self._seeds = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, np.uint64)
        self._saves = hasattr(env, "get_state")
        self.unsaved: str | None = getattr(env, "unsaved", None) if self._saves else type(env).__name__
        """What of it `get_state` does not save: the environment itself, where that can't be saved."""

    def seed_draws(self, rows: Array, seed: Any) -> None:
        """Begin the draws of (n,) rows anew, by a seed for all rows or one each; None draws one."""
        entropy = int(np.random.SeedSequence().generate_state(1)[0])
        given = row_seeds(entropy if seed is None else seed, self.num_envs)
        for row in rows.tolist():
            if given[row] is not None:
                self._seeds[row], self._draws[row] = int(given[row]) % 2**64, 0  # type: ignore[arg-type]

    def numbers(self, row: int) -> np.random.Generator:
        """Random numbers of a row's next draw."""
        return generator(int(self._seeds[row]), self.purpose, int(self._draws[row]))
