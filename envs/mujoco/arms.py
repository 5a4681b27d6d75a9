"""Reacher, Pusher and the inverted pendulums as in gymnasium's v5."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, ClassVar

import numpy as np

from surefoot.envs.mujoco.locomotion import uniform, uniform_and_normal
from surefoot.envs.mujoco.task import Array, Info, Simulations, Task


def norm(vectors: Array) -> Array:
    """(N,) Euclidean lengths; `vecdot` calls the same dot product on each row as `np.linalg.norm` on one."""
    vectors = np.ascontiguousarray(vectors)
    return np.sqrt(np.vecdot(vectors, vectors))


def between(sim: Simulations, first: str, second: str) -> Array:
    """(N, 3): position of the first body minus that of the second."""
    return np.asarray(sim.xpos[:, sim.body(first)] - sim.xpos[:, sim.body(second)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reacher(Task):
    """gymnasium's Reacher-v5."""

    xml_file: str | pathlib.Path = "reacher.xml"
    frame_skip: int = 2
    reward_dist_weight: float = 1
    reward_control_weight: float = 1

    max_episode_steps: ClassVar[int | None] = 50
    fields: ClassVar[tuple[str, ...]] = ("xpos",)

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform angles; the target uniform in a disc of radius 0.2 m."""
        qpos = generator.uniform(low=-0.1, high=0.1, size=model.nq) + model.qpos0
        while True:
            goal = generator.uniform(low=-0.2, high=0.2, size=2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = np.zeros(model.nv) + generator.uniform(low=-0.005, high=0.005, size=model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self, sim: Simulations) -> Array:
        """Cosines and sines of the angles, target, joint velocities, fingertip minus target."""
        angles = np.ascontiguousarray(sim.qpos[:, :2])
        to_target = between(sim, "fingertip", "target")[:, :2]
        return np.concatenate((np.cos(angles), np.sin(angles), sim.qpos[:, 2:], sim.qvel[:, :2], to_target), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Never terminates."""
        near = -norm(between(sim, "fingertip", "target")) * self.reward_dist_weight
        control = -np.square(actions).sum(axis=1) * self.reward_control_weight
        return near + control, np.zeros(sim.num_envs, np.bool_), {"reward_dist": near, "reward_ctrl": control}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pusher(Task):
    """gymnasium's Pusher-v5."""

    xml_file: str | pathlib.Path = "pusher_v5.xml"
    frame_skip: int = 5
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1
    reward_control_weight: float = 0.1

    max_episode_steps: ClassVar[int | None] = 100
    fields: ClassVar[tuple[str, ...]] = ("xpos",)

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """The object uniform in a rectangle, but not at the goal; the arm at rest in its default pose."""
        qpos = model.qpos0.copy()
        while True:
            x = generator.uniform(low=-0.3, high=0, size=1)
            y = generator.uniform(low=-0.2, high=0.2, size=1)
            place = np.concatenate([x, y])
            if np.linalg.norm(place) > 0.17:
                break
        qpos[-4:-2] = place
        qpos[-2:] = 0
        qvel = np.zeros(model.nv) + generator.uniform(low=-0.005, high=0.005, size=model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self, sim: Simulations) -> Array:
        """Joint angles and velocities; positions of the fingertip, the object and the goal."""
        bodies = [sim.xpos[:, sim.body(name)] for name in ("tips_arm", "object", "goal")]
        return np.concatenate((sim.qpos[:, :7], sim.qvel[:, :7], *bodies), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Never terminates."""
        near = -norm(between(sim, "object", "tips_arm")) * self.reward_near_weight
        distance = -norm(between(sim, "object", "goal")) * self.reward_dist_weight
        control = -np.square(actions).sum(axis=1) * self.reward_control_weight
        info = {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}
        return distance + control + near, np.zeros(sim.num_envs, np.bool_), info


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedPendulum(Task):
    """gymnasium's InvertedPendulum-v5."""

    xml_file: str | pathlib.Path = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions and velocities."""
        return uniform(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions and velocities."""
        return np.concatenate((sim.qpos, sim.qvel), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Terminates when the pole leans more than 0.2 rad."""
        states = self.observe(sim)
        ended = ~np.isfinite(states).all(axis=1) | (np.abs(states[:, 1]) > 0.2)
        rewards = (~ended).astype(np.float64)
        return rewards, ended, {"reward_survive": rewards.astype(np.int64)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulum(Task):
    """gymnasium's InvertedDoublePendulum-v5."""

    xml_file: str | pathlib.Path = "inverted_double_pendulum.xml"
    frame_skip: int = 5
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1

    fields: ClassVar[tuple[str, ...]] = ("site_xpos", "qfrc_constraint")

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions, normal velocities."""
        return uniform_and_normal(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Cart position, sines and cosines of the angles, clipped velocities, clipped force on the cart."""
        angles = np.ascontiguousarray(sim.qpos[:, 1:])
        velocities, forces = np.clip(sim.qvel, -10, 10), np.clip(sim.qfrc_constraint[:, :1], -10, 10)
        return np.concatenate((sim.qpos[:, :1], np.sin(angles), np.cos(angles), velocities, forces), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Terminates when the tip is at 1 m or below."""
        x, y = sim.site_xpos[:, 0, 0], sim.site_xpos[:, 0, 2]
        v1, v2 = sim.qvel[:, 1], sim.qvel[:, 2]
        ended = y <= 1
        distance = 0.01 * _squares(x) + _squares(y - 2)
        velocity = 1e-3 * _squares(v1) + 5e-3 * _squares(v2)
        survive = self.healthy_reward * ~ended
        info = {"reward_survive": survive, "distance_penalty": -distance, "velocity_penalty": -velocity}
        return survive - distance - velocity, ended, info


def _squares(values: Array) -> Array:
    """`x**2` of each numpy scalar: libm's pow, whose last bit may differ from x * x, as gymnasium has it."""
    return np.array([value**2 for value in values])
