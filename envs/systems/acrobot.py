"""Acrobot swing-up: two links, a motor at the elbow only; gymnasium's Acrobot-v1 with a continuous torque."""

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

SHOULDER_SPEED = 4 * math.pi  # rad/s, clipped by the reference
ELBOW_SPEED = 9 * math.pi


def uniform(observations: Array, generator: np.random.Generator) -> Array:
    """Torque drawn uniformly at every step."""
    return generator.uniform(-1, 1, (len(observations), 1))


def pumping(observations: Array, generator: np.random.Generator, torque: float, noise: float) -> Array:
    """Torque along the elbow's rotation: its power, torque times elbow velocity, is never negative."""
    return _torque(torque * np.sign(observations[:, 5]), noise, generator)


def braking(observations: Array, generator: np.random.Generator, noise: float) -> Array:
    """Torque against the elbow's rotation: takes energy out, the arm stays hanging."""
    return _torque(-observations[:, 5], noise, generator)


def swing_up(observations: Array, generator: np.random.Generator, noise: float, speed: float = np.inf) -> Array:
    """Pumping that leads the shoulder's swing, and brakes the elbow above `speed`, rad/s.

    u = clip(5.8 w2 - 4.4 w1 - 0.2 (angle1 + angle2)): gains found by random search on the nominal system.
    """
    shoulder = np.arctan2(observations[:, 1], observations[:, 0])
    elbow = np.arctan2(observations[:, 3], observations[:, 2])
    w1, w2 = observations[:, 4], observations[:, 5]
    pump = 5.8 * w2 - 4.4 * w1 - 0.2 * (shoulder + elbow)
    return _torque(np.where(np.abs(w2) > speed, -w2, pump), noise, generator)


def _torque(torque: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 1) torque clipped to the bounds, with Gaussian noise after a first clip."""
    return np.clip(np.clip(torque, -1, 1) + noise * generator.standard_normal(len(torque)), -1, 1)[:, None]


class Acrobot(System):
    """Swing the tip of a two-link pendulum above a line, with torque at the elbow alone.

    Angles: shoulder from hanging down, elbow relative to the first link, both in [-pi, pi). One Runge-Kutta step
    of 0.2 s as in the reference (local error O(dt^5)). Reward -1 a step, 0 on the one that ends the episode.
    """

    name = "acrobot"
    gym_id = "surefoot/Acrobot-v0"
    title = "Acrobot swing-up (gymnasium Acrobot-v1, continuous torque)"
    source = (
        "gymnasium classic_control/acrobot.py, 'book' dynamics: Sutton and Barto, Reinforcement Learning, 1998, "
        "section 11.3; Spong, The swing up control problem for the acrobot, 1995. Discrete actions are -1, 0, 1."
    )
    states = ("shoulder", "elbow", "shoulder_velocity", "elbow_velocity")
    observations = ("cos_shoulder", "sin_shoulder", "cos_elbow", "sin_elbow", "shoulder_velocity", "elbow_velocity")
    actions = ("torque",)
    action_low = (-1.0,)
    action_high = (1.0,)
    observation_low = (-1.0, -1.0, -1.0, -1.0, -SHOULDER_SPEED, -ELBOW_SPEED)
    observation_high = (1.0, 1.0, 1.0, 1.0, SHOULDER_SPEED, ELBOW_SPEED)
    parameters = (
        Parameter("gravity", 9.8, 0.0, 100.0, "m/s^2"),
        Parameter("mass_1", 1.0, 0.05, 20.0, "kg"),
        Parameter("mass_2", 1.0, 0.05, 20.0, "kg"),
        Parameter("length_1", 1.0, 0.1, 10.0, "m"),
        Parameter("length_2", 1.0, 0.1, 10.0, "m", "reaches the tip; the dynamics know its centre of mass only"),
        Parameter("centre_1", 0.5, 0.0, 10.0, "m", "joint to centre of mass"),
        Parameter("centre_2", 0.5, 0.0, 10.0, "m", "joint to centre of mass"),
        Parameter("inertia", 1.0, 0.01, 20.0, "kg m^2", "of each link about its centre of mass"),
        Parameter("torque", 1.0, 0.0, 100.0, "N m", "at action 1"),
        Parameter("friction", 0.0, 0.0, 2.0, "N m s", "viscous, in both joints"),
        Parameter("action_noise", 0.0, 0.0, 10.0, "", "standard deviation added to the action"),
        Parameter("goal_height", 1.0, -20.0, 20.0, "m", "of the tip above the shoulder, ends the episode"),
        Parameter("ceiling", 1.8, -20.0, 40.0, "m", "the tip stays below"),
        Parameter("speed_limit", 7.0, 0.1, 100.0, "rad/s", "of the elbow"),
    )
    uniforms = 4
    normals = 1
    time_step = 0.2
    max_steps = 500
    margin_of = "smaller of 1 - |elbow velocity| / speed_limit and (ceiling - tip height) / 1 m, no unit"
    state_units = ("rad", "rad", "rad/s", "rad/s")
    action_units = ("",)
    reward_bounds = (-1.0, 0.0)
    reach_box = (
        Range(-math.pi, math.pi, 24, periodic=True),
        Range(-math.pi, math.pi, 24, periodic=True),
        Range(-8.0, 8.0, 25),
        Range(-10.0, 10.0, 31),
    )
    control_affine = True
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "gravity2": {"gravity": 19.6},
        "friction0.3": {"friction": 0.3},
        "noise1": {"action_noise": 1.0},
        "weak": {"torque": 0.7},
        "heavy": {"mass_2": 1.5},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": uniform,
        "braking": functools.partial(braking, noise=0.5),
        "weak": functools.partial(pumping, torque=0.3, noise=0.5),
        "medium": functools.partial(pumping, torque=0.5, noise=0.5),
        "careful": functools.partial(swing_up, noise=0.1, speed=6.0),
        "expert": functools.partial(swing_up, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"braking": 0.25, "random": 0.25, "weak": 0.2, "medium": 0.2, "expert": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, 4) states, each uniform in [-0.1, 0.1)."""
        return 0.2 * uniforms - 0.1

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, 6) cosine and sine of both angles, and the velocities."""
        shoulder, elbow, *velocities = state.unbind(-1)
        return torch.stack((shoulder.cos(), shoulder.sin(), elbow.cos(), elbow.sin(), *velocities), -1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One Runge-Kutta step of 0.2 s, angles wrapped and speeds clipped afterwards."""
        p = dict(zip((parameter.name for parameter in self.parameters), parameters.unbind(-1)))
        torque = p["torque"] * (action[:, 0] + p["action_noise"] * normals[:, 0])
        h = self.time_step
        k1 = _derivative(state, torque, p)
        k2 = _derivative(state + 0.5 * h * k1, torque, p)
        k3 = _derivative(state + 0.5 * h * k2, torque, p)
        k4 = _derivative(state + h * k3, torque, p)
        shoulder, elbow, velocity_1, velocity_2 = (state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(-1)
        shoulder, elbow = _wrap(shoulder), _wrap(elbow)
        velocity_1 = velocity_1.clamp(-SHOULDER_SPEED, SHOULDER_SPEED)
        velocity_2 = velocity_2.clamp(-ELBOW_SPEED, ELBOW_SPEED)
        height = -p["length_1"] * shoulder.cos() - p["length_2"] * (shoulder + elbow).cos()
        terminated = height > p["goal_height"]
        reward = torch.where(terminated, 0.0, -1.0).to(state.dtype)
        state = torch.stack((shoulder, elbow, velocity_1, velocity_2), -1)
        return Step(state, reward, self.margin(state, parameters), terminated)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Smaller of 1 - |elbow velocity| / speed limit and the ceiling's distance from the tip, m."""
        p = dict(zip((parameter.name for parameter in self.parameters), parameters.unbind(-1)))
        shoulder, elbow, _, elbow_velocity = state.unbind(-1)
        height = -p["length_1"] * shoulder.cos() - p["length_2"] * (shoulder + elbow).cos()
        return torch.minimum(1 - elbow_velocity.abs() / p["speed_limit"], p["ceiling"] - height)

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """Both angles and velocities."""
        cos_1, sin_1, cos_2, sin_2, *velocities = observations.unbind(-1)
        return torch.stack((torch.atan2(sin_1, cos_1), torch.atan2(sin_2, cos_2), *velocities), -1)


def _derivative(state: Tensor, torque: Tensor, p: dict[str, Tensor]) -> Tensor:
    """(N, 4) time derivative; Sutton and Barto, 1998, section 11.3, with friction added to both joints."""
    shoulder, elbow, w1, w2 = state.unbind(-1)
    cos2, sin2 = elbow.cos(), elbow.sin()
    coupling = p["mass_2"] * p["length_1"] * p["centre_2"]
    arm_2 = p["mass_2"] * p["centre_2"] ** 2 + p["inertia"]
    arm_1 = p["mass_1"] * p["centre_1"] ** 2 + p["mass_2"] * p["length_1"] ** 2 + p["inertia"]
    d1 = arm_1 + arm_2 + 2 * coupling * cos2
    d2 = arm_2 + coupling * cos2
    weight_2 = p["mass_2"] * p["centre_2"] * p["gravity"] * (shoulder + elbow).sin()
    weight_1 = (p["mass_1"] * p["centre_1"] + p["mass_2"] * p["length_1"]) * p["gravity"] * shoulder.sin()
    phi1 = -coupling * sin2 * (w2 * w2 + 2 * w1 * w2) + weight_1 + weight_2 + p["friction"] * w1
    drive = torque - p["friction"] * w2 - coupling * sin2 * w1 * w1 - weight_2
    ratio = d2 / d1
    a2 = (drive + ratio * phi1) / (arm_2 - d2 * ratio)
    a1 = -(d2 * a2 + phi1) / d1
    return torch.stack((w1, w2, a1, a2), -1)


def _wrap(angle: Tensor) -> Tensor:
    """To [-pi, pi)."""
    return angle - 2 * math.pi * torch.floor((angle + math.pi) / (2 * math.pi))
