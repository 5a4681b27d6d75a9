"""Averages of networks whose rate changes as training continues."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Batch, Metrics, Rule

SCHEDULES = ("constant", "power")
"""Of an average's rate: the same at every step, or `power_decay`'s."""
POWER, HIGHEST = 0.75, 0.9999
STEPS = "average_steps"
"""Buffer of an agent that averages by `power_rule`: training steps that were averaged."""


def power_decay(step: Tensor) -> Tensor:
    """Share of the old average that is kept after `step` + 1 steps: min(0.9999, 1 - (1 + step)^-0.75), 0 at the first.

    Source: Chi et al., "Diffusion Policy" (its exponential moving average).
    """
    return (1 - (1 + step.clamp(min=0)) ** -POWER).clamp(max=HIGHEST)


def count_averages(agent: Agent) -> None:
    """Give an agent the buffer that `power_rule` counts in."""
    agent.register_buffer(STEPS, torch.zeros(()))


def power_rule(agent: Agent, averages: Mapping[str, str]) -> Rule:
    """Move averages towards their networks once a training step, encoder and head together.

    Args:
        agent: with the buffer of `count_averages`.
        averages: average -> network, by attribute.
    """
    pairs = {**averages, **({"average_encoder": "encoder"} if hasattr(agent, "average_encoder") else {})}

    def average(batch: Batch, noise: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        steps: Tensor = getattr(agent, STEPS)
        decay, found = power_decay(steps), {STEPS: steps + 1}
        for target, source in pairs.items():
            newer = dict(getattr(agent, source).named_parameters())
            for name, value in getattr(agent, target).named_parameters():
                found[f"{target}.{name}"] = newer[name] + decay * (value - newer[name])
        return found, {"average_decay": decay}

    return Rule(average, (*pairs, STEPS), rows=1, noise=dict[str, Noise]())
