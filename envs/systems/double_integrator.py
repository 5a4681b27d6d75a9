"""Planar double integrator between four walls: motion, optimum and safe set all known in closed form."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Goal, Parameter, Range, Step, System

Array = np.ndarray[Any, Any]

TIME_STEP = 0.05  # s
TERMS = 8  # of the exponential series below: error under 1e-13 for drag * time_step <= 0.1


GOAL = np.array((0.9, 0.0))
GAIN = np.array((8.92, 4.32))  # of position and velocity: optimal for the reward's quadratic form without bounds


def uniform(observations: Array, generator: np.random.Generator) -> Array:
    """Both actions drawn uniformly at every step."""
    return generator.uniform(-1, 1, (len(observations), 2))


def proportional(observations: Array, generator: np.random.Generator, stiffness: float, noise: float) -> Array:
    """A spring to the goal without damping: overshoots, through the wall."""
    return _push(stiffness * (GOAL - observations[:, :2]), noise, generator)


def fleeing(observations: Array, generator: np.random.Generator, noise: float) -> Array:
    """Holds the middle of the left half, far from the goal."""
    return _push(-(observations[:, :2] + GOAL / 2) - 1.5 * observations[:, 2:], noise, generator)


def regulator(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """A fraction of the linear-quadratic gain towards the goal, and nothing that knows of the walls."""
    error = GOAL - observations[:, :2]
    return _push(gain * (GAIN[0] * error - GAIN[1] * observations[:, 2:]), noise, generator)


def shielded(observations: Array, generator: np.random.Generator, noise: float, keep: float = 0.01) -> Array:
    """The regulator, replaced by full braking where its next state would leave the safe set by less than `keep`, m.

    Least restrictive filter on each axis: brake with -clip(v / dt) if the next state's safe value is below `keep`.
    """
    action = regulator(observations, generator, 1.0, noise)
    h = TIME_STEP
    position, velocity = observations[:, :2], observations[:, 2:]
    next_position, next_velocity = position + h * velocity + 0.5 * h * h * action, velocity + h * action
    high = 1 - next_position - np.maximum(next_velocity, 0) ** 2 / 2
    low = 1 + next_position - np.minimum(next_velocity, 0) ** 2 / 2
    return np.where(np.minimum(high, low) < keep, np.clip(-velocity / h, -1, 1), action)


def _push(action: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 2) clipped actions with Gaussian noise after a first clip."""
    return np.clip(np.clip(action, -1, 1) + noise * generator.standard_normal(action.shape), -1, 1)


class DoubleIntegrator(System):
    """Push a point mass to a goal that lies close to a wall; overshooting costs.

    x'' = (force u + wind + noise) / mass - drag x' on each axis, held over a step and integrated exactly (zero-order
    hold). Walls at |x| = wall and |y| = wall are counted, not felt: the mass passes through, and the margin is
    negative beyond. Reward -(|position - goal|^2 + 0.01 |velocity|^2 + 0.01 |u|^2), of the state that the action
    meets, so that it is a linear-quadratic problem inside the action bounds.
    """

    name = "double_integrator"
    gym_id = "surefoot/DoubleIntegrator-v0"
    title = "Planar double integrator between walls, exact zero-order hold"
    source = (
        "x'' = u, exact zero-order hold: Astrom and Wittenmark, Computer-Controlled Systems, 1997, chapter 2; "
        "safe set: time-optimal braking parabola, Bryson and Ho, Applied Optimal Control, 1975, chapter 3."
    )
    states = ("x", "y", "velocity_x", "velocity_y")
    observations = states
    actions = ("u_x", "u_y")
    action_low = (-1.0, -1.0)
    action_high = (1.0, 1.0)
    observation_low = (-np.inf,) * 4
    observation_high = (np.inf,) * 4
    parameters = (
        Parameter("mass", 1.0, 0.05, 20.0, "kg"),
        Parameter("force", 1.0, 0.0, 20.0, "N", "at action 1"),
        Parameter("drag", 0.0, 0.0, 2.0, "1/s", "deceleration per speed; 0 keeps the closed forms exact"),
        Parameter("wind_x", 0.0, -10.0, 10.0, "N"),
        Parameter("wind_y", 0.0, -10.0, 10.0, "N"),
        Parameter("action_noise", 0.0, 0.0, 10.0, "", "standard deviation added to the action"),
        Parameter("wall", 1.0, 0.2, 100.0, "m", "distance of the walls from the origin"),
        Parameter("goal_x", 0.9, -100.0, 100.0, "m"),
        Parameter("goal_y", 0.0, -100.0, 100.0, "m"),
        Parameter("start", 0.8, 0.0, 100.0, "m", "half width of the square of initial positions"),
        Parameter("start_speed", 0.2, 0.0, 10.0, "m/s", "half width of the initial velocities"),
    )
    uniforms = 4
    normals = 2
    time_step = TIME_STEP
    max_steps = 100
    margin_of = "distance to the nearest wall, m, negative outside"
    state_units = ("m", "m", "m/s", "m/s")
    action_units = ("", "")
    reward_bounds = (-np.inf, 0.0)
    goal = Goal({"x": "goal_x", "y": "goal_y"})
    reach_box = (Range(-1.5, 1.5, 31), Range(-1.5, 1.5, 31), Range(-2.4, 2.4, 31), Range(-2.4, 2.4, 31))
    control_affine = True
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "friction0.3": {"drag": 0.3},
        "noise1": {"action_noise": 1.0},
        "wind": {"wind_x": 0.2, "wind_y": -0.1},
        "heavy": {"mass": 2.0},
    }
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": uniform,
        "fleeing": functools.partial(fleeing, noise=0.3),
        "overshooting": functools.partial(proportional, stiffness=1.0, noise=0.3),
        "medium": functools.partial(regulator, gain=0.05, noise=0.5),
        "reckless": functools.partial(regulator, gain=1.0, noise=0.0),
        "expert": functools.partial(shielded, noise=0.0),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "mixed": {"random": 0.25, "fleeing": 0.2, "overshooting": 0.25, "medium": 0.2, "expert": 0.1}
    }

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, 4) states, uniform in a square at rest or moving; the defaults all lie in the safe set."""
        start, speed = parameters[:, 9], parameters[:, 10]
        return (2 * uniforms - 1) * torch.stack((start, start, speed, speed), -1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, 4): the state."""
        return state

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One exact step of 0.05 s."""
        mass, force, drag, wind_x, wind_y, noise, _, goal_x, goal_y, *_ = parameters[:, :, None].unbind(1)
        position, velocity = state[:, :2], state[:, 2:]
        goal = torch.cat((goal_x, goal_y), -1)
        effort = (action**2).sum(-1)
        reward = -((position - goal) ** 2).sum(-1) - 0.01 * (velocity**2).sum(-1) - 0.01 * effort
        push = (force * (action + noise * normals) + torch.cat((wind_x, wind_y), -1)) / mass
        phi1, phi2 = _hold(drag, self.time_step)
        position = position + phi1 * velocity + phi2 * push
        velocity = velocity + phi1 * (push - drag * velocity)
        state = torch.cat((position, velocity), -1)
        margin = self.margin(state, parameters)
        return Step(state, reward, margin, torch.zeros_like(margin, dtype=torch.bool))

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Distance to the nearest wall, m."""
        return (parameters[:, 6:7] - state[:, :2].abs()).amin(-1)

    def safe_value(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) largest margin that can be kept for ever from (N, 4) states, m; the safe set is where it is >= 0.

        On each axis min(wall - x - max(v, 0)^2 / (2 a+), wall + x - max(-v, 0)^2 / (2 a-)), with a+ and a- the
        largest decelerations towards the wall, wind included (exact without drag, conservative with it). In
        continuous time: samples of period dt see up to a dt^2 / 8 more. Both axes are independent.
        """
        mass, force, _, wind_x, wind_y, _, wall, *_ = parameters[:, :, None].unbind(1)
        position, velocity = state[:, :2], state[:, 2:]
        wind = torch.cat((wind_x, wind_y), -1)
        brake_high, brake_low = (force - wind) / mass, (force + wind) / mass
        high = wall - position - velocity.clamp_min(0) ** 2 / (2 * brake_high)
        low = wall + position - velocity.clamp_max(0) ** 2 / (2 * brake_low)
        return torch.minimum(high, low).amin(-1)


def _hold(drag: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """phi1 = (1 - e^-kh) / k and phi2 = (h - phi1) / k by their power series, which k = 0 does not trouble."""
    z = drag * h
    first = second = torch.zeros_like(z)
    for term in range(TERMS, 0, -1):  # Horner: sums of (-z)^n / (n + 1)! and (-z)^n / (n + 2)!
        first = 1 - z / (term + 1) * first
        second = 1 - z / (term + 2) * second
    return h * first, 0.5 * h * h * second
