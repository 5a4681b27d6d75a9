"""N gantries side by side, seen by two cameras or by their state, with or without a person who helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.gantry.camera import Pictures
from surefoot.envs.gantry.person import Habits, Person
from surefoot.envs.gantry.task import CAMERA_SHIFT, Gantry
from surefoot.envs.mujoco.task import Array
from surefoot.envs.mujoco.vector_env import MujocoVectorEnv
from surefoot.envs.names import refuse_side_by_side

CAMERAS = ("front", "wrist")
SIZE = 64


class GantryVectorEnv(MujocoVectorEnv):
    """As `MujocoVectorEnv`, of a `Gantry`.

    With pictures an observation is a Dict: `front` and `wrist`, (size, size, 3) uint8, and `state`, (11,) float32, what
    the gantry knows of itself. Without, it is one vector that also says where things are (`Gantry.names`).
    With a person `info["is_intervention"]` (N,) bool says which rows the person acted in, and
    `info["intervene_action"]` (N, 4) what was executed there.

    Args:
        task: the task.
        num_envs: N, at least 1.
        pictures: observe by cameras.
        size: height and width of a picture, in pixels.
        person: True: a scripted person takes over where a policy is off its course; or the person's habits.
        options: of `MujocoVectorEnv`.

    Raises:
        ConfigError: a value out of its range.
        SimulatorError: nothing on this machine draws pictures.
    """

    def __init__(
        self,
        task: Gantry,
        num_envs: int = 1,
        *,
        pictures: bool = True,
        size: int = SIZE,
        person: bool | Habits = False,
        **options: Any,
    ) -> None:
        if not isinstance(person, bool | Habits) or not isinstance(pictures, bool):
            raise ConfigError(f"person={person!r} and pictures={pictures!r}: each must be true or false")
        self.pictures, self.size = pictures, size
        self.gantry = task
        super().__init__(task, num_envs, **options)
        habits = person if isinstance(person, Habits) else None
        self.person = Person(task, num_envs, habits) if person else None

    def _declare(self) -> None:
        super()._declare()
        self._shift = np.zeros((self.num_envs, 3))
        self._cameras: Pictures | None = None
        if not self.pictures:
            self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._last.shape[1:], np.float32)
            self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
            return
        self._cameras = Pictures(self.model, self.size)
        self._ids = [int(self.model.camera(name).id) for name in CAMERAS]
        self._places = self.model.cam_pos.copy()
        shape = (self.size, self.size, 3)
        self._seen = {name: np.zeros((self.num_envs, *shape), np.uint8) for name in CAMERAS}
        self._final: dict[str, Array] | None = None
        width = self.gantry.proprioception(self.sim).shape[1]
        parts: dict[str, gymnasium.Space[Any]] = {
            **{name: gymnasium.spaces.Box(0, 255, shape, np.uint8) for name in CAMERAS},
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32),
        }
        self._width = width
        self.single_observation_space = gymnasium.spaces.Dict(parts)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As `MujocoVectorEnv.reset`."""
        _, info = super().reset(seed=seed, options=options)
        if not self.pictures:
            return self._out(self._last.astype(np.float32)), info
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        self._look(np.flatnonzero(mask), self._seen)
        return self._given(self._seen, self._last), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As `MujocoVectorEnv.step`; where the person acts, by the person's actions."""
        taken: Array | None = None
        if self.person is not None and self._begun:
            moving = self.active.copy()
            actions, taken = self.person.act(self.sim, self._actions(actions, np.zeros_like(moving)), moving)
        self._final = None
        _, rewards, terminations, truncations, info = super().step(actions)
        if taken is not None:
            info["is_intervention"], info["intervene_action"] = self._out(taken), self._out(actions)
            info["_is_intervention"], info["_intervene_action"] = self._out(self.active.copy()), self._out(taken.copy())
        if not self.pictures:
            if "final_obs" in info:
                info["final_obs"] = self._out(np.asarray(info["final_obs"]).astype(np.float32))
            return self._out(self._last.astype(np.float32)), rewards, terminations, truncations, info
        moved = np.flatnonzero(np.asarray(info["valid"]))
        self._look(moved, self._seen)
        if self._final is not None:
            ended = np.asarray(info["_final_obs"])
            final = {
                name: np.where(ended[:, None, None, None], values, self._seen[name])
                for name, values in self._final.items()
            }
            info["final_obs"] = self._given(final, np.asarray(info["final_obs"]))
        return self._given(self._seen, self._last), rewards, terminations, truncations, info

    def _autoreset(self, ended: Array, info: dict[str, Any]) -> dict[str, Any]:
        if self.pictures:
            self._final = {name: values.copy() for name, values in self._seen.items()}
            self._look(np.flatnonzero(ended), self._final)
        return super()._autoreset(ended, info)

    def _reset_rows(self, rows: Array, seeds: Sequence[int | None]) -> None:
        super()._reset_rows(rows, seeds)
        for row in rows.tolist():
            generator = self._generators[row]
            assert generator is not None  # the reset gave it
            if self.gantry.variant == "shift":
                self._shift[row] = generator.uniform(-CAMERA_SHIFT, CAMERA_SHIFT, 3)
            elif self.gantry.variant == "insert":
                place = self.gantry.socket_place(self.gantry.thing(self.sim)[row, :2], generator)
                self.sim.mocap_pos[row, 0, :2] = place
        if self.gantry.variant == "insert":
            self.batch.forward(rows)
            self._last[rows] = self.task.observe(self.sim)[rows]

    def _look(self, rows: Array, into: dict[str, Array]) -> None:
        """Draw what the cameras of these rows see."""
        assert self._cameras is not None
        self._cameras.begin()
        front = self._ids[0]
        for row in rows.tolist():
            data = self._cameras.data
            data.qpos[:] = self.sim.qpos[row]
            if self.gantry.variant == "insert":
                data.mocap_pos[:] = self.sim.mocap_pos[row]
            self.model.cam_pos[front] = self._places[front] + self._shift[row]
            self._cameras.place()
            for name, camera in zip(CAMERAS, self._ids, strict=True):
                self._cameras.draw(camera, into[name][row])
        self.model.cam_pos[front] = self._places[front]

    def _given(self, seen: Mapping[str, Array], states: Array) -> Any:
        """The observations of pictures and (N, O) states."""
        own = states[:, : self._width].astype(np.float32)
        return self._out({**{name: values.copy() for name, values in seen.items()}, "state": own})

    def get_state(self) -> dict[str, Array]:
        """As `MujocoVectorEnv.get_state`, with the pictures, the camera's place and what the person counts."""
        state = super().get_state() | {"camera_shift": self._shift.copy()}
        if self.pictures:
            state |= {f"pictures/{name}": values.copy() for name, values in self._seen.items()}
        return state if self.person is None else state | self.person.get_state()

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a state of `get_state`; errors as `MujocoVectorEnv.set_state`."""
        super().set_state(state)
        self._shift = np.array(state["camera_shift"])
        if self.pictures:
            self._seen = {name: np.array(state[f"pictures/{name}"], np.uint8) for name in CAMERAS}
        if self.person is not None:
            self.person.set_state(state)

    def close_extras(self, **kwargs: Any) -> None:
        """Free what draws."""
        if self._cameras is not None:
            self._cameras.close()
            self._cameras = None

    def __repr__(self) -> str:
        seen = "pictures" if self.pictures else "state"
        return f"GantryVectorEnv({self.gantry.variant}, {seen}, num_envs={self.num_envs})"


def make(
    num_envs: int = 1,
    *,
    variant: str = "pick",
    max_episode_steps: int | str | None = "task",
    render_mode: str | None = None,
    pictures: bool = True,
    size: int = SIZE,
    person: bool = False,
    gap: str | None = None,
    threads: int | None = 1,
    tensors: str = "numpy",
) -> GantryVectorEnv:
    """`GantryVectorEnv` as `gymnasium.make_vec` calls it; arguments as there.

    Raises:
        ConfigError: an argument out of its range, or a `render_mode`.
    """
    refuse_side_by_side(render_mode)
    options: dict[str, Any] = {"pictures": pictures, "size": size, "person": person, "gap": gap, "threads": threads}
    return GantryVectorEnv(
        Gantry(variant=variant), num_envs, max_episode_steps=max_episode_steps, tensors=tensors, **options
    )
