"""Isaac Lab environments (anything shaped like `DirectRLEnv`) behind the contract; Isaac Lab is never imported.

Their `step` resets ended rows before it computes observations, so the final observation is lost.
`KeepFinalObservations` saves it: mix it into the environment's class,

    class MyTask(KeepFinalObservations, MyDirectRLEnv): ...

Without it the adapter gives the observation before the last action and says so: `exact_final_obs` is False.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, nearest
from surefoot.envs.adapters.shared import OnlyOne, limit_of
from surefoot.envs.interface import Numbers, Tensors, VectorEnvironment, costs_of, reset_mask
from surefoot.envs.reward_terms import SUMMED, extras_terms

NEEDED = ("num_envs", "device", "single_observation_space", "single_action_space", "reset", "step")


class KeepFinalObservations:
    """Mixin before a `DirectRLEnv`: computes observations once more when a row ends, before it is reset.

    `final_observations` then holds them, name of the group -> (N, ...), or None where no row ended in the last step.
    A task whose `_get_observations` changes its own state (histories) must allow being asked twice; the noise model of
    the configuration is not applied to final observations.
    """

    final_observations: dict[str, Tensor] | None = None
    _stepping = False

    def step(self, action: Any) -> Any:
        """As the environment steps, remembering final observations."""
        self.final_observations, self._stepping = None, True
        try:
            return super().step(action)  # type: ignore[misc]
        finally:
            self._stepping = False

    def _reset_idx(self, env_ids: Any) -> None:
        if self._stepping:  # `reset()` of the whole environment comes here too, where nothing has ended
            observations = self._get_observations()  # type: ignore[attr-defined]
            self.final_observations = {key: value.clone() for key, value in observations.items()}
        super()._reset_idx(env_ids)  # type: ignore[misc]


class IsaacLabVectorEnv(OnlyOne):
    """A `DirectRLEnv`-like environment behind the contract, in tensors on its device by default.

    Args:
        env: with `num_envs`, `device`, the single spaces, `reset(seed)` -> (observations, extras) and `step(actions)`
            -> (observations, rewards, terminated, time_outs, extras); `KeepFinalObservations` makes it exact.
        group: which of its observations to give; others are in `info["observations"]`.
        tensors: "torch", or "numpy" for gymnasium's users.

    Raises:
        EnvironmentMismatchError: an environment of another shape.
        ConfigError: it has no such group of observations.
    """

    seeding = "whole"

    def __init__(self, env: Any, group: str = "policy", tensors: Tensors = "torch") -> None:
        source = getattr(env, "unwrapped", env)
        if missing := [name for name in NEEDED if not hasattr(source, name)]:
            raise EnvironmentMismatchError(
                f"{type(source).__name__} has no {', '.join(missing)}: from_isaac_lab takes one like DirectRLEnv"
            )
        space = source.single_observation_space
        groups = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {group: space}
        if group not in groups:
            raise ConfigError(f"there are no observations {group!r}: {nearest(group, list(groups))}")
        super().__init__(source.num_envs, groups[group], source.single_action_space, tensors, source.device)
        self.env = env
        self.group = group
        self.exact_final_obs = isinstance(source, KeepFinalObservations)
        self.source = source
        self.max_episode_steps = limit_of(source)
        self._last: Tensor | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin new episodes in all rows.

        Raises:
            EnvironmentMismatchError: a reset of some rows or a seed for each, which Isaac Lab has not.
        """
        mask = reset_mask(options, self.num_envs)
        if (mask is not None and not mask.all()) or not (seed is None or isinstance(seed, int)):
            raise EnvironmentMismatchError("Isaac Lab resets all rows with one seed: leave out reset_mask, give an int")
        observations, extras = self.env.reset(seed=seed)
        self._last = observations[self.group].clone()
        return self.give(observations[self.group]), {"observations": observations, "extras": extras}

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of every row."""
        self.check_actions(actions)
        if self._last is None:
            raise EnvironmentMismatchError("step was called before the first reset: call reset first")
        actions = torch.as_tensor(actions, device=self.device)
        observations, rewards, terminations, truncations, extras = self.env.step(actions)
        seen = observations[self.group]
        ended = terminations.bool() | truncations.bool()
        if not self.exact_final_obs:
            final = torch.where(_rows(ended, seen), self._last, seen)
        elif self.source.final_observations is None:
            final = seen
        else:
            final = torch.where(_rows(ended, seen), self.source.final_observations[self.group], seen)
        info = {"final_obs": final, "_final_obs": ended, "observations": observations, "extras": extras}
        info |= constraints(extras, self.num_envs) | _terms(extras)
        self._last = seen.clone()
        numbers = (self.give(value) for value in (seen, rewards, terminations.bool(), truncations.bool()))
        return *numbers, self.give_info(info)  # type: ignore[return-value]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the wrapped environment."""
        self.env.close()


def from_isaac_lab(env: Any, group: str = "policy", tensors: Tensors = "torch") -> IsaacLabVectorEnv:
    """An Isaac Lab environment behind the contract; arguments and errors as `IsaacLabVectorEnv`."""
    return IsaacLabVectorEnv(env, group, tensors)


def constraints(extras: Any, num_envs: int) -> dict[str, Any]:
    """Cost and margin that a task puts into its extras as (N,) tensors; a margin alone brings its cost."""
    found = {
        key: extras[key] for key in VectorEnvironment.constraint_keys if isinstance(extras, dict) and key in extras
    }
    for key, value in found.items():
        if tuple(np.shape(value)) != (num_envs,):
            raise EnvironmentMismatchError(
                f"extras[{key!r}] has shape {tuple(np.shape(value))}; a constraint gives ({num_envs},), one a row"
            )
    if "margin" in found and "cost" not in found:
        found["cost"] = costs_of(found["margin"])
    return found


EPISODE_REWARD = "Episode_Reward/"
"""Before the name of a term in what Isaac Lab's reward manager logs: of the rows that ended, the mean of its sum over
the episode, divided by the longest episode's seconds."""


def _terms(extras: Any) -> dict[str, Any]:
    """Terms of the reward that a task puts into its extras, one number a row, or that its manager has summed up."""
    log = extras.get("log") if isinstance(extras, dict) else None
    logged = log if isinstance(log, dict) else {}
    names = [name for name in logged if name.startswith(EPISODE_REWARD)]
    summed = {name.removeprefix(EPISODE_REWARD): logged[name] for name in names}
    return extras_terms(extras) | ({SUMMED: summed} if summed else {})


def _rows(mask: Tensor, like: Tensor) -> Tensor:
    """(N,) as (N, 1, ...), to choose whole rows of `like`."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))
