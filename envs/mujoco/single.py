"""One simulation for `gymnasium.make`: gymnasium's own v5 environment, with our constraint and dynamics gap."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.mujoco import gaps, library
from surefoot.envs.mujoco.tasks import VELOCITY_LIMITS

SPEED_IN_PLANE = ("Ant", "Humanoid")
"""Tasks whose limit is on the speed in the plane instead of the velocity along x."""


class ConstrainedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """`info["cost"]` (0 or 1) and `info["margin"]` from a speed limit, and a gap of `gaps.GAPS`."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], velocity_limit: float | None, in_plane: bool, gap: str | None
    ) -> None:
        super().__init__(env)
        self.velocity_limit, self.in_plane, self.gap = velocity_limit, in_plane, gaps.parse(gap)
        base: Any = env.unwrapped
        for name, value in self.gap.changes(base.model).items():
            if name.startswith("opt."):
                setattr(base.model.opt, name[4:], value)
            else:
                getattr(base.model, name)[...] = value
        self.metadata = {**env.metadata, "simulator": library.version()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's; the gap's noise is seeded as well."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None or not hasattr(self, "_noise"):
            self._noise = gaps.noise_generator(self.env.unwrapped.np_random_seed)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As gymnasium's, with the constraint in `info`."""
        if self.gap.noise > 0:
            space: Any = self.action_space
            action = gaps.noisy(np.asarray(action), self.gap.noise, self._noise, space.low, space.high)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.velocity_limit is not None:
            velocity = info["x_velocity"]
            if self.in_plane:
                velocity = math.sqrt(velocity * velocity + info["y_velocity"] * info["y_velocity"])
            margin = float(self.velocity_limit - velocity)
            info = {**info, "cost": float(margin < 0), "margin": margin}
        return observation, reward, terminated, truncated, info


def make_single(
    *, task: str, velocity_limit: float | None = None, gap: str | None = None, **kwargs: Any
) -> ConstrainedEnv:
    """gymnasium's environment of that name with a constraint and a gap; `kwargs` are its own.

    Raises:
        MissingExtraError, ConfigError: mujoco absent or below 3.17; a limit on a task that doesn't move forward.
    """
    library.load(f"{task}-v5")
    if velocity_limit is not None and task not in VELOCITY_LIMITS:
        raise ConfigError(f"{task} has no velocity to limit; velocity_limit= is for {', '.join(VELOCITY_LIMITS)}")
    creator: Any = gymnasium.envs.registration.load_env_creator(str(gymnasium.spec(f"{task}-v5").entry_point))
    return ConstrainedEnv(creator(**kwargs), velocity_limit, task in SPEED_IN_PLANE, gap)
