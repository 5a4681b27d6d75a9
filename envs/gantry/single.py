"""One gantry for `gymnasium.make`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, RenderModeError
from surefoot.core.base.spec import mapped
from surefoot.envs.gantry.camera import Pictures
from surefoot.envs.gantry.vector_env import CAMERAS, make

FRAME = 320
"""Pixels on each side of what `render` gives."""
FRAMES_PER_SECOND = 20


class GantryEnv(gymnasium.Env[Any, Any]):
    """One row of `GantryVectorEnv`, without a time limit of its own; arguments as `vector_env.make`'s.

    Raises:
        RenderModeError: a `render_mode` other than "rgb_array" and None; else what `vector_env.make` raises.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND}  # noqa: RUF012

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        if render_mode not in (None, "rgb_array"):
            raise RenderModeError(f"render_mode is {render_mode!r}; the gantry is drawn as 'rgb_array' alone")
        self.render_mode = render_mode
        self.rows = make(1, **{"max_episode_steps": None, **options})
        """The vector environment of one row."""
        self.observation_space, self.action_space = self.rows.single_observation_space, self.rows.single_action_space
        self.metadata = {**self.metadata, "simulator": self.rows.metadata["simulator"]}
        self._frames: Pictures | None = None
        self._seeded = False
        self._last_frame: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded, self._last_frame = True, None
        observations, _ = self.rows.reset(seed=seed)
        return mapped(lambda values: values[0], observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One control step under an action (4,); `info` has `success`, and what the person did where there is one."""
        if self.render_mode is not None:
            before = self.rows.sim.qpos[0].copy()
        observations, rewards, terminations, truncations, info = self.rows.step(np.asarray(action)[None])
        flags = ("success", "diverged", "is_intervention")
        own: dict[str, Any] = {key: bool(info[key][0]) for key in flags if key in info}
        if own.get("is_intervention"):
            own["intervene_action"] = info["intervene_action"][0]
        if self.render_mode is not None and (terminations[0] or truncations[0]):
            self._last_frame = self._draw(before)  # the row has started anew
        observation = mapped(lambda values: values[0], info.get("final_obs", observations))
        return observation, float(rewards[0]), bool(terminations[0]), bool(truncations[0]), own

    def render(self) -> Any:
        """(320, 320, 3) uint8: what the front camera sees; at an episode's end, of the step before.

        Raises:
            ConfigError: it was made without render_mode="rgb_array".
        """
        if self.render_mode is None:
            raise ConfigError("render() needs render_mode='rgb_array': give it to gymnasium.make")
        return self._draw(self.rows.sim.qpos[0]) if self._last_frame is None else self._last_frame

    def _draw(self, positions: Any) -> Any:
        if self._frames is None:
            self._frames = Pictures(self.rows.model, FRAME)
        picture = np.empty((FRAME, FRAME, 3), np.uint8)
        self._frames.begin()
        self._frames.data.qpos[:] = positions
        if self.rows.gantry.variant == "insert":
            self._frames.data.mocap_pos[:] = self.rows.sim.mocap_pos[0]
        self._frames.place()
        self._frames.draw(int(self.rows.model.camera(CAMERAS[0]).id), picture)
        return picture

    def close(self) -> None:
        """Free what draws."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        self.rows.close()


def make_single(**options: Any) -> GantryEnv:
    """`GantryEnv` as `gymnasium.make` calls it."""
    return GantryEnv(**options)
