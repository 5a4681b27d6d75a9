"""How D4RL's tasks of sparse success are scored: rewards, success, time-outs.

| task | rewards in the file | trained on | an episode's success | score |
|---|---|---|---|---|
| AntMaze | 1 at the goal, else 0 | r - 1 | the goal's reward in it | 100 times the share of successes |
| Kitchen | sub-tasks done by then | as they are | all four sub-tasks | 25 times the most that are done at a step |
| Adroit | dense | as they are | its flag at the last step, where stored | by the reference returns |

A stored flag wins over the other rules. It counts at an episode's last step, as in evaluations (docs/evaluation.md):
what was solved and lost again is not counted. The rules without one are of tasks that end an episode once it is solved.

Source: Fu, Kumar, Nachum, Tucker and Levine, "D4RL: datasets for deep data-driven reinforcement learning" (2020); for
r - 1: Kostrikov, Nair and Levine, "Offline reinforcement learning with implicit Q-learning" (2022). An AntMaze episode
of D4RL ends at the goal. gymnasium-robotics' tasks of those names continue there, so that their returns are other
numbers. D4RL's kitchen pays for a sub-task once, where an agent acts in it; its files were labelled anew, with the
number that is done at each step, so that a reward follows from the state. Their returns are no score: they grow with
every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from surefoot.data.catalogue import family_of
from surefoot.data.dataset import Array, Dataset

SUB_TASKS = 4
"""Of a kitchen episode."""
SUCCESS = "success"
"""Name of the extra column in which a file may say at which steps the task is solved."""


def family(dataset: Dataset) -> str | None:
    """antmaze, kitchen or adroit, from the dataset's D4RL id or name; None of others."""
    named = str(dataset.attributes.get("d4rl_env_id") or dataset.name)
    found = family_of(named) or family_of(dataset.env_id or "") or ""
    if found in ("pen", "hammer", "door", "relocate"):
        return "adroit"
    return next((name for name in ("antmaze", "kitchen") if found.startswith(name)), None)


def success(dataset: Dataset) -> Array | None:
    """(E,) bool: which episodes were solved, by the task's own rule; None where neither rule nor column says it."""
    starts = dataset.episode_starts
    if SUCCESS in dataset.extras:
        last = np.asarray(dataset.extras[SUCCESS])[starts[1:] - 1]
        solved: Array = (last.reshape(len(last), -1) > 0).any(1)
        return solved
    kind = family(dataset)
    if kind == "antmaze":
        goal = _goal_reward(dataset)
        return None if goal is None else np.maximum.reduceat(dataset.rewards, starts[:-1]) == goal
    if kind == "kitchen":
        return scored(dataset) >= SUB_TASKS
    return None


def scored(dataset: Dataset) -> Array:
    """(E,) float64: what is compared with the reference returns of an episode.

    Its return; of a kitchen its sub-tasks; of an AntMaze 1 where it is solved and else 0, whatever its rewards are.
    """
    kind = family(dataset)
    if kind == "kitchen":
        return np.maximum.reduceat(dataset.rewards, dataset.episode_starts[:-1]).astype(np.float64)
    if kind == "antmaze" and (solved := success(dataset)) is not None:
        return solved.astype(np.float64)
    return dataset.episode_returns


def _goal_reward(dataset: Dataset) -> float | None:
    """The reward at an antmaze's goal: 1 of rewards 0 and 1, 0 of -1 and 0; None of others.

    Where all are 0 nothing was solved, since the files have 0 and 1.
    """
    values = {float(value) for value in np.unique(dataset.rewards)}
    if not dataset.has_rewards:
        return None
    return 1.0 if values <= {0.0, 1.0} else 0.0 if values <= {-1.0, 0.0} else None


def notes(dataset: Dataset, options: Mapping[str, Any]) -> list[str]:
    """What an algorithm with these options should be given about the task's conventions.

    Args:
        dataset: to train on.
        options: of the algorithm; those without `rewards` are given nothing.
    """
    found = []
    raw = family(dataset) == "antmaze" and _goal_reward(dataset) == 1
    if raw and options.get("rewards", "minus_one") != "minus_one":
        found.append(
            f"{dataset.name}: AntMaze's rewards are 0 and 1, and published scores are of r - 1, without which most "
            "algorithms stay near 0: algo.rewards=minus_one"
        )
    if family(dataset) == "antmaze" and str(dataset.attributes.get("d4rl_env_id", "")).endswith("-v0"):
        found.append(f"{dataset.name}: the time-outs of this version are unreliable; prefer the v2 file")
    return found
