"""Ant and Humanoid as in gymnasium's v5: locomotion in space with contact forces in observation and reward."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from typing import Any, ClassVar

import numpy as np

from surefoot.envs.mujoco.locomotion import (
    INFINITY,
    Locomotion,
    inside,
    plane_positions,
    uniform,
    uniform_and_normal,
)
from surefoot.envs.mujoco.task import Array, Info, Simulations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spatial(Locomotion):
    """What Ant and Humanoid share; the velocity limit is on the speed in the plane."""

    frame_skip: int = 5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    include_cfrc_ext_in_observation: bool = True

    def contact_forces(self) -> bool:
        """Both the reward and the observation have them."""
        return True

    @abc.abstractmethod
    def healthy(self, sim: Simulations) -> Array:
        """(N,) bool: the torso's height in range."""

    @abc.abstractmethod
    def places(self, positions: Any, sim: Simulations) -> Array:
        """(N, 2) of the point whose velocity is rewarded; `positions` is `sim` or `sim.before`."""

    @abc.abstractmethod
    def costs(self, sim: Simulations, actions: Array) -> tuple[Array, Array]:
        """(N,) control cost and (N,) contact cost."""

    def step(self, sim: Simulations, actions: Array) -> tuple[Array, Array, Info]:
        """Terminates when unhealthy."""
        velocities = (self.places(sim, sim) - self.places(sim.before, sim)) / sim.dt
        forward = self.forward_reward_weight * velocities[:, 0]
        healthy = self.healthy(sim)
        survive = healthy * self.healthy_reward
        control, contact = self.costs(sim, actions)
        info = {
            "x_velocity": velocities[:, 0],
            "y_velocity": velocities[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
            "reward_survive": survive,
        }
        ended = ~healthy & self.terminate_when_unhealthy
        speed = np.sqrt((velocities * velocities).sum(axis=1))
        rewards = (forward + survive) - (control + contact)
        return rewards, ended, {**self.positions(sim), **info, **self.limit(speed)}

    def positions(self, sim: Simulations) -> Info:
        """Where the torso is."""
        return plane_positions(sim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ant(Spatial):
    """gymnasium's Ant-v5."""

    xml_file: str | pathlib.Path = "ant.xml"
    ctrl_cost_weight: float = 0.5
    main_body: int | str = 1
    contact_force_range: tuple[float, float] = (-1.0, 1.0)

    fields: ClassVar[tuple[str, ...]] = ("xpos",)
    remembered: ClassVar[tuple[str, ...]] = ("xpos",)

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions, normal velocities."""
        return uniform_and_normal(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions (without x and y), velocities, clipped contact forces of all bodies but the world."""
        skipped = 2 if self.exclude_current_positions_from_observation else 0
        parts = [sim.qpos[:, skipped:], sim.qvel]
        if self.include_cfrc_ext_in_observation:
            parts.append(self.clipped_forces(sim)[:, 1:].reshape(sim.num_envs, -1))
        return np.concatenate(parts, axis=1)

    def clipped_forces(self, sim: Simulations) -> Array:
        """(N, bodies, 6)."""
        return np.clip(sim.contact_forces, *self.contact_force_range)

    def healthy(self, sim: Simulations) -> Array:
        """(N,) bool: finite, and the torso's height in range, its ends included."""
        low, high = self.healthy_z_range
        finite = np.isfinite(sim.qpos).all(axis=1) & np.isfinite(sim.qvel).all(axis=1)
        return finite & (low <= sim.qpos[:, 2]) & (sim.qpos[:, 2] <= high)

    def places(self, positions: Any, sim: Simulations) -> Array:
        """(N, 2) of the main body, one substep behind as in gymnasium."""
        return np.asarray(positions.xpos[:, sim.body(self.main_body), :2])

    def costs(self, sim: Simulations, actions: Array) -> tuple[Array, Array]:
        """Of the actions, and of the clipped contact forces."""
        squares = np.square(self.clipped_forces(sim)).reshape(sim.num_envs, -1)
        return self.control_cost(actions), self.contact_cost_weight * squares.sum(axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Humanoid(Spatial):
    """gymnasium's Humanoid-v5."""

    xml_file: str | pathlib.Path = "humanoid.xml"
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[float, float] = (-INFINITY, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: tuple[float, float] = (1.0, 2.0)
    reset_noise_scale: float = 1e-2
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True

    fields: ClassVar[tuple[str, ...]] = ("xipos", "cinert", "cvel", "qfrc_actuator", "ten_length", "ten_velocity")
    remembered: ClassVar[tuple[str, ...]] = ("xipos",)

    def reset(self, model: Any, generator: np.random.Generator) -> tuple[Array, Array]:
        """Uniform positions and velocities."""
        return uniform(model, generator, self.reset_noise_scale)

    def observe(self, sim: Simulations) -> Array:
        """Positions (without x and y), velocities, inertias, body velocities, actuator and contact forces."""
        skipped = 2 if self.exclude_current_positions_from_observation else 0
        parts = [sim.qpos[:, skipped:], sim.qvel]
        if self.include_cinert_in_observation:
            parts.append(sim.cinert[:, 1:].reshape(sim.num_envs, -1))
        if self.include_cvel_in_observation:
            parts.append(sim.cvel[:, 1:].reshape(sim.num_envs, -1))
        if self.include_qfrc_actuator_in_observation:
            parts.append(sim.qfrc_actuator[:, 6:])
        if self.include_cfrc_ext_in_observation:
            parts.append(sim.contact_forces[:, 1:].reshape(sim.num_envs, -1))
        return np.concatenate(parts, axis=1)

    def healthy(self, sim: Simulations) -> Array:
        """(N,) bool: the torso's height in range."""
        return inside(sim.qpos[:, 2], self.healthy_z_range)

    def places(self, positions: Any, sim: Simulations) -> Array:
        """(N, 2) centre of mass; one simulation at a time, which keeps gymnasium's order of summation."""
        masses = sim.body_masses()
        pairs = zip(masses, positions.xipos, strict=True)
        moments = np.array([np.einsum("b,bj->j", mass, centres) for mass, centres in pairs])
        return (moments / np.array([mass.sum() for mass in masses])[:, None])[:, :2]

    def costs(self, sim: Simulations, actions: Array) -> tuple[Array, Array]:
        """Of the controls (in double precision) and of the contact forces."""
        control = self.ctrl_cost_weight * np.square(sim.ctrl).sum(axis=1)
        squares = np.square(sim.contact_forces).reshape(sim.num_envs, -1)
        return control, np.clip(self.contact_cost_weight * squares.sum(axis=1), *self.contact_cost_range)

    def positions(self, sim: Simulations) -> Info:
        """Where the torso is, and the tendons' lengths and velocities."""
        tendons = {"tendon_length": sim.ten_length.copy(), "tendon_velocity": sim.ten_velocity.copy()}
        return {**plane_positions(sim), **tendons}
