"""Reacher: a planar two-link arm brings its tip to a target, past an obstacle disc and inside its joint limit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Parameter, Step, System

Array = np.ndarray[Any, Any]

LINK_1 = 0.1  # m
LINK_2 = 0.11
SUBSTEPS = 2
NEAREST, FARTHEST = 0.06, 0.2  # m, ring of the targets
CLEARANCE = 0.6  # rad, targets keep this angle from the obstacle's direction

Params = dict[str, Tensor]


def uniform(observations: Array, generator: np.random.Generator) -> Array:
    """Both torques drawn uniformly at every step."""
    return generator.uniform(-1, 1, (len(observations), 2))


def idle(observations: Array, generator: np.random.Generator, noise: float) -> Array:
    """Damped by a brake in both joints, under noise: stays where it is."""
    return _torques(-0.05 * observations[:, 6:8], noise, generator)


def transposed(observations: Array, generator: np.random.Generator, stiffness: float, noise: float) -> Array:
    """Jacobian transpose: a spring between tip and target, little damping."""
    return _torques(stiffness * _pull(observations) - 0.01 * observations[:, 6:8], noise, generator)


def inverse(observations: Array, generator: np.random.Generator, noise: float) -> Array:
    """PD to the joint angles that reach the target, elbow bent as it is, shoulder turned away from the obstacle.

    Elbow angle by the cosine rule; shoulder and elbow go there along the way that doesn't cross +y, where the
    obstacle stands.
    """
    shoulder = np.arctan2(observations[:, 2], observations[:, 0])
    elbow = np.arctan2(observations[:, 3], observations[:, 1])
    x, y = observations[:, 4], observations[:, 5]
    cosine = (x * x + y * y - LINK_1**2 - LINK_2**2) / (2 * LINK_1 * LINK_2)
    bend = np.arccos(np.clip(cosine, -1, 1))
    goals = []
    for goal_elbow in (bend, -bend):
        goal = np.arctan2(y, x) - np.arctan2(LINK_2 * np.sin(goal_elbow), LINK_1 + LINK_2 * np.cos(goal_elbow))
        goals.append((_from_top(goal) - _from_top(shoulder), goal_elbow - elbow))
    turns = np.array(goals)  # (2 solutions, 2 joints, N)
    nearer = np.abs(turns).max(1).argmin(0)
    turn = turns[nearer, :, np.arange(len(nearer))]
    return _torques(4.0 * turn - 0.35 * observations[:, 6:8], noise, generator)


def _from_top(angle: Array) -> Array:
    """Angle counted from +y, in [0, 2 pi): its jump lies where the obstacle stands."""
    return np.mod(angle - math.pi / 2, 2 * math.pi)


def _pull(observations: Array) -> Array:
    """(N, 2) Jacobian transpose times the error of the tip, m^2, in units of 0.01 m^2."""
    c1, c2, s1, s2 = observations[:, :4].T
    error_x, error_y = observations[:, 8], observations[:, 9]
    fore_x, fore_y = LINK_2 * (c1 * c2 - s1 * s2), LINK_2 * (s1 * c2 + c1 * s2)
    elbow = fore_y * error_x - fore_x * error_y
    return 100 * np.stack((elbow + LINK_1 * (s1 * error_x - c1 * error_y), elbow), -1)


def _torques(action: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 2) clipped actions with Gaussian noise after a first clip."""
    return np.clip(np.clip(action, -1, 1) + noise * generator.standard_normal(action.shape), -1, 1)


class Reacher(System):
    """Hold the tip of a two-link arm at a target drawn per episode.

    M(q) q'' + C(q, q') q' + friction q' + G(q) = torque u, links as uniform rods with a payload at the tip and the
    motors' inertia at both joints. Two Runge-Kutta steps of 0.01 s per action (local error O(dt^5)). The elbow's
    limit and the obstacle are counted, not felt. Reward -|tip - target| / 0.1 m - 0.05 |u|^2 of the new state.
    """

    name = "reacher"
    gym_id = "surefoot/TwoLinkReacher-v0"
    title = "Two-link reacher with obstacle disc and joint limit"
    source = (
        "Spong, Hutchinson and Vidyasagar, Robot Modeling and Control, 2006, chapter 7 (planar elbow manipulator); "
        "link lengths and masses, time step, target radius and elbow limit of gymnasium's Reacher-v5, whose motors "
        "(gear 200, armature 1) hide the coupling of the links: motors here are of a small servo"
    )
    states = ("shoulder", "elbow", "shoulder_velocity", "elbow_velocity", "target_x", "target_y")
    observations = (
        "cos_shoulder",
        "cos_elbow",
        "sin_shoulder",
        "sin_elbow",
        "target_x",
        "target_y",
        "shoulder_velocity",
        "elbow_velocity",
        "error_x",
        "error_y",
    )
    actions = ("shoulder", "elbow")
    action_low = (-1.0, -1.0)
    action_high = (1.0, 1.0)
    observation_low = (-1.0,) * 4 + (-np.inf,) * 6
    observation_high = (1.0,) * 4 + (np.inf,) * 6
    parameters = (
        Parameter("mass_1", 0.036, 0.001, 10.0, "kg"),
        Parameter("mass_2", 0.036, 0.001, 10.0, "kg"),
        Parameter("length_1", LINK_1, 0.02, 2.0, "m"),
        Parameter("length_2", LINK_2, 0.02, 2.0, "m"),
        Parameter("payload", 0.004, 0.0, 10.0, "kg", "point mass at the tip"),
        Parameter("armature", 1e-4, 1e-6, 10.0, "kg m^2", "motor inertia seen at each joint"),
        Parameter("torque", 0.05, 0.0, 100.0, "N m", "at action 1"),
        Parameter("friction", 1e-3, 0.0, 10.0, "N m s", "viscous, in both joints"),
        Parameter("gravity", 0.0, 0.0, 100.0, "m/s^2", "along -y; 0 for an arm that lies flat"),
        Parameter("action_noise", 0.0, 0.0, 10.0, "", "standard deviation added to the action"),
        Parameter("obstacle_distance", 0.15, 0.0, 10.0, "m", "of its centre from the shoulder"),
        Parameter("obstacle_angle", math.pi / 2, -10.0, 10.0, "rad"),
        Parameter("obstacle_radius", 0.03, 0.0, 1.0, "m", "half the links' width included"),
        Parameter("elbow_limit", 3.0, 0.0, 10.0, "rad", "either way"),
    )
    uniforms = 6
    normals = 2
    time_step = 0.02
    max_steps = 100
    margin_of = "smaller of the links' distance to the obstacle and the elbow's distance to its limit as arc, m"
    state_units = ("rad", "rad", "rad/s", "rad/s", "m", "m")
    action_units = ("", "")
    reward_bounds = (-np.inf, 0.0)
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "tilted": {"gravity": 3.0},
        "friction0.3": {"friction": 3e-4},
        "noise1": {"action_noise": 1.0},
        "payload": {"payload": 0.02},
        "weak": {"torque": 0.025},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": uniform,
        "idle": functools.partial(idle, noise=0.3),
        "springy": functools.partial(transposed, stiffness=0.2, noise=0.4),
        "medium": functools.partial(transposed, stiffness=0.5, noise=0.4),
        "expert": functools.partial(inverse, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"random": 0.25, "idle": 0.2, "springy": 0.25, "medium": 0.2, "expert": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, 6) states: arm near straight along x and at rest, target in a ring away from the obstacle's angle."""
        arm = 0.2 * uniforms[:, :2] - 0.1
        velocity = 0.01 * uniforms[:, 2:4] - 0.005
        angle = parameters[:, 11] + CLEARANCE + (2 * math.pi - 2 * CLEARANCE) * uniforms[:, 4]
        radius = (NEAREST**2 + (FARTHEST**2 - NEAREST**2) * uniforms[:, 5]).sqrt()
        return torch.cat((arm, velocity, (radius * angle.cos())[:, None], (radius * angle.sin())[:, None]), -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, 10) as Reacher-v5: cosines, sines, target, velocities, tip minus target."""
        shoulder, elbow, w1, w2, target_x, target_y = state.unbind(-1)
        p = self._named(parameters)
        _, (tip_x, tip_y) = _points(shoulder, elbow, p)
        angles = (shoulder.cos(), elbow.cos(), shoulder.sin(), elbow.sin())
        return torch.stack((*angles, target_x, target_y, w1, w2, tip_x - target_x, tip_y - target_y), -1)

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """Both angles, velocities, target."""
        cos_1, cos_2, sin_1, sin_2, target_x, target_y, w1, w2, *_ = observations.unbind(-1)
        return torch.stack((torch.atan2(sin_1, cos_1), torch.atan2(sin_2, cos_2), w1, w2, target_x, target_y), -1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """Two Runge-Kutta steps of 0.01 s."""
        p = self._named(parameters)
        torque = p["torque"][:, None] * (action + p["action_noise"][:, None] * normals)
        arm, target = state[:, :4], state[:, 4:]
        h = self.time_step / SUBSTEPS
        for _ in range(SUBSTEPS):
            k1 = _derivative(arm, torque, p)
            k2 = _derivative(arm + 0.5 * h * k1, torque, p)
            k3 = _derivative(arm + 0.5 * h * k2, torque, p)
            k4 = _derivative(arm + h * k3, torque, p)
            arm = arm + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        shoulder, elbow = arm[:, 0], arm[:, 1]
        (elbow_x, elbow_y), (tip_x, tip_y) = _points(shoulder, elbow, p)
        distance = ((tip_x - target[:, 0]) ** 2 + (tip_y - target[:, 1]) ** 2).sqrt()
        reward = -10 * distance - 0.05 * (action**2).sum(-1)
        x = p["obstacle_distance"] * p["obstacle_angle"].cos()
        y = p["obstacle_distance"] * p["obstacle_angle"].sin()
        upper = _to_segment(x, y, elbow_x, elbow_y)
        fore = _to_segment(x - elbow_x, y - elbow_y, tip_x - elbow_x, tip_y - elbow_y)
        stop = p["length_2"] * (p["elbow_limit"] - elbow.abs())
        margin = torch.minimum(torch.minimum(upper, fore) - p["obstacle_radius"], stop)
        return Step(torch.cat((arm, target), -1), reward, margin, torch.zeros_like(margin, dtype=torch.bool))

    def _named(self, parameters: Tensor) -> Params:
        return dict(zip((parameter.name for parameter in self.parameters), parameters.unbind(-1)))


def _points(shoulder: Tensor, elbow: Tensor, p: Params) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Coordinates of the elbow and of the tip, m."""
    elbow_x, elbow_y = p["length_1"] * shoulder.cos(), p["length_1"] * shoulder.sin()
    both = shoulder + elbow
    return (elbow_x, elbow_y), (elbow_x + p["length_2"] * both.cos(), elbow_y + p["length_2"] * both.sin())


def _to_segment(x: Tensor, y: Tensor, end_x: Tensor, end_y: Tensor) -> Tensor:
    """(N,) distance of the point (x, y) to the segment from the origin to its end."""
    along = ((x * end_x + y * end_y) / (end_x * end_x + end_y * end_y)).clamp(0, 1)
    return ((x - along * end_x) ** 2 + (y - along * end_y) ** 2).sqrt()


def _derivative(arm: Tensor, torque: Tensor, p: Params) -> Tensor:
    """(N, 4) time derivative of angles and velocities; Spong et al., 2006, chapter 7.

    With link 2 and payload as one body: mass, first moment and inertia about the elbow.
    """
    shoulder, elbow, w1, w2 = arm.unbind(-1)
    m1, m2, l1, l2, load = p["mass_1"], p["mass_2"], p["length_1"], p["length_2"], p["payload"]
    inertia_2 = (m2 / 3 + load) * l2 * l2  # about the elbow: rod m l^2 / 3, payload m l^2
    moment_2 = (0.5 * m2 + load) * l2
    inertia_1 = (m1 / 3 + m2 + load) * l1 * l1
    coupling = l1 * moment_2 * elbow.cos()
    m11 = inertia_1 + inertia_2 + 2 * coupling + p["armature"]
    m12 = inertia_2 + coupling
    m22 = inertia_2 + p["armature"]
    swirl = l1 * moment_2 * elbow.sin()
    weight_2 = p["gravity"] * moment_2 * (shoulder + elbow).cos()
    weight_1 = p["gravity"] * (0.5 * m1 + m2 + load) * l1 * shoulder.cos() + weight_2
    f1 = torque[:, 0] - p["friction"] * w1 + swirl * (2 * w1 * w2 + w2 * w2) - weight_1
    f2 = torque[:, 1] - p["friction"] * w2 - swirl * w1 * w1 - weight_2
    determinant = m11 * m22 - m12 * m12
    return torch.stack((w1, w2, (m22 * f1 - m12 * f2) / determinant, (m11 * f2 - m12 * f1) / determinant), -1)
