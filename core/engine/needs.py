"""What an algorithm needs to be trained, and what it can take: read off the switches of its class."""

from __future__ import annotations

import dataclasses

DATA, ENVIRONMENT, COSTS, RUN = "data", "environment", "costs", "run"
CONTINUOUS, DISCRETE, PICTURES, MASKS = "continuous", "discrete", "pictures", "masks"
NEEDED = (DATA, ENVIRONMENT, COSTS, RUN)
"""What an algorithm can be unable to do without; a run is one to start from, `init=`."""
TAKEN = (DATA, ENVIRONMENT, CONTINUOUS, DISCRETE, PICTURES, MASKS)
"""What it can be able to take."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What an algorithm needs, and what it can take; `Agent.needs` gives it, and training checks by it."""

    data: str  # required, optional or refused
    environment: str  # required: it learns online; optional: for evaluation alone; refused: it learns no policy
    costs: bool  # of the data, or of the environment where it acts
    run: bool  # trained before, to start from
    continuous: bool  # whether it learns continuous actions
    discrete: bool  # whether it learns discrete ones
    pictures: bool  # whether observations may be images, or several arrays
    masks: bool  # whether it chooses among allowed actions alone, where observations say which these are

    @property
    def needed(self) -> tuple[str, ...]:
        """Words of `NEEDED` that it can't do without."""
        reported = {
            DATA: self.data == "required",
            ENVIRONMENT: self.environment == "required",
            COSTS: self.costs,
            RUN: self.run,
        }
        return tuple(word for word in NEEDED if reported[word])

    @property
    def taken(self) -> tuple[str, ...]:
        """Words of `TAKEN` that it can use, those that it needs among them."""
        reported = {
            DATA: self.data != "refused",
            ENVIRONMENT: self.environment != "refused",
            CONTINUOUS: self.continuous,
            DISCRETE: self.discrete,
            PICTURES: self.pictures,
            MASKS: self.masks,
        }
        return tuple(word for word in TAKEN if reported[word])

    @property
    def actions(self) -> tuple[str, ...]:
        """Kinds of actions that it learns."""
        return tuple(word for word in self.taken if word in (CONTINUOUS, DISCRETE))
