"""What a person did in place of the policy, as a step's info says it.

Two spellings are read: `info["intervene_action"]`, the action that was carried out, in the steps where a person took
over (HIL-SERL; Luo et al., "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning",
2024); and `info["is_intervention"]` with `info["teleop_action"]` beside it (LeRobot). Actions are in the environment's
units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.envs.interface import Array, as_numpy
from surefoot.envs.returned import EXECUTED, EXECUTED_FLAG, EXECUTED_WITH_FLAG

COLUMN = "intervened"
"""Column of experience, and of a dataset's extras: whether a person chose the action of the step."""


@dataclasses.dataclass(frozen=True)
class TakenOver:
    """The rows of one step in which a person acted."""

    rows: Array
    """(N,) bool, True in one row at least."""
    actions: Array
    """(N, A) float64 in the environment's units, (N,) of choices; what stands in other rows means nothing."""


def speaks_of(info: Mapping[str, Any]) -> bool:
    """Whether a step's info says anything of a person."""
    return EXECUTED in info or EXECUTED_FLAG in info


def taken_over(info: Mapping[str, Any], space: gymnasium.Space[Any], num_envs: int, name: str) -> TakenOver | None:
    """Where a person acted in a step, and what was done; None where no one did.

    Args:
        info: of the step, as a contract environment gives it.
        space: of one action.
        num_envs: N.
        name: of the environment, for messages.

    Raises:
        EnvironmentMismatchError: there is a flag without an action; actions of another shape, not finite, or no choice.
    """
    if EXECUTED in info:
        key, rows = EXECUTED, _mask(info, EXECUTED, num_envs)
    else:
        key, rows = EXECUTED_WITH_FLAG, _mask(info, EXECUTED_FLAG, num_envs)
        flag = as_numpy(info.get(EXECUTED_FLAG, np.zeros(num_envs)))
        rows = rows & (flag.reshape(num_envs) != 0)
    if not rows.any():
        return None
    row = int(np.flatnonzero(rows)[0])
    if key not in info or not _mask(info, key, num_envs)[rows].all():
        raise EnvironmentMismatchError(
            f"{name}: info[{EXECUTED_FLAG!r}] is true in row {row}, and info[{key!r}] is missing: put the action that "
            "was carried out there"
        )
    actions, wanted = as_numpy(info[key]), (num_envs, *(space.shape or ()))
    if actions.shape != wanted or actions.dtype.kind not in "biuf":
        raise EnvironmentMismatchError(
            f"{name}: info[{key!r}] is {actions.dtype} of shape {actions.shape}, and one action a row is {wanted}; an "
            "agent that decides on several actions at once can't be taken over inside them (algo.chunk=1)"
        )
    actions = actions.astype(np.float64)
    fine = np.isfinite(actions.reshape(num_envs, -1)).all(1)
    if isinstance(space, gymnasium.spaces.Discrete):
        fine &= (actions % 1 == 0) & (actions >= space.start) & (actions < space.start + space.n)
    if not fine[rows].all():
        row = int(np.flatnonzero(rows & ~fine)[0])
        raise EnvironmentMismatchError(
            f"{name}: info[{key!r}] of row {row} is {actions[row].tolist()}: it must be an action of {space}, finite"
        )
    return TakenOver(rows, actions)


def _mask(info: Mapping[str, Any], key: str, num_envs: int) -> Array:
    """(N,) bool: the rows that gave an entry, as gymnasium marks them; all, where nothing is marked."""
    given = info.get(f"_{key}")
    return np.ones(num_envs, np.bool_) if given is None else as_numpy(given).astype(np.bool_)
