"""Options of exploration bonuses, as algorithms have them among their own."""

from __future__ import annotations

import dataclasses
from typing import Any

from surefoot.core.base.options import Options, option
from surefoot.core.engine.agent import algorithm_of, require

KINDS = ("rnd", "icm", "disagreement", "counts", "value")
LEARNERS = ("ppo", "sac", "td3", "dqn")
"""Algorithms that learn with a bonus; what is made of them has losses or rows of its own."""


@dataclasses.dataclass(frozen=True)
class BonusConfig(Options):
    """How new states are rewarded while training; evaluation has the task's rewards alone."""

    bonus: str | None = option(
        None,
        "reward for what is new: of a predictor's error (rnd, icm), of models that disagree (disagreement), of states "
        "that were seldom visited (counts); value: dqn's choices lead to what is new; null: none",
        choices=KINDS,
    )
    bonus_weight: float = option(
        0.5, "weight of the scaled bonus beside the rewards, or of a value bonus beside values", range=">= 0"
    )
    bonus_learning_rate: float = option(1e-4, "learning rate of the bonus's networks", range=">= 0")
    bonus_hidden: tuple[int, ...] = option((128,), "widths of the hidden layers of the bonus's networks")
    bonus_features: int = option(64, "width of the features that rnd and icm predict", range=">= 1")
    bonus_members: int = option(5, "models that disagreement is of, and functions of a value bonus", range=">= 2")
    bonus_share: float = option(1.0, "share of the rows that rnd's predictor learns from", range="(0, 1]")
    bonus_cell: float = option(0.5, "width of the cells that counts are of, for each number observed", range="> 0")

    def __post_init__(self) -> None:
        """Refuse a bonus of an algorithm that does not learn with one, or of rows that it can't be given for."""
        super().__post_init__()
        name, own = algorithm_of(self), vars(self)
        if self.bonus is None:
            return
        require(name in LEARNERS, name, "bonus", self.bonus, f"null: of {', '.join(LEARNERS)} alone")
        by_choice = self.bonus != "value" or name == "dqn"
        require(by_choice, name, "bonus", self.bonus, "another than value, which is of dqn alone")
        given: dict[str, Any] = {"n_step": 1, "hindsight": 0, "offline_fraction": 0.0, "chunk": 1}
        for option_name, needed in given.items():
            value = own.get(option_name, needed)
            require(value == needed, name, option_name, value, f"{needed} with a bonus, which is of single steps")
