"""Counterfactual experience: a step as it would have been from every state of the machine (CRM).

Source: Toro Icarte et al., JAIR 2022, section 4.2. Their code takes only states that were reachable from those of the
step before; here all count, since a step says the same of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.sources import Batch
from surefoot.envs.objectives.machine import Machine
from surefoot.envs.objectives.wrapper import FACTS, ObjectiveEnv

Array = np.ndarray[Any, Any]
COLUMN = "objective"
"""Column of a buffer with the `FACTS` of each step."""


class Counterfactuals:
    """Rows of a replay buffer as each state of a machine would have had them, all equally likely (a `Relabelling`)."""

    def __init__(self, machine: Machine, potentials: Array | None = None, discount: float = 1.0) -> None:
        """Relabel by a machine.

        Args:
            machine: of the environment; its one-hot states are the last numbers of observations.
            potentials: (U,) of shaping; None: none.
            discount: of shaping.
        """
        self.machine, self.variants, self.horizon = machine, machine.live, 1
        self.following = torch.from_numpy(machine.following)
        self.rewards = torch.from_numpy(machine.rewards).float()
        self.costs = torch.from_numpy(machine.costs).float()
        one_hots = machine.one_hot(np.arange(len(machine.states)))
        self.one_hots = torch.from_numpy(one_hots)
        self.potentials = None if potentials is None else torch.from_numpy(potentials).float()
        self.discount = discount

    def to(self, device: torch.device) -> Counterfactuals:
        """With its tables there."""
        for name in ("following", "rewards", "costs", "one_hots", "potentials"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.to(device))
        return self

    def __call__(self, batch: Batch, variants: Tensor, later: Tensor) -> Batch:
        """As `Relabelling`: variant u is the step from the machine's state u."""
        found = {name: value for name, value in batch.items() if name != COLUMN}
        letter, over, reward, cost = batch[COLUMN].unbind(-1)
        letter = letter.long()
        after = self.following[variants, letter]
        done = (after >= self.machine.live) | (over > 0)
        rewards = self.rewards[variants, letter] + self.machine.environment_reward * reward
        if self.potentials is not None:
            ahead = torch.where(done, 0.0, self.potentials[after])
            rewards = rewards + self.discount * ahead - self.potentials[variants]
        found["rewards"] = rewards.to(batch["rewards"])
        found["terminations"] = done.to(batch["terminations"])
        if "costs" in batch:
            found["costs"] = (cost + self.costs[variants, letter]).to(batch["costs"])
        for key, states in (("observations", variants), ("next_observations", after)):
            found[key] = torch.cat([batch[key][..., : -self.machine.live], self.one_hots[states].to(batch[key])], -1)
        if "observation_actions" in batch:
            found["observation_actions"] = torch.cat([found["observations"], batch["actions"]], -1)
        return found


def counterfactuals_of(env: Any, algorithm: str, device: torch.device) -> Counterfactuals:
    """What relabels steps of an environment with an objective, with the shaping that it has.

    Raises:
        ConfigError: it has no objective.
    """
    if not isinstance(env, ObjectiveEnv):
        raise ConfigError(
            f"{algorithm}.counterfactual is true: it needs an objective; give objective= and labels=",
            field="counterfactual",
            code="conflict",
        )
    return Counterfactuals(env.machine, env.potentials, env.discount).to(device)


def courses(machine: Machine, letter: Array, over: Array, everywhere: bool) -> Iterator[tuple[Array, Array, Array]]:
    """Courses of a machine along one recorded episode.

    Args:
        machine: what reads it.
        letter: (T,) of the steps.
        over: (T,) bool: whether the episode itself terminated with the step.
        everywhere: beside the course from the start, so many others that each step is taken once from each state that
            does not end episodes: a course ends where it meets another one.

    Yields:
        (L,) steps, and (L,) the states before and after each. The first course is that from the start.
    """
    steps = len(letter)
    taken = np.zeros((steps, machine.live), np.bool_)
    for first in range(steps if everywhere else 1):
        for state in range(machine.live) if everywhere else (machine.start,):
            state = state if first or not everywhere else (machine.start + state) % machine.live
            if taken[first, state]:
                continue
            rows, before, after, here = [], [], [], state
            for t in range(first, steps):
                if taken[t, here]:
                    break
                taken[t, here] = True
                rows.append(t)
                before.append(here)
                here = int(machine.following[here, letter[t]])
                after.append(here)
                if here >= machine.live or over[t]:
                    break
            yield np.array(rows), np.array(before), np.array(after)


__all__ = ["COLUMN", "FACTS", "Counterfactuals", "counterfactuals_of", "courses"]
