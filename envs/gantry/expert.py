"""The scripted expert: it knows where things are, and says what to do next from any state."""

from __future__ import annotations

import numpy as np

from surefoot.core.base.errors import ConfigError
from surefoot.envs.gantry import model
from surefoot.envs.gantry.task import Gantry
from surefoot.envs.mujoco.task import Array, Simulations

NOISE = 0.15
"""Standard deviation of what is added to each action of a demonstration."""
ABOVE, AROUND = 0.02, 0.012
"""Meters off along x or y within which it goes down, and shuts the fingers."""
LIFT, CARRY, HOVER = 0.16, 0.1, 0.11
"""Heights of the fingertips, in meters: a lifted thing, a carried one, and before going down."""
AIMED = 0.006
"""Meters off the socket within which the cube is let down."""
SHUT, HELD = 0.02, 0.008
"""How far the fingers are driven inwards, and have come at least, in meters, where something is held."""


class Expert:
    """Says the next action of each row; from any state, so that it can also correct what another did.

    Args:
        task: the task.
        rows: N simulations.
        noise: standard deviation of what is added to each number of an action.
        generator: of the noise, and of the handle of a bar, which is drawn for each episode; None: no noise, and the
            nearer handle.

    Raises:
        ConfigError: a negative noise, or noise without a generator.
    """

    def __init__(
        self, task: Gantry, rows: int, noise: float = 0.0, generator: np.random.Generator | None = None
    ) -> None:
        if noise < 0 or (noise > 0 and generator is None):
            raise ConfigError(f"noise is {noise}; it must be 0 or more, and noise needs a generator")
        self.task, self.noise, self.generator = task, noise, generator
        self._sides = np.ones(rows)

    def target(self, sim: Simulations) -> Array:
        """(N, 3) the middle of what is to be gripped."""
        thing = self.task.thing(sim).copy()
        if self.task.variant == "sides":
            if self.generator is None:
                sides = np.where(self.task.tip(sim)[:, 1] >= thing[:, 1], 1.0, -1.0)
            else:
                drawn = self.generator.integers(0, 2, sim.num_envs) * 2.0 - 1.0
                self._sides = sides = np.where(sim.time.reshape(-1) == 0, drawn, self._sides)
            thing[:, 1] += sides * model.HANDLES
        return thing

    def actions(self, sim: Simulations) -> Array:
        """(N, 4) float32 in [-1, 1]."""
        task, insert = self.task, self.task.variant == "insert"
        target, tip, at = self.target(sim), task.tip(sim), task.set_points(sim)
        off = np.abs(target[:, :2] - tip[:, :2]).max(1)
        higher, margin = (0.012, 0.02) if insert else (0.002, 0.012)  # the fingers stay above the socket's walls
        low = np.minimum(target[:, 2], model.CUBE[2]) + higher
        around = (off < AROUND) & (tip[:, 2] - target[:, 2] < margin)
        held = around & (sim.act[:, 3] <= -SHUT) & (sim.qpos[:, 3] > HELD) & (np.abs(sim.qvel[:, 3]) < 0.02)

        goal = np.stack([target[:, 0], target[:, 1], np.where(off < ABOVE, low, HOVER)], 1)
        goal = np.where(around[:, None], np.column_stack([at[:, :2], low]), goal)
        up = np.column_stack([at[:, :2], np.full(len(at), CARRY if insert else LIFT)])
        goal = np.where(held[:, None], up, goal)
        if insert:
            socket = task.socket(sim)[:, :2]
            across = np.column_stack([socket, np.full(len(at), CARRY)])
            down = np.column_stack([at[:, :2] + socket - target[:, :2], np.full(len(at), model.CUBE[2] + 0.01)])
            aimed = np.abs(target[:, :2] - socket).max(1) < AIMED
            goal = np.where((held & (tip[:, 2] > 0.06))[:, None], across, goal)
            goal = np.where((held & aimed)[:, None], down, goal)
        found = np.column_stack([np.clip((goal - at) / model.STRIDE, -1, 1), np.where(around, -1.0, 1.0)])
        if self.noise and self.generator is not None:
            found = found + self.generator.normal(0, self.noise, found.shape)
        return np.clip(found, -1, 1).astype(np.float32)

    def remaining(self, sim: Simulations) -> Array:
        """(N,) meters that are left to go: to the thing, and of the thing to where it is to be."""
        target, thing = self.target(sim), self.task.thing(sim)
        to_go = np.maximum(0.0, model.LIFTED - thing[:, 2])
        if self.task.variant == "insert":
            to_go = np.linalg.norm(thing - self.task.socket(sim) - [0, 0, model.CUBE[2]], axis=1)
        return np.linalg.norm(target - self.task.tip(sim), axis=1) + to_go
