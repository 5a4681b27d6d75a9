"""Hindsight: what a step would have been worth, had a goal been wanted that the episode reached later.

Source: Andrychowicz et al., "Hindsight Experience Replay" (NeurIPS 2017), with goals by the strategy "future".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, SimulatorError
from surefoot.core.engine.sources import Batch
from surefoot.envs.vector import GOAL_KEYS

Array = np.ndarray[Any, Any]
Judge = Callable[[Array, Array, dict[str, Any]], Any]
"""(N, G) achieved and desired goals, and an empty info -> (N,) rewards, or whether episodes end there."""


class HindsightGoals:
    """Rows as they would have been for a goal that was achieved later, by the environment's own reward.

    Observations are vectors of `observation`, `achieved_goal` and `desired_goal`, in this order.
    """

    def __init__(
        self, observation_dim: int, goal_dim: int, horizon: int, goals: int, reward: Judge, ends: Judge | None = None
    ) -> None:
        """Relabel by a goal environment.

        Args:
            observation_dim: width of what stands before the two goals.
            goal_dim: G.
            horizon: steps of the longest episode.
            goals: later goals that a row is given for each time that it keeps its own.
            reward: the environment's `compute_reward`.
            ends: its `compute_terminated`; None: a goal does not change whether an episode ended.
        """
        self.achieved = slice(observation_dim, observation_dim + goal_dim)
        self.desired = slice(observation_dim + goal_dim, observation_dim + 2 * goal_dim)
        self.variants, self.horizon = 1 + goals, horizon
        self.reward, self.ends = reward, ends

    def __call__(self, batch: Batch, variants: Tensor, later: Tensor) -> Batch:
        """As `Relabelling`: variant 0 keeps its goal, each other has what the later row achieved."""
        anew, goals = variants > 0, later[..., self.achieved]
        found = dict(batch)
        for key in ("observations", "next_observations"):
            found[key] = self._aimed(batch[key], goals, anew)
        achieved = batch["next_observations"][..., self.achieved]
        found["rewards"] = torch.where(anew, self._judged("reward", self.reward, achieved, goals), batch["rewards"])
        if self.ends is not None and "terminations" in batch:
            ended = self._judged("terminated", self.ends, achieved, goals)
            found["terminations"] = torch.where(anew, ended, batch["terminations"])
        if "observation_actions" in batch:
            found["observation_actions"] = torch.cat([found["observations"], batch["actions"]], -1)
        return found

    def _aimed(self, observations: Tensor, goals: Tensor, anew: Tensor) -> Tensor:
        """Observations whose desired goal is another where (..., B) `anew`."""
        found = observations.clone()
        found[..., self.desired] = torch.where(anew.unsqueeze(-1), goals, observations[..., self.desired])
        return found

    def _judged(self, what: str, judge: Judge, achieved: Tensor, desired: Tensor) -> Tensor:
        """(..., B) what the environment says of goals, which it is given as (N, G) numpy arrays."""
        first, second = (value.reshape(-1, value.shape[-1]).numpy() for value in (achieved, desired))
        given = np.asarray(judge(first, second, {}))
        if given.shape not in ((), (len(first),)) or given.dtype.kind not in "biuf" or not np.isfinite(given).all():
            raise SimulatorError(
                f"compute_{what} gave {given.dtype} of shape {given.shape} for {len(first)} goals; hindsight asks for "
                f"many at once, and needs ({len(first)},) finite numbers"
            )
        values = np.broadcast_to(given, (len(first),)).astype(np.float32)
        return torch.from_numpy(values).reshape(achieved.shape[:-1]).to(achieved.dtype)


def hindsight_of(env: Any, goals: int, algorithm: str) -> HindsightGoals:
    """What relabels steps of a vector environment of goal environments.

    Args:
        env: of environments whose observations are a Dict of `GOAL_KEYS`, with `compute_reward`.
        goals: later goals for each time that a row keeps its own.
        algorithm: for the message.

    Raises:
        ConfigError: it is none, or says no time limit.
    """
    vector = env
    while vector is not None and not hasattr(vector, "envs"):  # behind the interface of all simulators, and starts
        vector = getattr(vector, "env", None)
    members = getattr(vector, "envs", None)
    inner = members[0].unwrapped if members and isinstance(members[0], gymnasium.Env) else None
    space = getattr(inner, "observation_space", None)
    if not isinstance(space, gymnasium.spaces.Dict) or set(space.spaces) != set(GOAL_KEYS):
        raise ConfigError(
            f"{algorithm}.hindsight is {goals}, must be 0 here: it is of environments that give observation, "
            "achieved_goal and desired_goal, as those of gymnasium-robotics, and run in this process"
        )
    reward = getattr(inner, "compute_reward", None)
    if not callable(reward):
        raise ConfigError(
            f"{algorithm}.hindsight is {goals}: it has no compute_reward(achieved_goal, desired_goal, info)"
        )
    limit = getattr(vector, "max_episode_steps", None)
    if limit is None:
        raise ConfigError(
            f"{algorithm}.hindsight is {goals}: the environment declares no time limit; set max_episode_steps"
        )
    sizes = {key: int(gymnasium.spaces.flatdim(space[key])) for key in GOAL_KEYS}
    if sizes["achieved_goal"] != sizes["desired_goal"]:
        raise ConfigError(f"{algorithm}.hindsight is {goals}: achieved and desired goals have different sizes, {sizes}")
    ends = getattr(inner, "compute_terminated", None)
    known = ends if callable(ends) else None
    return HindsightGoals(sizes["observation"], sizes["desired_goal"], int(limit), goals, reward, known)
