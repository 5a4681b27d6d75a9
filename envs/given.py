"""A vector environment of the user's own, of any kind, as one that evaluation and training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import mapped
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.interface import Numbers, VectorEnvironment, valid_rows
from surefoot.envs.side_by_side import PausableVectorEnv

SEED_BITS = 31


class GivenVectorEnv(VectorEnvironment):
    """The first rows of a contract environment, with the attributes of a `PausableVectorEnv`.

    A paused row is stepped on, since nothing is known of how to hold it, and its numbers are marked by `valid` as none
    of a transition. `next_seeds` are not heeded: after a row's first episode its own random numbers continue. Where the
    environment takes no list of seeds, all of them make one.

    Args:
        env: contract environment, of `num_envs` rows or more.
        num_envs: rows that are used.
        name: what messages call it.

    Raises:
        ConfigError: it has fewer rows.
    """

    def __init__(self, env: Any, num_envs: int, name: str) -> None:
        if env.num_envs < num_envs:
            raise ConfigError(
                f"{name} has {env.num_envs} rows, and {num_envs} are needed: give a function of num_envs for it, "
                f"or take as many (envs={env.num_envs}, seeds=1)"
            )
        super().__init__(num_envs, env.single_observation_space, env.single_action_space, env.tensors, env.device)
        self.env, self.called = env, name
        self.exact_final_obs = getattr(env, "exact_final_obs", True)
        self.inserts_rows, self.seeding = getattr(env, "inserts_rows", False), getattr(env, "seeding", "rows")
        self.spec, self.metadata = getattr(env, "spec", None), env.metadata
        self.render_mode = getattr(env, "render_mode", None)
        self.active = np.ones(num_envs, np.bool_)
        """(N,) bool: rows whose steps count."""
        self.next_seeds: list[int | None] = [None] * num_envs
        """Not heeded."""
        self._one_seed = False

    @property
    def max_episode_steps(self) -> int | None:
        """Time limit of an episode, where the environment says one."""
        limit = getattr(self.spec, "max_episode_steps", None)
        return limit if limit is not None else getattr(self.env, "max_episode_steps", None)

    def __getattr__(self, name: str) -> Any:
        """Anything else is the environment's, where all its rows are used."""
        if name.startswith("_") or name == "env" or self.env.num_envs != self.num_envs:
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Numbers, dict[str, Any]]:
        """New episodes in all rows, which become active."""
        self.active[:] = True
        if isinstance(seed, Sequence) and not self._one_seed:
            spare = self.env.num_envs - self.num_envs
            try:
                return self._cut(*self.env.reset(seed=[*seed, *[None] * spare], options=options))
            except (TypeError, ValueError, gymnasium.error.Error):
                self._one_seed = True
        if isinstance(seed, Sequence):
            known = [one for one in seed if one is not None]
            seed = int(np.random.SeedSequence(known).generate_state(1)[0]) >> 32 - SEED_BITS if known else None
        return self._cut(*self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """Step the rows; those that are not used repeat the last one's action."""
        spare = self.env.num_envs - self.num_envs
        if spare:
            last = [actions[-1:]] * spare
            actions = (
                torch.cat([actions, *last]) if isinstance(actions, torch.Tensor) else np.concatenate([actions, *last])
            )
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        observations, info = self._cut(observations, info)
        if not self.active.all():
            valid = valid_rows(info, self.num_envs)
            here: Any = (
                torch.as_tensor(self.active, device=valid.device) if isinstance(valid, torch.Tensor) else self.active
            )
            info["valid"] = valid & here
        n = self.num_envs
        return observations, rewards[:n], terminations[:n], truncations[:n], info

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close(**kwargs)

    def _cut(self, observations: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The rows that are used."""
        rows, n = self.env.num_envs, self.num_envs
        if rows == n:
            return observations, dict(info)

        def cut(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: cut(part) for key, part in value.items()}
            return value[:n] if isinstance(value, (np.ndarray, torch.Tensor)) and value.shape[:1] == (rows,) else value

        return mapped(lambda part: part[:n], observations), cut(dict(info))


def pausable(env: Any, num_envs: int, name: str) -> PausableVectorEnv:
    """A vector environment of any kind as what `make_vec` gives: one of ours as it is.

    Args:
        env: gymnasium's or a contract environment, of `num_envs` rows or more.
        num_envs: rows that are wanted.
        name: what messages call it.

    Raises:
        EnvironmentMismatchError, ConfigError: it can't be adapted, or has fewer rows.
    """
    ours = all(hasattr(env, word) for word in ("active", "next_seeds", "max_episode_steps"))
    if ours and env.num_envs == num_envs:
        return env  # type: ignore[no-any-return]
    tensors: Any = getattr(env, "tensors", "numpy")
    adapted: Any = GivenVectorEnv(adapt(env, None, tensors, getattr(env, "device", "cpu")), num_envs, name)
    return adapted  # type: ignore[no-any-return]
