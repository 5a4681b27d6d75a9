"""What flow and diffusion cloning have in common: the average that acts, chunks that are played in part, presets."""

from __future__ import annotations

import dataclasses
from typing import Any

from surefoot.core.base.options import require
from surefoot.core.engine.agent import Agent, Rule, Update
from surefoot.core.engine.averages import power_rule

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


def check_execute(config: Any, name: str) -> None:
    """Refuse to play more actions than a chunk has."""
    fits = config.execute is None or config.execute <= config.chunk
    require(fits, name, "execute", config.execute, f"None, or 1 .. chunk, {config.chunk}")


def averaged(agent: Agent, step: Update, rate: float) -> list[Update | Rule]:
    """The step of the cloned network, and what its average takes of it: `rate`, or what the schedule says."""
    assert agent.average_of is not None
    average, network = agent.average_of, step.trains[0]
    if agent.config.average_schedule == "power":
        return [step, power_rule(agent, {average: network})]
    return [dataclasses.replace(step, then={average: (network, rate)})]
