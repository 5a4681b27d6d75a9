"""A scripted person, who watches a policy and takes over where it is off its course: for tests and studies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.gantry.expert import Expert
from surefoot.envs.gantry.task import Gantry
from surefoot.envs.mujoco.task import Array, Simulations

PROGRESS = 0.005
"""Meters that must be gained for it to count."""


@dataclasses.dataclass(frozen=True)
class Habits:
    """When a person takes over, and for how long."""

    tolerance: float = 1.0
    """Largest difference of a number of the policy's action from the expert's, of at most 2, that goes unnoticed."""
    patience: int = 5
    """Steps in a row of a larger difference that the person looks on."""
    stalled: int = 12
    """Steps without progress that the person looks on."""
    hold: int = 10
    """Steps that the person acts before the policy does again."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: one is out of its range.
        """
        if not 0 <= self.tolerance <= 2 or min(self.patience, self.stalled, self.hold) < 1:
            raise ConfigError(
                f"a person's tolerance is {self.tolerance}, patience {self.patience}, stalled {self.stalled} and hold "
                f"{self.hold}; they must be 0 to 2, and steps from 1 on"
            )


class Person:
    """Replaces the actions of rows whose policy is off its course by the expert's, without noise.

    Args:
        task: the task.
        rows: N.
        habits: when it takes over.
    """

    def __init__(self, task: Gantry, rows: int, habits: Habits | None = None) -> None:
        self.habits = habits or Habits()
        self._expert = Expert(task, rows)
        self._off, self._idle, self._left = (np.zeros(rows, np.int64) for _ in range(3))
        self._best = np.full(rows, np.inf)

    def act(self, sim: Simulations, actions: Array, moving: Array) -> tuple[Array, Array]:
        """What is executed in place of a policy's actions.

        Args:
            sim: before the step.
            actions: (N, 4) of the policy.
            moving: (N,) bool rows that are stepped; in others nothing is counted.

        Returns:
            (N, 4) actions, and (N,) bool: the person's.
        """
        started = moving & (sim.time.reshape(-1) == 0)
        for counts in (self._off, self._idle, self._left):
            counts[started] = 0
        self._best[started] = np.inf
        own, remaining = self._expert.actions(sim), self._expert.remaining(sim)
        far = np.abs(own - actions).max(1) > self.habits.tolerance
        gained = remaining < self._best - PROGRESS
        self._best = np.where(moving & gained, remaining, self._best)
        self._off = np.where(moving, np.where(far, self._off + 1, 0), self._off)
        self._idle = np.where(moving, np.where(gained, 0, self._idle + 1), self._idle)
        late = (self._off >= self.habits.patience) | (self._idle >= self.habits.stalled)
        takes = moving & (self._left == 0) & late
        self._left[takes] = self.habits.hold
        taken = moving & (self._left > 0)
        self._left[taken] -= 1
        given_back = taken & (self._left == 0)
        self._off[given_back] = self._idle[given_back] = 0
        self._best[given_back] = np.inf
        return np.where(taken[:, None], own, actions), taken

    def get_state(self) -> dict[str, Array]:
        """The counters."""
        return {
            "person/off": self._off.copy(),
            "person/idle": self._idle.copy(),
            "person/left": self._left.copy(),
            "person/best": self._best.copy(),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from counters of `get_state`."""
        self._off, self._idle, self._left, self._best = (
            np.array(state[f"person/{name}"]) for name in ("off", "idle", "left", "best")
        )
