"""Value functions that are known in closed form, in this room's sign: V > 0 where the constraint can't be kept.

Derived in the equations named at each; they are what solvers and learners are compared with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def double_integrator(position: Tensor, velocity: Tensor, wall: float = 1.0, push: float = 1.0) -> Tensor:
    """Value of x'' = u, |u| <= push, |x| <= wall: the farthest that braking lets it go, less the wall; m.

    max(-x, x + v^2 / (2 push)) - wall for v >= 0, mirrored for v < 0. In continuous time: a controller that acts every
    dt seconds passes it by up to push dt^2 / 8 within its last period of braking.
    """
    toward = torch.where(velocity >= 0, position, -position)
    return torch.maximum(-toward, toward + velocity**2 / (2 * push)) - wall


def double_integrator_area(wall: float = 1.0, push: float = 1.0) -> float:
    """Area of its safe set, (16 / 3) L sqrt(U L)."""
    return 16 / 3 * wall * math.sqrt(push * wall)


def sampling_margin(push: float, period: float) -> float:
    """push period^2 / 8: how far a double integrator that brakes to a stop within a period overshoots, m.

    The last period of braking stops it only at its end, so it decelerates by less than it could.
    """
    return push * period**2 / 8


def dubins_disc(ahead: Tensor, left: Tensor, radius: float, turning_radius: float = 1.0) -> Tensor:
    """Value of a car of constant speed, turning within `turning_radius`, and a disc centred (ahead, left) of it; m.

    rho + r - sqrt(X^2 + (|Y| + rho)^2) for X >= 0, r - |P| behind the car. S = X^2 + (Y + rho)^2 - (rho + r)^2 can't
    grow while X > 0, and turning away from the disc keeps it as it is.
    """
    before = turning_radius + radius - torch.hypot(ahead, left.abs() + turning_radius)
    return torch.where(ahead >= 0, before, radius - torch.hypot(ahead, left))


def dubins_disc_area(radius: float, turning_radius: float = 1.0) -> float:
    """Area of its unsafe set for one heading: pi r^2 / 2 + R^2 acos(rho / R) - rho sqrt(R^2 - rho^2), R = rho + r."""
    whole = turning_radius + radius
    segment = whole**2 * math.acos(turning_radius / whole)
    return math.pi * radius**2 / 2 + segment - turning_radius * math.sqrt(whole**2 - turning_radius**2)


def pure_integrator(position: Tensor, wall: float = 1.0) -> Tensor:
    """Value of x' = u, |x| <= wall: it can stand still, so V = h for any discount."""
    return position.abs() - wall


def constant_velocity(position: Tensor, velocity: Tensor, wall: float, period: float, discount: float) -> Tensor:
    """Value of x' = v without control before a wall at x = `wall`, seen each period; any sign of v.

    With h_k = x + k v dt - wall: moving away, V = h_0. Towards the wall h rises by b = v dt a period for ever, and
    V_0 = (1 - g) h_0 + g V_1 has the solution h_0 + b g / (1 - g), for discount g < 1.
    """
    rise = (velocity * period).clamp_min(0)
    return position - wall + rise * discount / (1 - discount)


def chain(h: Tensor, discount: float) -> Tensor:
    """(K,) values along a path without choices with a terminal end: V = (1 - g) h + g max(h, V'), last V = h."""
    values = [h[-1]]
    for now in reversed(h[:-1].unbind()):
        values.append((1 - discount) * now + discount * torch.maximum(now, values[-1]))
    return torch.stack(values[::-1])
