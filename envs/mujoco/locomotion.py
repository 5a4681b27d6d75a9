"""HalfCheetah, Hopper, Walker2d and Swimmer as in gymnasium's v5, expression by expression.

The order and precision of every operation is gymnasium's (float32 where actions are), so that observations,
rewards and ends are bit for bit the same.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from surefoot.envs.mujoco.task import Array, Info, Simulations, Task, constraint

INFINITY = float("inf")


def uniform(model: Any, generator: np.random.Generator, scale: float) -> tuple[Array, Array]:
    """`qpos0` and rest, each plus uniform noise of +-scale."""
    qpos = model.qpos0 + generator.uniform(low=-scale, high=scale, size=model.nq)
    return qpos, np.zeros(model.nv) + generator.uniform(low=-scale, high=scale, size=model.nv)


def uniform_and_normal(model: Any, generator: np.random.Generator, scale: float) -> tuple[Array, Array]:
    """`qpos0` plus uniform noise of +-scale, and normal velocities of standard deviation scale."""
    qpos = model.qpos0 + generator.uniform(low=-scale, high=scale, size=model.nq)
    return qpos, np.zeros(model.nv) + scale * generator.standard_normal(model.nv)


def inside(values: Array, limits: tuple[float, float]) -> Array:
    """Strictly between the limits, elementwise."""
    return (limits[0] < values) & (values < limits[1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Locomotion(Task):
    """Forward velocity minus control cost; with `velocity_limit`, a cost above that speed as well.

    `velocity_limit` (m/s; None for no constraint): `info["margin"]` is the limit minus the velocity and
    `info["cost"]` 1 where that is negative, as in Safety-Gymnasium's velocity tasks.
    """

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True
    velocity_limit: float | None = None

    def control_cost(self, actions: Array) -> Array:
        """(N,) in the actions' own precision."""
        return self.ctrl_cost_weight * np.square(actions).sum(axis=1)

    def x_velocity(self, sim: Simulations) -> Array:
        """(N,) m/s over the control step."""
        return (sim.qpos[:, 0] - sim.before.qpos[:, 0]) / sim.dt

    def limit(self, velocity: Array) -> Info:
        """Cost and margin of (N,) velocities, where there is a limit."""
        return {} if self.velocity_limit is None else constraint(self.velocity_limit - velocity)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfCheetah(Locomotion):
    """gymnasium's HalfCheetah-v5."""

    xml_file: str | pathlib.Path = "half_cheetah.xml"
    frame_skip: int = 5

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions, normal velocities."""
        return uniform_and_normal(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions (without x) and velocities."""
        skipped = 1 if self.exclude_current_positions_from_observation else 0
        return np.concatenate((sim.qpos[:, skipped:], sim.qvel), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Never terminates."""
        velocity = self.x_velocity(sim)
        forward = self.forward_reward_weight * velocity
        cost = self.control_cost(actions)
        info = {"x_velocity": velocity, "reward_forward": forward, "reward_ctrl": -cost}
        ended = np.zeros(sim.num_envs, np.bool_)
        return forward - cost, ended, {**self.positions(sim), **info, **self.limit(velocity)}

    def positions(self, sim: Simulations) -> Info:
        """Where the torso is."""
        return {"x_position": sim.qpos[:, 0].copy()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hopper(Locomotion):
    """gymnasium's Hopper-v5."""

    xml_file: str | pathlib.Path = "hopper.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, INFINITY)
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)
    reset_noise_scale: float = 5e-3

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions and velocities."""
        return uniform(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions (without x) and velocities clipped to +-10."""
        skipped = 1 if self.exclude_current_positions_from_observation else 0
        return np.concatenate((sim.qpos[:, skipped:], np.clip(sim.qvel, -10, 10)), axis=1)

    def healthy(self, sim: Simulations) -> Array:
        """(N,) bool: upright, high enough, no state out of range."""
        states = inside(sim.qpos[:, 2:], self.healthy_state_range).all(axis=1)
        states &= inside(sim.qvel, self.healthy_state_range).all(axis=1)
        return states & self.upright(sim)

    def upright(self, sim: Simulations) -> Array:
        """(N,) bool: height and angle of the torso in range."""
        return inside(sim.qpos[:, 1], self.healthy_z_range) & inside(sim.qpos[:, 2], self.healthy_angle_range)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Terminates when unhealthy."""
        velocity, healthy = self.x_velocity(sim), self.healthy(sim)
        forward = self.forward_reward_weight * velocity
        survive = healthy * self.healthy_reward
        cost = self.control_cost(actions)
        info = {"x_velocity": velocity, "reward_forward": forward, "reward_ctrl": -cost, "reward_survive": survive}
        ended = ~healthy & self.terminate_when_unhealthy
        return forward + survive - cost, ended, {**self.positions(sim), **info, **self.limit(velocity)}

    def positions(self, sim: Simulations) -> Info:
        """Where the torso is, and how far above its initial height."""
        return {
            "x_position": sim.qpos[:, 0].copy(),
            "z_distance_from_origin": sim.qpos[:, 1] - sim.model.qpos0[1],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walker2d(Hopper):
    """gymnasium's Walker2d-v5: a hopper of two legs, whose other states may take any value."""

    xml_file: str | pathlib.Path = "walker2d_v5.xml"
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)

    def healthy(self, sim: Simulations) -> Array:
        """(N,) bool: upright and high enough."""
        return self.upright(sim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swimmer(Locomotion):
    """gymnasium's Swimmer-v5."""

    xml_file: str | pathlib.Path = "swimmer.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions and velocities."""
        return uniform(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions (without x and y) and velocities."""
        skipped = 2 if self.exclude_current_positions_from_observation else 0
        return np.concatenate((sim.qpos[:, skipped:], sim.qvel), axis=1)

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Never terminates."""
        velocities = (sim.qpos[:, :2] - sim.before.qpos[:, :2]) / sim.dt
        forward = self.forward_reward_weight * velocities[:, 0]
        cost = self.control_cost(actions)
        info = {
            "x_velocity": velocities[:, 0],
            "y_velocity": velocities[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -cost,
        }
        ended = np.zeros(sim.num_envs, np.bool_)
        return forward - cost, ended, {**self.positions(sim), **info, **self.limit(velocities[:, 0])}

    def positions(self, sim: Simulations) -> Info:
        """Where the tip is."""
        return plane_positions(sim)


def plane_positions(sim: Simulations) -> Info:
    """x and y of the root, and how far it is from the origin."""
    place = np.ascontiguousarray(sim.qpos[:, :2])
    return {
        "x_position": place[:, 0],
        "y_position": place[:, 1],
        "distance_from_origin": np.sqrt(np.vecdot(place, place)),
    }
