"""Dubins car past disc obstacles to a goal: constant speed, bounded turn rate, exact arcs, exact signed distances."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Goal, Parameter, Range, Step, System

Array = np.ndarray[Any, Any]

OBSTACLES = ((-1.0, -0.8, 0.5), (-0.5, 1.0, 0.6), (1.2, 0.1, 0.6))  # x, y, radius; m
TURN_RATE = 1.0  # rad/s, the bound of the action
SPEED = 1.0  # m/s, default
GOAL_RADIUS = 0.3  # m
ARRIVAL_BONUS = 5.0


def sinc(x: Tensor) -> Tensor:
    """sin(x) / x by its series to x^8: relative error below 3e-11 for |x| <= 0.5, and smooth at 0."""
    q = x * x
    return 1 - q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72)))


def steer(turn: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 1) turn rate with Gaussian noise of standard deviation `noise`, clipped; rad/s."""
    return np.clip(turn + noise * generator.standard_normal(len(turn)), -TURN_RATE, TURN_RATE)[:, None]


def towards_goal(observations: Array, gain: float) -> Array:
    """(N,) turn rate in proportion to the goal's bearing; straight on where the goal lies within the turning circle."""
    ahead, left = observations[:, 0], observations[:, 1]
    radius = SPEED / TURN_RATE
    too_close = np.hypot(ahead, np.abs(left) - radius) < radius - 0.5 * GOAL_RADIUS
    return np.where(too_close, 0.0, gain * np.arctan2(left, ahead))


def safe_value(ahead: Array, left: Array, gap: Array) -> Array:
    """Largest signed distance to a disc that can be kept for ever, from its centre in the car's frame and the gap, m.

    V = sqrt(X^2 + (|Y| + rho)^2) - rho - r for X >= 0, and the gap itself behind the car; rho = speed / turn rate.
    Safe for ever where V >= 0; turning away from the disc keeps it so.
    """
    rho = SPEED / TURN_RATE
    disc = np.hypot(ahead, left) - gap
    return np.where(ahead >= 0, np.hypot(ahead, np.abs(left) + rho) - rho - disc, gap)


def random_turns(observations: Array, generator: np.random.Generator) -> Array:
    """Turn rate drawn uniformly at every step."""
    return generator.uniform(-TURN_RATE, TURN_RATE, (len(observations), 1))


def circling(observations: Array, generator: np.random.Generator, turn: float, noise: float) -> Array:
    """Turns one way only: never arrives."""
    return steer(np.full(len(observations), turn), noise, generator)


def blind(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Turns to the goal and sees no obstacle."""
    return steer(towards_goal(observations, gain), noise, generator)


def careful(observations: Array, generator: np.random.Generator, gain: float, reserve: float, noise: float) -> Array:
    """Turns to the goal; away from the worst obstacle where its `safe_value` falls below `reserve`, m."""
    discs = observations[:, 2:].reshape(-1, 3, 3)
    values = safe_value(discs[..., 0], discs[..., 1], discs[..., 2])
    worst = np.argmin(values, axis=1)
    rows = np.arange(len(observations))
    away = np.where(discs[rows, worst, 1] > 0, -TURN_RATE, TURN_RATE)
    return steer(np.where(values[rows, worst] < reserve, away, towards_goal(observations, gain)), noise, generator)


class DubinsObstacles(System):
    """Reach a goal past three discs at constant speed.

    x' = v cos(h) + wind_x, y' = v sin(h) + wind_y, h' = gain u + drift, with u in [-1, 1] rad/s. The turn rate is
    constant over a control step, so the car runs along an arc: a chord of length v dt sinc(w dt / 2) under the
    heading h + w dt / 2, exact for any dt. Reward: metres gained towards the goal, plus 5 on arrival within 0.3 m,
    which ends the episode. Meeting an obstacle costs, ends nothing and is no part of the reward: the shortest way
    leads through them. The margin is the exact signed distance to the discs as long as they do not overlap.
    """

    name = "dubins_obstacles"
    gym_id = "surefoot/DubinsObstacles-v0"
    title = "Dubins car past disc obstacles to a goal"
    source = (
        "Dubins, 'On curves of minimal length with a constraint on average curvature', 1957; speed, turn rate and disc "
        "sizes as usual for the Hamilton-Jacobi avoid benchmark (Mitchell, Bayen & Tomlin 2005); layout of our own"
    )
    states = ("x", "y", "heading")
    observations = (
        "goal_ahead",
        "goal_left",
        *(f"{what}{i}" for i in (1, 2, 3) for what in ("ahead", "left", "gap")),
    )
    actions = ("turn_rate",)
    action_low = (-TURN_RATE,)
    action_high = (TURN_RATE,)
    observation_low = (-math.inf,) * 11
    observation_high = (math.inf,) * 11
    parameters = (
        Parameter("speed", SPEED, 0.0, 5.0, "m/s"),
        Parameter("turn_gain", 1.0, -2.0, 2.0, "", "turn rate got per turn rate asked for"),
        Parameter("turn_drift", 0.0, -1.0, 1.0, "rad/s", "turn rate with the wheel straight"),
        Parameter("wind_x", 0.0, -1.0, 1.0, "m/s", "drift of the ground track"),
        Parameter("wind_y", 0.0, -1.0, 1.0, "m/s"),
        Parameter("action_noise", 0.0, 0.0, 2.0, "rad/s", "standard deviation added to the action, then clipped"),
        Parameter("goal_x", 3.0, -100.0, 100.0, "m"),
        Parameter("goal_y", 0.0, -100.0, 100.0, "m"),
        *(
            Parameter(f"{what}{i + 1}", disc[k], low, 100.0, "m")
            for i, disc in enumerate(OBSTACLES)
            for k, (what, low) in enumerate((("x", -100.0), ("y", -100.0), ("radius", 0.0)))
        ),
    )
    uniforms = 3
    normals = 1
    time_step = 0.05
    max_steps = 200
    margin_of = "signed distance to the nearest obstacle, m"
    state_units = ("m", "m", "rad")
    action_units = ("rad/s",)
    goal = Goal({"x": "goal_x", "y": "goal_y"}, GOAL_RADIUS)
    reach_box = (Range(-4.0, 4.0, 61), Range(-4.0, 4.0, 61), Range(-math.pi, math.pi, 48, periodic=True))
    control_affine = True
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "wind": {"wind_y": 0.3},
        "speed1.5": {"speed": 1.5},
        "friction0.3": {"turn_gain": 0.7},
        "drift": {"turn_drift": 0.2},
        "noise1": {"action_noise": 1.0},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_turns,
        "circling": functools.partial(circling, turn=0.6, noise=0.4),
        "blind": functools.partial(blind, gain=3.0, noise=0.3),
        "medium": functools.partial(careful, gain=0.8, reserve=0.0, noise=0.7),
        "expert": functools.partial(careful, gain=3.0, reserve=0.1, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"circling": 0.3, "random": 0.2, "blind": 0.1, "medium": 0.3, "expert": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """Left of the obstacles: x in [-3.5, -2.5], y in [-1.5, 1.5] m, heading in [-pi/2, pi/2]."""
        u, v, w = uniforms.unbind(-1)
        return torch.stack((u - 3.5, 3 * v - 1.5, math.pi * (w - 0.5)), -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Goal and obstacle centres in the car's frame (ahead, left), and the gap to each obstacle; m."""
        x, y, heading = state.unbind(-1)
        p = parameters.unbind(-1)
        cosine, sine = heading.cos(), heading.sin()

        def seen(dx: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
            return cosine * dx + sine * dy, cosine * dy - sine * dx

        columns = [*seen(p[6] - x, p[7] - y)]
        for k in (8, 11, 14):
            dx, dy = p[k] - x, p[k + 1] - y
            columns += [*seen(dx, dy), (dx * dx + dy * dy).sqrt() - p[k + 2]]
        return torch.stack(columns, -1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One exact arc of `time_step` seconds."""
        x, y, heading = state.unbind(-1)
        p = parameters.unbind(-1)
        dt = self.time_step
        turn = p[1] * (action[..., 0] + p[5] * normals[..., 0]).clamp(-TURN_RATE, TURN_RATE) + p[2]
        half = 0.5 * dt * turn
        chord = p[0] * dt * sinc(half)
        new_x = x + chord * (heading + half).cos() + p[3] * dt
        new_y = y + chord * (heading + half).sin() + p[4] * dt
        before = ((p[6] - x) ** 2 + (p[7] - y) ** 2).sqrt()
        after = ((p[6] - new_x) ** 2 + (p[7] - new_y) ** 2).sqrt()
        arrived = after < GOAL_RADIUS
        state = torch.stack((new_x, new_y, heading + 2 * half), -1)
        return Step(
            state=state,
            reward=before - after + ARRIVAL_BONUS * arrived.to(x.dtype),
            margin=self.margin(state, parameters),
            terminated=arrived,
        )

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Signed distance to the nearest obstacle, m."""
        x, y, _ = state.unbind(-1)
        p = parameters.unbind(-1)
        gaps = [((p[k] - x) ** 2 + (p[k + 1] - y) ** 2).sqrt() - p[k + 2] for k in (8, 11, 14)]
        return torch.minimum(torch.minimum(gaps[0], gaps[1]), gaps[2])

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """The pose that fits goal and obstacles best: known points in the ground and in the car's frame.

        The heading turns the points seen, about their middle, onto the known ones (least squares); the middles then
        give the position.
        """
        o, p = observations.unbind(-1), parameters.unbind(-1)
        ahead, left = torch.stack(o[0::3][:1] + o[2::3], -1), torch.stack(o[1:2] + o[3::3], -1)
        x, y = torch.stack((p[6], *p[8::3]), -1), torch.stack((p[7], *p[9::3]), -1)
        middle = [value.mean(-1, keepdim=True) for value in (ahead, left, x, y)]
        a, b, u, v = (value - mean for value, mean in zip((ahead, left, x, y), middle))
        heading = torch.atan2((a * v - b * u).sum(-1), (a * u + b * v).sum(-1))
        cosine, sine = heading.cos(), heading.sin()
        ahead, left, x, y = (value[..., 0] for value in middle)
        return torch.stack((x - cosine * ahead + sine * left, y - sine * ahead - cosine * left, heading), -1)
