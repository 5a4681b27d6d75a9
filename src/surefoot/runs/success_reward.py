"""`reward=RUN`: rewards and ends by the classifier of a run (`algo=classifier`), of datasets and of environments."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.files import read_json
from surefoot.core.base.schema import Record
from surefoot.core.base.spec import in_words, mapped
from surefoot.data.checks import validate
from surefoot.data.dataset import BEST_RETURN, NAMED, REWARDS, Dataset
from surefoot.envs.interface import Array, VectorEnvironment
from surefoot.envs.rewarded import Rewarded
from surefoot.envs.spaces import arrays_of
from surefoot.offline.classifier import BLOCK, JUDGED, Classifier, threshold_of
from surefoot.offline.preferences import Preferences
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run, load_agent

RESULT = Record({}, others=True)


def is_run(reward: str | None) -> bool:
    """Whether a reward names a folder, and no function."""
    return reward is not None and ":" not in reward and pathlib.Path(reward).is_dir()


class SuccessReward:
    """1 where the classifier of a run's first seed finds success, at the threshold that the run has; else 0."""

    def __init__(self, folder: str) -> None:
        """Read a finished run.

        Raises:
            CheckpointError: it is none, or damaged.
            ConfigError: a run of another algorithm, or without a threshold.
        """
        run = Run.open(folder)
        if run.plan.algorithm != Classifier.name:
            more = ""
            if run.plan.algorithm == Preferences.name:
                more = " (rewards from preferences are given to datasets alone)"
            raise ConfigError(
                f"reward={folder}: is a run of {run.plan.algorithm}; train one with algo=classifier{more}"
            )
        agent = load_agent(dataclasses.replace(run, plan=dataclasses.replace(run.plan, reward=None)))  # never called
        assert isinstance(agent, Classifier)
        self.name, self.agent = str(folder), agent.eval()
        result = read_json(run.seed_folder(run.plan.seeds[0]) / "result.json", RESULT)
        self.threshold = threshold_of(result.get(JUDGED), f"reward={folder}")

    def success(self, observations: Any) -> Array:
        """(N,) bool of (N, ...) observations in the environment's units; of several arrays, a dict of them."""
        count = len(next(iter(observations.values())) if isinstance(observations, Mapping) else observations)
        found = np.zeros(count, np.bool_)
        for start in range(0, count, BLOCK):
            part = slice(start, start + BLOCK)
            seen = mapped(lambda values, part=part: _tensor(values[part]), observations)
            found[part] = (self.agent.probability(seen) >= self.threshold).numpy()
        return found

    def check(self, arrays: Any, where: str) -> None:
        """Refuse observations of other shapes than it was trained on.

        Raises:
            DataError: they are.
        """
        wanted = dict(self.agent.environment_spec.observations)
        if dict(arrays) != wanted:
            raise DataError(
                f"reward={self.name} was trained on {in_words(wanted)}, and {where} has {in_words(arrays)}: train a "
                "classifier on observations of this kind"
            )

    def labelled(self, dataset: Dataset) -> Dataset:
        """The dataset with rewards of 1 where steps lead to success, where its episodes end; what follows is dropped.

        Raises:
            DataError: its observations are of other shapes.
        """
        self.check(dataset.arrays, dataset.name)
        following: Any = dataset.next_observations
        if not dataset.observation_dim:
            following = {
                k.removeprefix(f"next_{NAMED}"): v for k, v in dataset.extras.items() if k.startswith(f"next_{NAMED}")
            }
        success = self.success(following) & dataset.transitions
        before: Array = np.cumsum(success) - success
        starts = np.repeat(dataset.episode_starts[:-1], dataset.episode_lengths)
        kept = np.flatnonzero(before == before[starts])  # up to an episode's first success
        attributes = {key: value for key, value in dataset.attributes.items() if key != BEST_RETURN}
        made = dataset.select_rows(kept)
        done = success[kept]
        terminations = made.terminations | done
        made = made.replace(
            rewards=done.astype(np.float32),
            terminations=terminations,
            truncations=made.truncations & ~done,
            attributes={**attributes, REWARDS: self.name, "success_episodes": int(done.sum())},
        )
        validate(made)
        return made


def _tensor(values: Array) -> torch.Tensor:
    if values.dtype == np.bool_ and values.ndim > 2:
        values = values.view(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(values if values.dtype == np.uint8 else values.astype(np.float32)))


def with_reward(env: VectorEnvironment, plan: Plan) -> VectorEnvironment:
    """An environment to learn in, with the reward of the run that a plan names, if it names one.

    Raises:
        ConfigError, CheckpointError: as `SuccessReward`.
        DataError: it observes something else.
    """
    if not is_run(plan.reward):
        return env
    reward = SuccessReward(str(plan.reward))
    reward.check(arrays_of(env.single_observation_space, str(plan.environment)), str(plan.environment))
    return Rewarded(env, reward.success)
