"""Kinematic bicycle on a road of three lanes: overtake slower cars without touching them or leaving the road."""

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

MAX_STEER = math.pi / 4  # rad
MAX_ACCELERATION = 5.0  # m/s^2
LANE = 4.0  # m
TOP_SPEED = 20.0  # m/s
GRAVITY = 9.8  # m/s^2
SPACING = 40.0  # m between the cars ahead
BEHIND = 15.0  # m behind the car where one that was overtaken comes back ahead of the others
LENGTH, WIDTH = 5.0, 2.0  # m, of every car


def controls(steer: Array, acceleration: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 2) steering angle, rad, and acceleration, m/s^2, clipped; `noise` is a fraction of the bounds."""
    wanted = np.stack((steer, acceleration), axis=-1)
    bounds = np.array([MAX_STEER, MAX_ACCELERATION])
    # steering noise of the same share of its bound would leave the road at once at these speeds
    wanted += noise * bounds * np.array([0.1, 1.0]) * generator.standard_normal(wanted.shape)
    return np.clip(wanted, -bounds, bounds)


def random_controls(observations: Array, generator: np.random.Generator) -> Array:
    """Both controls drawn uniformly at every step."""
    bounds = np.array([MAX_STEER, MAX_ACCELERATION])
    return generator.uniform(-bounds, bounds, (len(observations), 2))


def keep(observations: Array, lateral: Array, speed: Array, noise: float, generator: np.random.Generator) -> Array:
    """Steer to the lateral position `lateral`, m, and towards `speed`, m/s."""
    y, sine, _, v = observations[:, 0:4].T
    wanted = np.clip(0.25 * (lateral - y) / np.maximum(0.5 * v, 1.0) * 2, -0.2, 0.2)
    steer = 6.0 * (wanted - sine) / np.maximum(v, 2.0)
    return controls(steer, 2.0 * (speed - v), noise, generator)


def free_ahead(observations: Array, lateral: Array) -> Array:
    """Metres to the nearest car in the way of the lateral position `lateral`; beside or ahead, 100 where none is."""
    cars = observations[:, 4:].reshape(-1, 3, 2)
    blocking = (np.abs(cars[..., 1] + observations[:, 0:1] - lateral[:, None]) < 3.2) & (cars[..., 0] > -7.0)
    return np.where(blocking, cars[..., 0], 100.0).min(axis=1)


def own_lane(observations: Array) -> Array:
    """(N,) middle of the lane that the car is in, m."""
    return np.clip(np.round(observations[:, 0] / LANE), -1, 1) * LANE


def stay(observations: Array, generator: np.random.Generator, speed: float, look: float, noise: float) -> Array:
    """Keeps its lane at `speed`, and behind a slower car that is less than `look` m ahead."""
    lane = own_lane(observations)
    distance = free_ahead(observations, lane)
    behind = np.clip(0.5 * (distance - 10.0), 0.0, speed)
    return keep(observations, lane, np.where(distance < look, behind, speed), noise, generator)


def weave(observations: Array, generator: np.random.Generator, speed: float, noise: float) -> Array:
    """Swings from edge to edge of the road with the distance driven to the first car, slowly."""
    lateral = 5.0 * np.sin(0.15 * observations[:, 4])
    return keep(observations, lateral, np.full(len(observations), speed), noise, generator)


def overtake(observations: Array, generator: np.random.Generator, speed: float, look: float, noise: float) -> Array:
    """Takes the lane with the most room within `look` m, its own or the nearest if equal; brakes where all are full."""
    lane = own_lane(observations)
    best, room = lane, np.minimum(free_ahead(observations, lane), look)
    for side in (-LANE, LANE):
        other = np.clip(lane + side, -LANE, LANE)
        other_room = np.minimum(free_ahead(observations, other), look)
        better = other_room > room + 2.0
        best, room = np.where(better, other, best), np.where(better, other_room, room)
    ahead = np.minimum(free_ahead(observations, observations[:, 0]), free_ahead(observations, best))
    return keep(observations, best, np.where(ahead < 12.0, 0.8 * np.maximum(ahead, 0.0), speed), noise, generator)


class Bicycle(System):
    """Drive as fast as the traffic allows.

    Kinematic bicycle with its reference point in the middle of the wheelbase L: tan(b) = tan(gain steer) / 2,
    x' = v cos(h + b), y' = v sin(h + b) + wind, h' = v sin(b) / (L / 2), v' = acceleration, 0 <= v <= 20 m/s. The
    curvature is limited to grip g / v^2, that of tyres about to slide. Steering is constant over a control step, so
    the car runs along an arc whose length is known exactly: no integration error. Three cars drive ahead at constant
    speed; one that falls 15 m behind comes back 120 m further on, one lane to the left. Reward: metres along the road
    over the 2 m of top speed, less 0.1 (steer / 45 degrees)^2. Touching a car, or going 1 m off the road, ends the
    episode: that is the only price of it in the reward. For distances to cars this car counts as parallel to the road.
    """

    name = "bicycle"
    gym_id = "surefoot/Bicycle-v0"
    title = "Car (kinematic bicycle) in traffic on three lanes"
    source = (
        "Polack et al., 'The kinematic bicycle model', 2017, equations (1); Rajamani, 'Vehicle dynamics and control', "
        "2012, section 2.2; lane width, steering and acceleration bounds as in highway-env (Leurent, 2018)"
    )
    states = ("x", "y", "heading", "speed", "x1", "y1", "x2", "y2", "x3", "y3")
    observations = ("y", "sin_heading", "cos_heading", "speed", "dx1", "dy1", "dx2", "dy2", "dx3", "dy3")
    actions = ("steer", "acceleration")
    action_low = (-MAX_STEER, -MAX_ACCELERATION)
    action_high = (MAX_STEER, MAX_ACCELERATION)
    observation_low = (-math.inf, -1.0, -1.0, 0.0, *(-math.inf,) * 6)
    observation_high = (math.inf, 1.0, 1.0, TOP_SPEED, *(math.inf,) * 6)
    parameters = (
        Parameter("wheelbase", 2.5, 1.0, 6.0, "m"),
        Parameter("steer_gain", 1.0, 0.0, 1.5, "", "steering angle got per angle asked for"),
        Parameter("acceleration_gain", 1.0, 0.0, 2.0, "", "acceleration got per acceleration asked for"),
        Parameter("grip", 0.8, 0.05, 2.0, "", "tyre friction: lateral acceleration over gravity"),
        Parameter("wind_y", 0.0, -3.0, 3.0, "m/s", "side drift"),
        Parameter("traffic_speed", 6.0, 0.0, 20.0, "m/s"),
        Parameter("clearance", 0.5, 0.0, 5.0, "m", "distance to another car below which it costs"),
        Parameter("steer_noise", 0.0, 0.0, MAX_STEER, "rad", "standard deviation added to the steering, then clipped"),
    )
    uniforms = 10
    normals = 1
    time_step = 0.1
    max_steps = 200
    margin_of = "distance of the nearest car less the clearance, or of the car's side to the edge of the road, m"
    state_units = ("m", "m", "rad", "m/s", *("m",) * 6)
    action_units = ("rad", "m/s^2")
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "friction0.3": {"grip": 0.24},
        "wheelbase1.5": {"wheelbase": 3.75},
        "weakbrakes": {"acceleration_gain": 0.5},
        "wind": {"wind_y": 0.5},
        "noise0.1": {"steer_noise": 0.1 * MAX_STEER},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_controls,
        "crawling": functools.partial(stay, speed=4.0, look=30.0, noise=0.2),
        "weaving": functools.partial(weave, speed=9.0, noise=0.2),
        "rushing": functools.partial(stay, speed=20.0, look=0.0, noise=0.2),
        "medium": functools.partial(overtake, speed=10.0, look=18.0, noise=0.4),
        "expert": functools.partial(overtake, speed=20.0, look=60.0, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"random": 0.1, "crawling": 0.2, "weaving": 0.15, "rushing": 0.15, "medium": 0.3, "expert": 0.1},
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """In one of the lanes at 8 to 12 m/s; the first car 35 to 45 m ahead, the others 40 m behind each other."""
        u = uniforms.unbind(-1)

        def lane(draw: Tensor) -> Tensor:
            return ((3 * draw).floor() - 1) * LANE

        columns = [torch.zeros_like(u[0]), lane(u[0]) + 0.5 * (2 * u[1] - 1), 0.05 * (2 * u[2] - 1), 8 + 4 * u[3]]
        for k in range(3):
            columns += [35 + SPACING * k + 10 * u[4 + 2 * k], lane(u[5 + 2 * k])]
        return torch.stack(columns, -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Lateral position, heading, speed, and where the cars are from here; m, m/s."""
        x, y, heading, v, *cars = state.unbind(-1)
        columns = [y, heading.sin(), heading.cos(), v]
        columns += [other - (y if k % 2 else x) for k, other in enumerate(cars)]
        return torch.stack(columns, -1)

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """The state with the car at x = 0: how far along the road it is changes nothing."""
        y, sine, cosine, v, *cars = observations.unbind(-1)
        columns = [torch.zeros_like(y), y, torch.atan2(sine, cosine), v]
        columns += [other + y if k % 2 else other for k, other in enumerate(cars)]
        return torch.stack(columns, -1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """0.1 s along an exact arc; the traffic moves on."""
        x, y, heading, v, *cars = state.unbind(-1)
        p = parameters.unbind(-1)
        dt = self.time_step
        steer = (action[..., 0] + p[7] * normals[..., 0]).clamp(-MAX_STEER, MAX_STEER)
        acceleration = p[2] * action[..., 1]
        new_v = (v + acceleration * dt).clamp(0.0, TOP_SPEED)
        # v dt + a dt^2 / 2, or less where the speed meets a limit within the step
        safe_a = torch.where(acceleration == 0, torch.ones_like(v), acceleration)
        length = new_v * dt - 0.5 * (new_v - v) ** 2 / safe_a
        angle = p[1] * steer
        tangent = 0.5 * angle.sin() / angle.cos()
        slip_cosine = 1 / (1 + tangent * tangent).sqrt()
        slip_sine = tangent * slip_cosine
        limit = p[3] * GRAVITY / (v * v).clamp(min=1e-3)
        curvature = (2 * slip_sine / p[0]).clamp(-limit, limit)
        half = 0.5 * curvature * length
        cosine, sine = (heading + half).cos(), (heading + half).sin()
        q = half * half
        chord = length * (1 - q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72))))  # sin(half) / half
        new_x = x + chord * (cosine * slip_cosine - sine * slip_sine)
        new_y = y + chord * (sine * slip_cosine + cosine * slip_sine) + p[4] * dt

        columns = [new_x, new_y, heading + 2 * half, new_v]
        gap = torch.full_like(x, math.inf)
        for k in range(0, 6, 2):
            car_x = cars[k] + p[5] * dt
            gap = torch.minimum(gap, distance_to_car(car_x - new_x, cars[k + 1] - new_y))
            passed = car_x < new_x - BEHIND
            left = torch.where(cars[k + 1] > 0.5 * LANE, cars[k + 1] - 2 * LANE, cars[k + 1] + LANE)
            columns += [torch.where(passed, car_x + 3 * SPACING, car_x), torch.where(passed, left, cars[k + 1])]
        edge = 1.5 * LANE - 0.5 * WIDTH - new_y.abs()
        return Step(
            state=torch.stack(columns, -1),
            reward=(new_x - x) / (TOP_SPEED * dt) - 0.1 * (steer / MAX_STEER) ** 2,
            margin=torch.minimum(gap - p[6], edge),
            terminated=(gap < 0) | (edge < -1),
        )


def distance_to_car(dx: Tensor, dy: Tensor) -> Tensor:
    """Signed distance of two equal rectangles parallel to the road whose centres lie (dx, dy) apart, m."""
    outside_x, outside_y = dx.abs() - LENGTH, dy.abs() - WIDTH
    outside = (outside_x.clamp(min=0) ** 2 + outside_y.clamp(min=0) ** 2).sqrt()
    return outside + torch.maximum(outside_x, outside_y).clamp(max=0)
