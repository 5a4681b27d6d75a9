"""CartPole-v1 and Pendulum-v1 without their velocities, for agents that remember; needs gymnasium alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SEEN = {"CartPole-v1": [0, 2], "Pendulum-v1": [0, 1]}
"""Id -> numbers of the observation that are left: position and angle; cosine and sine of the angle."""


class HiddenVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The environment of an id, of whose observation only the numbers of `SEEN` are given."""

    def __init__(self, env_id: str, **options: Any) -> None:
        super().__init__(gymnasium.make(env_id, **options))
        self.seen = SEEN[env_id]
        space: Any = self.env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[self.seen], space.high[self.seen], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The numbers that are left."""
        return np.asarray(observation[self.seen], np.float32)


gymnasium.register("CartPoleHidden-v0", HiddenVelocities, kwargs={"env_id": "CartPole-v1"}, max_episode_steps=500)
gymnasium.register("PendulumHidden-v0", HiddenVelocities, kwargs={"env_id": "Pendulum-v1"}, max_episode_steps=200)
