"""Margins that a dataset does not hold and that the environment's rules give from its steps."""

from __future__ import annotations

import numpy as np

from surefoot.data.dataset import REWARDS, Dataset
from surefoot.envs.mujoco.step_margins import step_margins, velocity_task
from surefoot.envs.mujoco.tasks import VELOCITY_LIMITS
from surefoot.safe.constraint.signal import MARGINS_FROM


def with_margins(dataset: Dataset, environment: str | None) -> tuple[Dataset, list[str]]:
    """The dataset with `extras["margins"]` where its steps give them exactly, and notes for the user.

    Computed for the velocity-limited MuJoCo tasks, by the environment that the run names or that the data name. They
    are taken only where they have the sign of every stored cost: otherwise the costs are of another constraint. Rewards
    that a function gave, or none, say nothing of a speed.
    """
    task = velocity_task(environment) or velocity_task(dataset.env_id)
    if "margins" in dataset.extras or task is None or REWARDS in dataset.attributes:
        return dataset, []
    margins = step_margins(task, dataset.rewards, dataset.actions, dataset.terminations)
    limit = VELOCITY_LIMITS[task]
    if dataset.costs is None:
        if "Velocity" not in str(environment):  # no speed limit is known to be meant
            return dataset, []
        differing = 0
    else:
        differing = int(((margins < 0) != (dataset.costs > 0)).sum())
    if differing:
        return dataset, [
            f"{dataset.name}: the margin of {task}'s speed limit of {limit} m/s, computed from rewards and actions, "
            f"contradicts {differing} of {len(dataset)} costs, so it is not used"
        ]
    source = f"computed from rewards and actions by {task}'s speed limit of {limit} m/s"
    return dataset.replace(
        extras={**dataset.extras, "margins": margins.astype(np.float32)},
        attributes={**dataset.attributes, MARGINS_FROM: source},
    ), []
