"""Planar quadrotor: fly to a point and hover there, inside a box and below a tilt limit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Goal, Parameter, Step, System

Array = np.ndarray[Any, Any]

MASS = 0.027  # kg
GRAVITY = 9.8  # m/s^2
ARM = 0.0397  # m
INERTIA = 1.4e-5  # kg m^2
MAX_THRUST = 2.25 * MASS * GRAVITY / 2  # N, of each of the two propeller pairs
CRASH_X = 2.0  # m
CRASH_CEILING = 3.0  # m
CRASH_TILT = math.radians(85)
SUBSTEPS = 2


def thrusts(force: Array, torque: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 2) thrusts of left and right pair, N, that give a force, N, and a torque, N m; `noise` in full ranges / 2."""
    difference = torque * math.sqrt(2) / ARM
    wanted = np.stack((force - difference, force + difference), axis=-1) / 2
    wanted += noise * MAX_THRUST / 2 * generator.standard_normal(wanted.shape)
    return np.clip(wanted, 0.0, MAX_THRUST)


def random_thrusts(observations: Array, generator: np.random.Generator) -> Array:
    """Both thrusts drawn uniformly at every step."""
    return generator.uniform(0.0, MAX_THRUST, (len(observations), 2))


def fly_to(
    observations: Array,
    generator: np.random.Generator,
    stiffness: float,
    damping: float,
    noise: float,
    offset_x: float = 0.0,
    offset_z: float = 0.0,
    max_tilt: float = 0.5,
) -> Array:
    """Cascade of two PD controllers: position error -> tilt and thrust, tilt error -> torque.

    `stiffness`, 1/s^2, and `damping`, 1/s, of the position loop; the tilt loop has 200 and 24. `offset` moves the
    point flown to away from the target, m. Mahony, Kumar & Corke, 'Multirotor aerial vehicles', 2012, in the plane.
    """
    x, vx, z, vz, tilt, rate = observations.T
    pull_x = -stiffness * (x - offset_x) - damping * vx
    pull_z = -stiffness * (z - offset_z) - damping * vz
    wanted_tilt = np.clip(pull_x / GRAVITY, -max_tilt, max_tilt)
    force = MASS * (GRAVITY + pull_z) / np.maximum(np.cos(tilt), 0.5)
    torque = INERTIA * (200.0 * (wanted_tilt - tilt) - 24.0 * rate)
    return thrusts(np.clip(force, 0.2 * MASS * GRAVITY, 1.9 * MASS * GRAVITY), torque, noise, generator)


class Quadrotor2D(System):
    """Hover at a target from anywhere in the box.

    x'' = F sin(tilt) / m + (wind - drag x') / m, z'' = F cos(tilt) / m - g - drag z' / m,
    tilt'' = gain (right - left) arm / (sqrt(2) I), F = gain (left + right). Classical Runge-Kutta of fourth order,
    two steps of 1/120 s a control step: within 2e-6 of the exact solution in velocity, and nearer in position.
    Reward, in (0, 1]: 1 / (1 + 4 distance^2 + 0.01 rate^2), m and rad/s. The episode ends on the ground, at
    |x| > 2 m, above 3 m, or beyond 85 degrees of tilt.
    """

    name = "quadrotor_2d"
    gym_id = "surefoot/Quadrotor2D-v0"
    title = "Planar quadrotor: fly to a point and hover"
    source = (
        "Yuan et al., safe-control-gym, 2022: 2-D quadrotor equations, 60 Hz control, 5 s, target (0, 1) m, crash "
        "limits; Crazyflie 2.x constants of its assets/cf2x.urdf (mass, arm, inertia, thrust to weight 2.25)"
    )
    states = ("x", "vx", "z", "vz", "tilt", "tilt_rate")
    observations = ("x_error", "vx", "z_error", "vz", "tilt", "tilt_rate")
    actions = ("left_thrust", "right_thrust")
    action_low = (0.0, 0.0)
    action_high = (MAX_THRUST, MAX_THRUST)
    observation_low = (-math.inf,) * 6
    observation_high = (math.inf,) * 6
    parameters = (
        Parameter("gravity", GRAVITY, 0.0, 30.0, "m/s^2"),
        Parameter("mass", MASS, 0.005, 0.5, "kg"),
        Parameter("inertia", INERTIA, 5e-6, 1e-3, "kg m^2"),
        Parameter("arm", ARM, 0.01, 0.2, "m"),
        Parameter("thrust_gain", 1.0, 0.0, 3.0, "", "thrust got per thrust asked for"),
        Parameter("drag", 0.0, 0.0, 0.2, "N s/m", "linear air drag"),
        Parameter("wind_x", 0.0, -0.2, 0.2, "N", "constant side force"),
        Parameter("action_noise", 0.0, 0.0, 1.0, "N", "standard deviation added to each thrust, then clipped"),
        Parameter("target_x", 0.0, -2.0, 2.0, "m"),
        Parameter("target_z", 1.0, 0.0, 3.0, "m"),
        Parameter("x_limit", 1.5, 0.1, 2.0, "m", "safe for |x| up to it"),
        Parameter("floor", 0.2, 0.0, 3.0, "m", "safe from it up"),
        Parameter("ceiling", 2.0, 0.1, 3.0, "m", "safe up to it"),
        Parameter("tilt_limit", 0.5, 0.05, CRASH_TILT, "rad", "safe for |tilt| up to it"),
    )
    uniforms = 6
    normals = 2
    time_step = 1 / 60
    max_steps = 300
    margin_of = "distance to side, floor or ceiling of the safe box, m, or tilt left to its limit, rad, if that is less"
    state_units = ("m", "m/s", "m", "m/s", "rad", "rad/s")
    action_units = ("N", "N")
    reward_bounds = (0.0, 1.0)
    goal = Goal({"x": "target_x", "z": "target_z"})
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "gravity2": {"gravity": 2 * GRAVITY},
        "mass1.3": {"mass": 1.3 * MASS},
        "thrust0.8": {"thrust_gain": 0.8},
        "wind": {"wind_x": 0.05},
        "drag": {"drag": 0.05},
        "noise0.1": {"action_noise": 0.1 * MAX_THRUST / 2},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_thrusts,
        "swaying": functools.partial(fly_to, stiffness=8.0, damping=0.4, noise=0.3, offset_x=-0.3),
        "astray": functools.partial(fly_to, stiffness=3.0, damping=2.5, noise=0.3, offset_x=0.9, offset_z=0.5),
        "medium": functools.partial(fly_to, stiffness=1.0, damping=1.0, noise=0.4, offset_x=0.2, offset_z=-0.2),
        "expert": functools.partial(fly_to, stiffness=9.0, damping=5.0, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"random": 0.1, "swaying": 0.25, "astray": 0.25, "medium": 0.3, "expert": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """x in [-1.2, 1.2], z in [0.5, 1.7] m, velocities in [-0.5, 0.5] m/s, tilt and rate in [-0.2, 0.2]."""
        u = (2 * uniforms - 1).unbind(-1)
        return torch.stack((1.2 * u[0], 0.5 * u[1], 1.1 + 0.6 * u[2], 0.5 * u[3], 0.2 * u[4], 0.2 * u[5]), -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """The state with the position relative to the target."""
        x, vx, z, vz, tilt, rate = state.unbind(-1)
        return torch.stack((x - parameters[..., 8], vx, z - parameters[..., 9], vz, tilt, rate), -1)

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """The position in the world's frame."""
        x, vx, z, vz, tilt, rate = observations.unbind(-1)
        return torch.stack((x + parameters[..., 8], vx, z + parameters[..., 9], vz, tilt, rate), -1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """1/60 s under constant thrusts."""
        p = parameters.unbind(-1)
        left = p[4] * (action[..., 0] + p[7] * normals[..., 0]).clamp(0.0, MAX_THRUST)
        right = p[4] * (action[..., 1] + p[7] * normals[..., 1]).clamp(0.0, MAX_THRUST)
        lift = (left + right) / p[1]
        spin = (right - left) * p[3] * math.sqrt(0.5) / p[2]

        def derivative(s: Tensor) -> Tensor:
            _, vx, _, vz, tilt, rate = s.unbind(-1)
            ax = lift * tilt.sin() + (p[6] - p[5] * vx) / p[1]
            az = lift * tilt.cos() - p[0] - p[5] * vz / p[1]
            return torch.stack((vx, ax, vz, az, rate, spin), -1)

        h = self.time_step / SUBSTEPS
        for _ in range(SUBSTEPS):
            k1 = derivative(state)
            k2 = derivative(state + 0.5 * h * k1)
            k3 = derivative(state + 0.5 * h * k2)
            k4 = derivative(state + h * k3)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        x, _, z, _, tilt, rate = state.unbind(-1)
        distance2 = (x - p[8]) ** 2 + (z - p[9]) ** 2
        sides = torch.minimum(p[10] - x.abs(), p[13] - tilt.abs())
        return Step(
            state=state,
            reward=1 / (1 + 4 * distance2 + 0.01 * rate * rate),
            margin=torch.minimum(sides, torch.minimum(z - p[11], p[12] - z)),
            terminated=(z < 0) | (z > CRASH_CEILING) | (x.abs() > CRASH_X) | (tilt.abs() > CRASH_TILT),
        )
