"""A native system as one environment, for `gymnasium.make`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from surefoot.cuda_ext.system import System
from surefoot.envs.interface import Array
from surefoot.envs.names import refuse_to_draw, undrawn
from surefoot.envs.native import SEEDS, NativeVectorEnv


class NativeEnv(gymnasium.Env[Array, Array]):
    """One environment of a native system, for `gymnasium.make`; arguments as those of `NativeVectorEnv`.

    It draws nothing.

    Raises:
        RenderModeError: a `render_mode`; else what `NativeVectorEnv` raises.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, system: str | System, *, render_mode: str | None = None, **options: Any) -> None:
        refuse_to_draw(render_mode, system if isinstance(system, str) else system.gym_id)
        self._rows = NativeVectorEnv(system, 1, **options)
        self.system = self._rows.system
        self.observation_space, self.action_space = self._rows.single_observation_space, self._rows.single_action_space
        self.metadata = {**self.metadata, "simulator": self._rows.metadata["simulator"]}
        self.max_episode_steps = self._rows.max_episode_steps
        """Steps after which it truncates an episode by itself."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: (O,) observation and an empty info."""
        super().reset(seed=seed)
        if seed is None and not self._rows.started:
            seed = int(self.np_random.integers(SEEDS))
        return self._rows.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One control step under an action (A,); `info` has `cost`, `margin` and `diverged`."""
        observations, rewards, terminations, truncations, info = self._rows.step(np.asarray(action)[None])
        observation = info.get("final_obs", observations)[0]
        own = {
            "cost": float(info["cost"][0]),
            "margin": float(info["margin"][0]),
            "diverged": bool(info["diverged"][0]),
        }
        return observation, float(rewards[0]), bool(terminations[0]), bool(truncations[0]), own

    def render(self) -> Any:
        """Refused: there is nothing to see."""
        raise undrawn("render() was called", self.system.gym_id)

    @property
    def state(self) -> Array:
        """(S,) state of the system, a copy; assign to it to continue from another."""
        return np.asarray(self._rows.state)[0]

    @state.setter
    def state(self, value: Any) -> None:
        self._rows.state = np.asarray(value)[None]


def make_single(*, system: str, **options: Any) -> NativeEnv:
    """`NativeEnv` as `gymnasium.make` calls it."""
    return NativeEnv(system, **options)
