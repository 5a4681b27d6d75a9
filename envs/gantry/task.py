"""The task and its variants: where things lie at first, what is observed, and when it is done."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.envs.gantry import model
from surefoot.envs.mujoco.task import Array, Info, Simulations, Task

VARIANTS = {
    "pick": "lift the red cube",
    "two-cubes": "lift the red cube; a blue one lies beside it",
    "sides": "lift a bar by one of its two handles; the plate between them can't be gripped",
    "shift": "lift the red cube; the front camera stands elsewhere in each episode",
    "insert": "put the red cube into the blue socket",
}
"""Variant -> what is to be done."""
SUCCESS, APART = 0.008, 0.09
"""Meters that a cube in the socket may be off its middle, and that things lie apart at least along x or y."""
INSERTED = 0.005
"""Meters above the table that the cube's middle in the socket may be higher than it lies."""
CAMERA_SHIFT = 0.02
"""Meters to both sides along each axis that the front camera of `shift` is moved."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gantry(Task):
    """A gantry with two fingers and what lies on its table.

    An action is 4 numbers from -1 to 1: how far the set points of x, y and z move in a step, in `model.STRIDE`, and how
    the fingers move, 1 to open. The reward is 1 in the step that solves the task, which ends the episode, and else 0.
    """

    xml_file: str = ""
    """Made of the variant."""
    frame_skip: int = model.SUBSTEPS
    variant: str = "pick"
    """One of `VARIANTS`."""

    max_episode_steps: ClassVar[int | None] = 80
    fields: ClassVar[tuple[str, ...]] = ("act",)

    def __post_init__(self) -> None:
        """Write the model.

        Raises:
            ConfigError: a variant that is none.
        """
        if self.variant not in VARIANTS:
            raise ConfigError(f"gantry-pick has no variant {self.variant!r}; {nearest(self.variant, list(VARIANTS))}")
        red = model.cube("cube", model.RED)
        objects = {
            "two-cubes": red + model.cube("other", model.BLUE),
            "sides": model.bar("bar"),
            "insert": red + model.socket(),
        }.get(self.variant, red)
        object.__setattr__(self, "xml_file", model.text(objects))

    def field_names(self) -> tuple[str, ...]:
        """With the socket's place where there is one."""
        return (*self.fields, "mocap_pos") if self.variant == "insert" else self.fields

    def episode_steps(self) -> int | None:
        """Half as many again where the cube is to be carried to a socket."""
        assert self.max_episode_steps is not None
        return self.max_episode_steps * 3 // 2 if self.variant == "insert" else self.max_episode_steps

    @property
    def names(self) -> tuple[str, ...]:
        """What each number of `observe` is."""
        tip = [f"tip {axis}" for axis in "xyz"]
        ahead = [f"set point - tip {axis}" for axis in "xyz"]
        speed = [f"speed {axis}" for axis in "xyz"]
        things = {"two-cubes": ("cube", "other"), "sides": ("bar",), "insert": ("cube", "socket")}
        of = [f"{name} {axis}" for name in things.get(self.variant, ("cube",)) for axis in "xyz"]
        return (*tip, *ahead, *speed, "fingers", "set point of fingers", *of)

    def reset(self, model_: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """The gantry at home and open; the things somewhere on the table, apart from each other."""
        positions = model_.qpos0.copy()
        bodies = (len(positions) - model.GANTRY) // model.FREE
        places = [generator.uniform(-model.SPREAD, model.SPREAD, 2)]
        while len(places) < bodies:
            place = generator.uniform(-model.SPREAD, model.SPREAD, 2)
            if np.abs(place - places[0]).max() >= APART:
                places.append(place)
        for i, place in enumerate(places):
            first = model.GANTRY + i * model.FREE
            positions[first : first + 2] = place
        return positions, np.zeros(model_.nv)

    def socket_place(self, cube: Array, generator: np.random.Generator) -> Array:
        """(2,) a place for the socket, apart from the cube at (2,)."""
        while True:
            place = generator.uniform(-model.SPREAD, model.SPREAD, 2)
            if np.abs(place - cube).max() >= APART:
                return place

    def tip(self, sim: Simulations) -> Array:
        """(N, 3) the point between the fingertips, in meters from the middle of the table."""
        return sim.qpos[:, :3] + [0.0, 0.0, model.HOME_HEIGHT]

    def set_points(self, sim: Simulations) -> Array:
        """(N, 3) where the slides are driven to, likewise."""
        speed = model.STRIDE / (model.TIME_STEP * model.SUBSTEPS)
        return sim.act[:, :3] * speed + [0.0, 0.0, model.HOME_HEIGHT]

    def thing(self, sim: Simulations, number: int = 0) -> Array:
        """(N, 3) the middle of a thing that can be moved: 0 is the one to lift."""
        first = model.GANTRY + number * model.FREE
        return np.asarray(sim.qpos[:, first : first + 3])

    def socket(self, sim: Simulations) -> Array:
        """(N, 3) the middle of the socket's ground."""
        return np.asarray(sim.mocap_pos[:, 0])

    def proprioception(self, sim: Simulations) -> Array:
        """(N, 11) what the gantry knows of itself: the first numbers of `observe`."""
        tip = self.tip(sim)
        fingers = [sim.qpos[:, 3:4], -sim.act[:, 3:4]]
        return np.concatenate([tip, self.set_points(sim) - tip, sim.qvel[:, :3], *fingers], 1)

    def observe(self, sim: Simulations) -> Array:
        """(N, 14 or 17): `names`, in meters and m/s."""
        parts = [self.proprioception(sim), self.thing(sim)]
        if self.variant == "two-cubes":
            parts.append(self.thing(sim, 1))
        elif self.variant == "insert":
            parts.append(self.socket(sim))
        return np.concatenate(parts, 1)

    def solved(self, sim: Simulations) -> Array:
        """(N,) bool."""
        thing = self.thing(sim)
        if self.variant != "insert":
            return np.asarray(thing[:, 2] > model.LIFTED)
        off = np.abs(thing[:, :2] - self.socket(sim)[:, :2]).max(1)
        return (off < SUCCESS) & (thing[:, 2] < model.CUBE[2] + INSERTED)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """A reward of 1 where the task is solved, which terminates; `info["success"]`."""
        solved = self.solved(sim)
        return solved.astype(np.float64), solved, {"success": solved.copy()}
