"""A simulator of which a process has one only: training and evaluation take turns in it."""

from __future__ import annotations

import math
from typing import Any

from surefoot.envs.interface import Numbers, VectorEnvironment


class OnlyOne(VectorEnvironment):
    """A vector environment that can't be made again or copied, as Isaac's; a copy of it is a `Turn` in it."""

    max_episode_steps: int | None = None
    """Time limit of an episode, where the source says it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Turn:
        return Turn(self)


def limit_of(source: Any) -> int | None:
    """`max_episode_length` of an Isaac task, in steps; None where it has none, or infinity."""
    limit = getattr(source, "max_episode_length", None)
    return None if limit is None or not 0 < float(limit) < math.inf else int(limit)


class Turn(VectorEnvironment):
    """Somebody's view of an environment that others step too: closing it leaves the environment open.

    Whoever comes back to it after others have stepped it begins new episodes (`takes_turns`).
    """

    def __init__(self, env: OnlyOne) -> None:
        spaces = (env.single_observation_space, env.single_action_space)
        super().__init__(env.num_envs, *spaces, env.tensors, env.device)
        self.env = env
        self.exact_final_obs, self.inserts_rows, self.seeding = env.exact_final_obs, env.inserts_rows, env.seeding
        self.called, self.max_episode_steps = (getattr(env, name, None) for name in ("called", "max_episode_steps"))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Numbers, dict[str, Any]]:
        """As the environment's."""
        return self.env.reset(seed=seed, options=options)  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Numbers, Numbers, Numbers, Numbers, dict[str, Any]]:
        """As the environment's."""
        return self.env.step(actions)  # type: ignore[no-any-return]

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing: it is for whoever made the environment to close it."""


def takes_turns(env: Any) -> bool:
    """Whether others step an environment too, or what it is wrapped around."""
    while env is not None:
        if isinstance(env, OnlyOne | Turn):
            return True
        env = getattr(env, "__dict__", {}).get("env")
    return False
