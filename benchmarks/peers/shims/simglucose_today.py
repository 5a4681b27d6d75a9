"""NeoRL-2's Simglucose for today's numpy: scalar actions, and numpy's global generator, which it draws from, seeded."""

from __future__ import annotations

from typing import Any

import gymnasium
import neorl2  # noqa: F401  # registers it
import numpy as np
from gymnasium.envs.registration import register
from torch import Tensor


class SimglucoseToday(gymnasium.Wrapper):
    """The dose as a number: numpy no longer takes an array of one element for it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, the same patient, meals and sensor for the same seed."""
        if seed is not None:
            np.random.seed(seed % 2**32)  # noqa: NPY002  # the simulator draws from it
        observation, info = self.env.reset(seed=seed, options=options)
        return np.asarray(observation, np.float32), dict(info or {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's."""
        observation, reward, terminated, truncated, _ = self.env.step(float(np.asarray(action).reshape(())))
        return (
            np.asarray(observation, np.float32),
            float(np.asarray(reward).reshape(())),
            bool(terminated),
            truncated,
            {},
        )


def glucose_ends(following: Tensor) -> Tensor:
    """Whether the sensor's reading, the first of the state, is below 40 or above 600: NeoRL-2's rule for models.

    The environment ends where the glucose itself is there, which no state holds.
    """
    return (following[..., 0] < 40) | (following[..., 0] > 600)


def make() -> gymnasium.Env[Any, Any]:
    """The wrapped environment, without gymnasium's checks of a number of its own making."""
    return SimglucoseToday(gymnasium.make("Simglucose", disable_env_checker=True).unwrapped)


register(id="SimglucoseToday-v0", entry_point=make, max_episode_steps=480)
