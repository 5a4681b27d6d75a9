"""What flow and diffusion cloning have in common: the average that acts, chunks that are played in part, presets."""

from __future__ import annotations

import dataclasses
from typing import Any

from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import algorithm_of, option, require
from surefoot.core.engine.agent import Agent, Rule, Update
from surefoot.core.engine.averages import SCHEDULES, power_rule
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.data.prepare import NORMALIZATIONS

VISUAL: dict[str, Any] = {
    "encoder": "resnet18",
    "crop": 0.9,
    "shift": 0,
    "history": 2,
    "chunk": 16,
    "execute": 8,
    "average_schedule": "power",
    "learning_rate": 1e-4,
    "weight_decay": 1e-6,
    "schedule": "cosine",
    "normalization": "range",
}
"""Of cloning from pictures on a GPU; sizes of Chi et al., "Diffusion Policy"."""
VISUAL_SMALL: dict[str, Any] = {"encoder": "small", "chunk": 8, "execute": 4, "normalization": "range"}
"""Of cloning from pictures of about 64 pixels on a core."""


@dataclasses.dataclass(frozen=True)
class CloningConfig(EncoderConfig, HistoryConfig):
    """Settings that all cloning by flows and diffusion has, beside its `chunk`."""

    chunk: int = option(1, "C: actions that are cloned and played at once", range=">= 1")
    execute: int | None = option(
        None, "actions of a chunk that are played before the next is planned; null: all", range=">= 1"
    )
    average_rate: float = option(
        0.005, "rate of the network's average, which acts; with average_schedule=constant", range="[0, 1]"
    )
    average_schedule: str = option(
        "constant", "constant, or power: from 1 at first down to .0001, as in Diffusion Policy", choices=SCHEDULES
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    schedule: str = option("constant", "schedule of the learning rate: constant or cosine, to 0 over the run")
    weight_decay: float = option(0.0, "weight decay", range=">= 0")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        fits = self.execute is None or self.execute <= self.chunk
        require(fits, algorithm_of(self), "execute", self.execute, f"None, or 1 .. chunk, {self.chunk}")


def averaged(agent: Agent, step: Update, rate: float) -> list[Update | Rule]:
    """The step of the cloned network, and what its average takes of it: `rate`, or what the schedule says."""
    assert agent.average_of is not None
    average, network = agent.average_of, step.trains[0]
    if agent.config.average_schedule == "power":
        return [step, power_rule(agent, {average: network})]
    return [dataclasses.replace(step, target_updates={average: (network, rate)})]
