"""`FirstLook`: what a run says, once, of an environment's first steps: float32's losses, observations out of bounds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.precision import FIRST, ROWS, FirstSteps
from surefoot.core.base.spec import VECTOR, named
from surefoot.envs.interface import Array, as_numpy

FAR = 1.0
"""Widths of the declared box, beyond a bound, from which on a number is far outside of it."""


class FirstLook(FirstSteps):
    """The first `FIRST` steps of `ROWS` rows.

    Args:
        name: of the environment, for sentences.
        space: of one observation.
    """

    def __init__(self, name: str, space: gymnasium.Space[Any]) -> None:
        super().__init__(name)
        self._bounds = {
            key: (part.low, part.high)
            for key, part in named(
                VECTOR, dict(space.items()) if isinstance(space, gymnasium.spaces.Dict) else space
            ).items()
            if isinstance(part, gymnasium.spaces.Box) and part.dtype.kind == "f"
        }
        self._looked, self._said = 0, list[str]()

    def take(self, observations: Any, rewards: Any) -> None:
        """As `FirstSteps`; looks at the bounds too."""
        super().take(observations, rewards)
        if self._looked < FIRST and self._bounds:
            self._looked += 1
            for key, values in named(VECTOR, observations).items():
                if key in self._bounds and (words := far_outside(as_numpy(values[:ROWS]), *self._bounds[key])):
                    self._said.append(
                        f"{self.name}: its {key}{words}: declare bounds that hold (infinite ones are none), since who "
                        "scales observations by them is misled"
                    )
                    self._looked = FIRST
                    break

    def notes(self) -> list[str]:
        """Sentences, once they are known, and only once."""
        given, self._said = self._said, []
        return super().notes() + given


def far_outside(values: Array, low: Array, high: Array) -> str | None:
    """The first number that is further than `FAR` widths of the box outside of it, in words; None where there is none.

    Args:
        values: (N, ...) observations.
        low, high: (...) declared bounds; where one of them is infinite, the width is the other's magnitude, or 1.
    """
    finite = np.isfinite(low), np.isfinite(high)
    least, most = (
        np.where(there, bound, 0.0).astype(np.float64) for there, bound in zip(finite, (low, high), strict=True)
    )
    width = np.where(finite[0] & finite[1], most - least, np.maximum(1.0, np.maximum(np.abs(least), np.abs(most))))
    below = finite[0] & (values < least - FAR * width)
    above = finite[1] & (values > most + FAR * width)
    rows = np.argwhere(below | above)
    if not len(rows):
        return None
    row, *index = rows[0].tolist()
    where = tuple(index)
    return f"{index} is {float(values[(row, *where)]):.6g}, declared within {low[where]:.6g} to {high[where]:.6g}"
