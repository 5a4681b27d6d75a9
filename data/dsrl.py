"""DSRL's scores: the table of its tasks, and the normalised reward and cost that its papers print.

The numbers stand in dsrl.json. They normalise by what the published datasets hold, so a score above 1 or below 0 is
possible and normal. AntRun's lowest return equals CarButton2's to all digits: probably a copy error upstream, kept so
that scores compare.
Source: liuzuxin/DSRL:dsrl/infos.py; Liu et al., "Datasets and Benchmarks for Offline Safe Reinforcement Learning".
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest

FACTS: dict[str, Any] = json.loads(pathlib.Path(__file__).with_name("dsrl.json").read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the benchmark."""

    name: str  # CarCircle, HalfCheetahVelocity-v1, easysparse
    steps: int  # of an episode
    action_dim: int
    observation_dim: int
    trajectories: int  # in the published dataset
    lowest_return: float  # of an episode there
    highest_return: float
    highest_cost: float  # of an episode there; the lowest is 0 but for two of MetaDrive
    lowest_cost: float = 0.0

    @property
    def reference(self) -> tuple[float, float]:
        """Returns that count as 0 and as 1."""
        return self.lowest_return, self.highest_return

    @property
    def family(self) -> str:
        """bullet, safety_gymnasium or metadrive."""
        if re.match(r"easy|medium|hard", self.name):
            return "metadrive"
        return "bullet" if re.fullmatch(r"(Ball|Car|Drone|Ant)(Run|Circle)", self.name) else "safety_gymnasium"

    @property
    def limits(self) -> tuple[float, ...]:
        """The three cost limits at which the standard protocol evaluates."""
        return LIMITS[self.family]


TASKS: dict[str, Task] = {name: Task(name, *row) for name, row in FACTS["tasks"].items()}
"""Name as DSRL's tables print it -> task."""
LIMITS: dict[str, tuple[float, ...]] = {family: tuple(v) for family, v in FACTS["limits"].items()}
"""Cost limits of the standard protocol by family: bullet, safety_gymnasium, metadrive; and of the strict one."""


def task(name: str) -> Task:
    """The task that an id names: `CarCircle`, `OfflineCarCircle-v0`, `SafetyCarCircle-v0-100-1450.hdf5`, ...

    Raises:
        ConfigError: there is none of that name.
    """
    stem = _stem(name)
    if stem in TASKS:
        return TASKS[stem]
    raise ConfigError(f"DSRL has no task {name!r}; {nearest(stem, list(TASKS))}")


def reference_of(name: str) -> tuple[float, float] | None:
    """Returns that count as 0 and as 1 in the task that an id names, or None where it names none."""
    stem = _stem(name)
    return TASKS[stem].reference if stem in TASKS else None


def _stem(name: str) -> str:
    """The part of an id that names a task, as `TASKS` does if there is one."""
    stem = pathlib.PurePath(name).name.removesuffix(".hdf5")
    for candidate in (stem, f"{stem}-v1"):
        if candidate in TASKS:
            return candidate
    if match := re.fullmatch(r"(?:Offline|Safe)Meta[dD]rive-(\w+?)-v\d+(?:-\d+)*", stem):
        stem = match[1]
    elif match := re.fullmatch(r"(?:Offline|Safety)(\w+?)(?:Gymnasium)?-v(\d)(?:-\d+)*", stem):
        stem = match[1] if match[1] in TASKS else f"{match[1]}-v{match[2]}"
    return stem


def normalized_reward(returns: float | np.ndarray[Any, Any], reference: tuple[float, float]) -> Any:
    """(R - Rmin) / (Rmax - Rmin), 0 to 1 within the dataset.

    Args:
        returns: undiscounted sums of an episode's rewards.
        reference: Rmin and Rmax, `Task.reference`.
    """
    low, high = reference
    return (np.asarray(returns, np.float64) - low) / (high - low)


def normalized_cost(costs: float | np.ndarray[Any, Any], limit: float) -> Any:
    """(C + e) / (limit + e) with e = 1 where the limit is 0, else 0; at most 1 counts as safe.

    Args:
        costs: undiscounted sums of an episode's costs.
        limit: at least 0; always print it beside the result.

    Raises:
        ConfigError: a limit below 0.
    """
    if not limit >= 0:
        raise ConfigError(f"the cost limit is {limit}; it must be 0 or more")
    extra = 1.0 if limit == 0 else 0.0
    return (np.asarray(costs, np.float64) + extra) / (limit + extra)
