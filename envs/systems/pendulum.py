r"""Pendulum swing-up: gymnasium's Pendulum-v1, with damping, wind and noise that are zero by default.

A rod of mass m and length l turns about its end; th is its angle from upright, w = th':

    (m l^2 / 3) w' = (m g l / 2) sin th + (l / 2) F cos th + k u + s z - d w

with wind force F at its centre, torque u, noise z ~ N(0, 1); the reward is -(th^2 + 0.1 w^2 + 0.001 u^2), th in
[-pi, pi). Velocity first, then angle by the new velocity (semi-implicit Euler), |w| <= 8 rad/s.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Parameter, Range, Step, System

Array = np.ndarray[Any, Any]

MAX_TORQUE = 2.0  # N m
UPRIGHT_ENERGY = 15.0  # of the pendulum standing still, in the units of `energy`
FORBIDDEN = (math.radians(20), math.radians(30))
"""Angles between these violate the constraint: a swing-up must come from the other side."""


def wrap(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi)."""
    return angle - 2 * math.pi * torch.floor((angle + math.pi) / (2 * math.pi))


def energy(observations: Array) -> Array:
    """(N,) energy per unit of inertia, w^2 / 2 + (3 g / 2 l) cos(angle), g = 10, l = 1."""
    return np.asarray(0.5 * observations[:, 2] ** 2 + UPRIGHT_ENERGY * observations[:, 0])


def uniform(observations: Array, generator: np.random.Generator) -> Array:
    """Torque drawn uniformly at every step."""
    return generator.uniform(-MAX_TORQUE, MAX_TORQUE, (len(observations), 1))


def braking(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Swing-up in the wrong phase: torque against the rotation, so the pendulum stays hanging."""
    return _torque(-gain * observations[:, 2], noise, generator)


def pumping(observations: Array, generator: np.random.Generator, torque: float, noise: float) -> Array:
    """Constant torque along the rotation: gains energy without end and never catches the pendulum."""
    return _torque(torque * np.sign(observations[:, 2]), noise, generator)


def swing_up(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Energy shaping, then a PD controller near the top.

    u = gain (E_upright - E) sign(w); within 0.6 rad of the top u = -(10 angle + 2 w).
    Astrom and Furuta, "Swinging up a pendulum by energy control", 2000, equation (8).
    """
    velocity = observations[:, 2]
    angle = np.arctan2(observations[:, 1], observations[:, 0])
    shaping = gain * (UPRIGHT_ENERGY - energy(observations)) * np.where(velocity < 0, -1.0, 1.0)
    balance = -(10.0 * angle + 2.0 * velocity)
    return _torque(np.where(np.abs(angle) < 0.6, balance, shaping), noise, generator)


def _torque(torque: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 1) clipped torque with Gaussian noise of standard deviation `noise`, N m."""
    return np.clip(torque + noise * generator.standard_normal(len(torque)), -MAX_TORQUE, MAX_TORQUE)[:, None]


class Pendulum(System):
    """Swing a pendulum up by a torque too weak to lift it."""

    name = "pendulum"
    gym_id = "surefoot/Pendulum-v0"
    title = "Pendulum swing-up (gymnasium's Pendulum-v1)"
    source = "gymnasium/envs/classic_control/pendulum.py"
    states = ("angle", "velocity")
    observations = ("cos(angle)", "sin(angle)", "velocity")
    actions = ("torque",)
    action_low, action_high = (-MAX_TORQUE,), (MAX_TORQUE,)
    observation_low, observation_high = (-1.0, -1.0, -8.0), (1.0, 1.0, 8.0)
    parameters = (
        Parameter("gravity", 10.0, 0.0, 100.0, "m/s^2"),
        Parameter("mass", 1.0, 0.01, 100.0, "kg"),
        Parameter("length", 1.0, 0.01, 100.0, "m"),
        Parameter("damping", 0.0, 0.0, 100.0, "N m s", "torque against the rotation"),
        Parameter("gain", 1.0, -10.0, 10.0, "", "torque applied per torque asked for"),
        Parameter("wind", 0.0, -100.0, 100.0, "N", "horizontal force at the centre of the rod"),
        Parameter("action_noise", 0.0, 0.0, 100.0, "N m", "standard deviation of a torque drawn at every step"),
    )
    uniforms, normals = 2, 1
    time_step, max_steps = 0.05, 200
    margin_of = "angle outside the forbidden sector of 20 to 30 degrees, rad"
    state_units, action_units = ("rad", "rad/s"), ("N m",)
    reward_bounds = (-math.inf, 0.0)
    reach_box = (Range(-math.pi, math.pi, 121, periodic=True), Range(-8.0, 8.0, 161))
    control_affine = True
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "gravity2": {"gravity": 20.0},
        "friction0.3": {"damping": 0.3},
        "noise1": {"action_noise": 1.0},
        "wind": {"wind": 1.0},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": uniform,
        "braking": functools.partial(braking, gain=0.5, noise=0.8),
        "pumping": functools.partial(pumping, torque=1.0, noise=0.8),
        "medium": functools.partial(swing_up, gain=0.1, noise=1.5),
        "decent": functools.partial(swing_up, gain=0.5, noise=0.5),
        "expert": functools.partial(swing_up, gain=1.0, noise=0.1),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"braking": 0.35, "random": 0.1, "pumping": 0.15, "medium": 0.3, "decent": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """Any angle, |velocity| <= 1 rad/s."""
        scale = torch.tensor([math.pi, 1.0], dtype=uniforms.dtype, device=uniforms.device)
        return scale * (2 * uniforms - 1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Cosine and sine of the angle, velocity in rad/s."""
        angle, velocity = state.unbind(1)
        return torch.stack([torch.cos(angle), torch.sin(angle), velocity], 1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """The equations of this file."""
        angle, velocity = state.unbind(1)
        torque = action[:, 0]
        gravity, mass, length, damping, gain, wind, noise = parameters.unbind(1)
        reward = -(wrap(angle) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2)
        applied = gain * torque + noise * normals[:, 0] - damping * velocity
        acceleration = (
            1.5 * gravity / length * torch.sin(angle)
            + 1.5 * wind / (mass * length) * torch.cos(angle)
            + 3 / (mass * length**2) * applied
        )
        velocity = (velocity + acceleration * self.time_step).clamp(-8.0, 8.0)
        angle = angle + velocity * self.time_step
        state = torch.stack([angle, velocity], 1)
        return Step(state, reward, self.margin(state, parameters), torch.zeros_like(reward, dtype=torch.bool))

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Angle outside the forbidden sector, rad."""
        middle, half = sum(FORBIDDEN) / 2, (FORBIDDEN[1] - FORBIDDEN[0]) / 2
        return wrap(state[:, 0] - middle).abs() - half

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """Angle and velocity."""
        cosine, sine, velocity = observations.unbind(1)
        return torch.stack([torch.atan2(sine, cosine), velocity], 1)
