"""A policy for a reward that training never saw: the task of a reward or a goal, and the policy that has it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import generator
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.rewards import Reward, name_of, rewarded
from surefoot.offline.zero_shot import ZeroShotAgent
from surefoot.runs.embedded import load
from surefoot.runs.run import IN_MEMORY, Run, load_agent

STATES = 10_000
"""Labelled states that a task is found from, as published."""


@dataclasses.dataclass(frozen=True)
class TaskPolicy:
    """A policy with its task, and what the task was found from."""

    policy: Policy
    task: Tensor
    """(D,) of length sqrt(D)."""
    facts: dict[str, Any]
    """JSON values: run, seed, reward or goal, states, mean reward and share of states with one that is not 0."""


def policy_for(
    run: str | os.PathLike[str],
    *,
    reward: Reward | None = None,
    goal: Any = None,
    dataset: Dataset | str | os.PathLike[str] | None = None,
    states: int = STATES,
    seed: int | None = None,
    trust: bool = False,
) -> TaskPolicy:
    """The policy of a zero-shot run (fb, vc_fb, mc_fb, hilp) for a reward or a goal, without training.

    Args:
        run: folder.
        reward: (observations, actions, next observations) -> (N,), as `surefoot.data.rewards`; the task is of what is
            paid in the next observations, so that it should depend on these alone. None: the dataset's own.
        goal: (O,) observation to reach, in place of a reward.
        dataset: of the states that are labelled, or its file or id; None: that of the run.
        states: that many of them at most, drawn without replacement.
        seed: which of the run's agents; None: the first.
        trust: import code that the run names.

    Raises:
        ConfigError: the run's algorithm learns no policies for tasks; a goal and a reward; rewards that give no task.
        DataError: a dataset without rewards, or of other observations.
        CheckpointError: no agent is there.
    """
    opened = Run.open(run)
    if seed is not None and seed not in opened.plan.seeds:
        raise ConfigError(f"{opened.folder}: has no seed {seed}; it has {list(opened.plan.seeds)}")
    agent = load_agent(opened, seed, trust)
    if not isinstance(agent, ZeroShotAgent):
        raise ConfigError(
            f"{opened.folder}: its algorithm, {agent.name}, is trained for one reward; fb, vc_fb, mc_fb and hilp learn "
            "policies for any (docs/goals.md)"
        )
    if states < 1:
        raise ConfigError(f"states is {states}; at least 1 is labelled")
    facts: dict[str, Any] = {"run": str(run), "seed": opened.plan.seeds[0] if seed is None else seed}
    if goal is not None:
        if reward is not None or dataset is not None:
            raise ConfigError("a goal is a task by itself: leave reward and dataset out")
        task = agent.task_to(goal)
        facts["goal"] = np.asarray(goal, np.float64).tolist()
    else:
        task, found = _of_reward(agent, _data(opened, dataset), reward, states)
        facts |= found
    policy = agent.policy()
    policy.names = dict(opened.policy(seed).names)
    policy.set_task(task)
    return TaskPolicy(policy, task, facts)


def _data(run: Run, dataset: Dataset | str | os.PathLike[str] | None) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    source = run.plan.dataset if dataset is None else dataset
    if source in (None, IN_MEMORY):
        raise ConfigError(f"{run.folder}: was trained on data at hand; name the file of the states with --dataset")
    return load(str(source))


def _of_reward(
    agent: ZeroShotAgent, data: Dataset, reward: Reward | None, states: int
) -> tuple[Tensor, dict[str, Any]]:
    """The task of what is paid in states of the data, and what is given of it."""
    name = "the data's own" if reward is None else name_of(reward)
    if reward is not None:
        data = rewarded(data, reward, name)
    if not data.has_rewards:
        raise ConfigError(f"{data.name} has no rewards: give a function of yours, module:function")
    agent.normalizer.fixed = agent.rewards_fixed = agent.goals_fixed = True
    ready = agent.prepare(data)
    known = np.flatnonzero(data.valid)
    rows = np.sort(generator(0, "labelled states").permutation(len(known))[:states])
    rows = known[rows]
    paid = data.rewards[rows]
    seen = torch.from_numpy(np.ascontiguousarray(ready.next_observations[rows], np.float32))
    with torch.no_grad():
        task = agent.unit_task(agent.task_from(seen, torch.from_numpy(np.ascontiguousarray(paid))))
    return task, {
        "reward": name,
        "dataset": data.name,
        "states": len(rows),
        "mean_reward": float(paid.mean(dtype=np.float64)),
        "rewarded": float(np.count_nonzero(paid) / len(rows)),
    }


def check_output(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a policy that is to be written.

    Raises:
        ConfigError: its ending is another than .safetensors, or it is a folder.
    """
    found = pathlib.Path(path)
    if found.suffix != ".safetensors" or found.is_dir():
        raise ConfigError(f"{path}: a policy with its task is written as a .safetensors; surefoot export reads that")
    return found
