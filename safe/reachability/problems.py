"""Small problems with known solutions, as the solver takes them: exact steps of one control period."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.safe.reachability.grid import Axis, Grid
from surefoot.safe.reachability.solver import Problem


def evenly(limit: float, count: int) -> Tensor:
    """(count, 1) actions from -limit to limit, both included."""
    return torch.linspace(-limit, limit, count, dtype=torch.float64)[:, None]


def double_integrator(period: float = 0.05, wall: float = 1.0, push: float = 1.0, actions: int = 5) -> Problem:
    """x'' = u held over a period, |u| <= push, |x| <= wall; states (x, v)."""

    def step(states: Tensor, action: Tensor) -> Tensor:
        position, velocity = states.unbind(-1)
        u = action[..., 0]
        return torch.stack((position + period * velocity + period**2 / 2 * u, velocity + period * u), -1)

    return Problem(step, lambda states: states[..., 0].abs() - wall, evenly(push, actions))


def double_integrator_grid(points: int = 161) -> Grid:
    """The box in which the safe set of wall 1 and push 1 lies with room to spare."""
    return Grid((Axis("x", -1.6, 1.6, points), Axis("velocity", -2.6, 2.6, points)))


def binary(problem: Problem, magnitude: float) -> Problem:
    """The same with a constraint that says only whether it is broken: `magnitude` where it is, else -1."""
    return Problem(
        problem.step,
        lambda states: torch.where(problem.h(states) > 0, magnitude, -1.0).to(states.dtype),
        problem.actions,
    )


def dubins_disc(
    radius: float, period: float = 0.05, speed: float = 1.0, turn_rate: float = 1.0, actions: int = 5
) -> Problem:
    """A disc seen from a car of constant speed: states (ahead, left) of its centre, exact arcs."""

    def step(states: Tensor, action: Tensor) -> Tensor:
        turn = period * action[..., 0]
        half = turn / 2
        chord = speed * period * torch.sinc(half / math.pi)
        ahead, left = states[..., 0] - chord * half.cos(), states[..., 1] - chord * half.sin()
        cosine, sine = turn.cos(), turn.sin()
        return torch.stack((cosine * ahead + sine * left, cosine * left - sine * ahead), -1)

    return Problem(step, lambda states: radius - torch.hypot(*states.unbind(-1)), evenly(turn_rate, actions))


def dubins_disc_grid(points: int = 201, half_width: float = 3.0) -> Grid:
    """A square around the car."""
    return Grid((Axis("ahead", -half_width, half_width, points), Axis("left", -half_width, half_width, points)))


def pure_integrator(period: float = 0.05, wall: float = 1.0, actions: int = 5) -> Problem:
    """x' = u, |u| <= 1, |x| <= wall; one state."""

    def step(states: Tensor, action: Tensor) -> Tensor:
        return states + period * action

    return Problem(step, lambda states: states[..., 0].abs() - wall, evenly(1.0, actions))


class Line:
    """The double integrator on a line as a system: what `safe.filters.model.Model` reads, and nothing more.

    x'' = u held over a period, exact; |u| <= 1, |x| <= 1.
    """

    states = observations = ("x", "velocity")
    actions = ("u",)
    action_low, action_high = (-1.0,), (1.0,)
    normals, time_step, max_steps = 0, 0.05, 200
    reach_box = ((-1.6, 1.6, 161), (-2.6, 2.6, 161))
    control_affine = True
    alias = "line"

    def default_parameters(self) -> Tensor:
        """None."""
        return torch.zeros(0, dtype=torch.float64)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> LineStep:
        """One period."""
        position, velocity = state.unbind(-1)
        u, dt = action[..., 0], self.time_step
        after = torch.stack((position + dt * velocity + dt**2 / 2 * u, velocity + dt * u), -1)
        return LineStep(after, torch.zeros_like(u, dtype=torch.bool))

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Distance to the nearer wall."""
        return 1 - state[..., 0].abs()

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """The observation."""
        return observations

    def braking(self, states: Tensor) -> Tensor:
        """(N, 1) full braking, less in the period in which it comes to rest: -clip(v / dt)."""
        return -(states[..., 1:] / self.time_step).clamp(-1, 1)


class LineStep(NamedTuple):
    """What a step of `Line` gives."""

    state: Tensor
    terminated: Tensor


def air3d(period: float = 0.05, speed: float = 5.0, turn_rate: float = 1.0, capture: float = 5.0) -> Problem:
    """Two cars of equal speed, one fleeing, one pursuing: states (x, y, psi) of the pursuer seen from the other.

    x' = -v + v cos psi + w_e y, y' = v sin psi - w_e x, psi' = w_p - w_e (Mitchell, Bayen and Tomlin 2005); the evader
    acts, the pursuer disturbs; caught within `capture` m. One Runge-Kutta step of order 4 a period.
    """

    def slope(states: Tensor, evader: Tensor, pursuer: Tensor) -> Tensor:
        x, y, psi = states.unbind(-1)
        w, p = evader[..., 0], pursuer[..., 0]
        return torch.stack((-speed + speed * psi.cos() + w * y, speed * psi.sin() - w * x, p - w), -1)

    def step(states: Tensor, evader: Tensor, pursuer: Tensor) -> Tensor:
        k1 = slope(states, evader, pursuer)
        k2 = slope(states + period / 2 * k1, evader, pursuer)
        k3 = slope(states + period / 2 * k2, evader, pursuer)
        k4 = slope(states + period * k3, evader, pursuer)
        return states + period / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    turns = evenly(turn_rate, 3)
    return Problem(step, lambda states: capture - torch.hypot(states[..., 0], states[..., 1]), turns, turns)


def air3d_grid(points: tuple[int, int, int] = (51, 40, 50)) -> Grid:
    """The box in which it is usually solved."""
    return Grid(
        (
            Axis("x", -6.0, 20.0, points[0]),
            Axis("y", -10.0, 10.0, points[1]),
            Axis("psi", 0.0, 2 * math.pi, points[2], periodic=True),
        )
    )
