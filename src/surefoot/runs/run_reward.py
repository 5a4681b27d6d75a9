"""`reward=RUN`: what the run's algorithm makes of it, success (algo=classifier) or a reward (algo=preferences)."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data.checks import validate
from surefoot.data.dataset import BEST_RETURN, REWARDS, Dataset
from surefoot.offline.classifier import Classifier
from surefoot.offline.preferences import Preferences
from surefoot.runs.run import Run, load_agent
from surefoot.runs.success_reward import SuccessReward


class PreferenceReward:
    """The reward that a run's first seed learned from comparisons, for datasets."""

    def __init__(self, folder: str) -> None:
        """Read a run of algo=preferences.

        Raises:
            CheckpointError: it is none, or damaged.
            ConfigError: a run of another algorithm.
        """
        run = Run.open(folder)
        if run.plan.algorithm != Preferences.name:
            raise ConfigError(
                f"reward={folder}: is a run of {run.plan.algorithm}; train one with algo={Classifier.name} or "
                f"algo={Preferences.name}"
            )
        agent = load_agent(dataclasses.replace(run, plan=dataclasses.replace(run.plan, reward=None)))  # never called
        assert isinstance(agent, Preferences)
        self.name, self.agent = str(folder), agent.eval()

    def labelled(self, dataset: Dataset) -> Dataset:
        """The dataset with the learned rewards; where its episodes end stays.

        Raises:
            DataError: its observations or actions are of other sizes.
        """
        own = self.agent.environment_spec
        sizes = (dataset.observation_dim, dataset.action_dim)
        if sizes != (own.observation_dim, own.action_dim):
            raise DataError(
                f"reward={self.name} was trained on observations of {own.observation_dim} numbers and actions of "
                f"{own.action_dim}, and {dataset.name} has {sizes[0]} and {sizes[1]}: train one on data of this task"
            )
        seen, acted = (
            torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in (dataset.observations, dataset.actions)
        )
        attributes = {key: value for key, value in dataset.attributes.items() if key != BEST_RETURN}
        made = dataset.replace(
            rewards=self.agent.rewards_of(seen, acted).numpy(), attributes={**attributes, REWARDS: self.name}
        )
        validate(made)
        return made


def reward_of_run(folder: str) -> SuccessReward | PreferenceReward:
    """What rewards a dataset by a run.

    Raises:
        CheckpointError: it is no run, or damaged.
        ConfigError: a run of an algorithm that learns no reward.
    """
    if Run.open(folder).plan.algorithm == Classifier.name:
        return SuccessReward(folder)
    return PreferenceReward(folder)
