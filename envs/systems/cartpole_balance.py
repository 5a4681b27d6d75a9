r"""Cart-pole balancing: gymnasium's CartPole-v1 with any force of at most 10 N, friction, wind and noise.

Cart of mass M at x, pole of mass m and half length l at th from upright, total force f = k u + s z on the cart, wind F
at the pole's centre, viscous friction c on the track and d in the hinge (Barto, Sutton and Anderson 1983; Florian 2007,
"Correct equations for the dynamics of the cart-pole system"):

    (M + m) x'' + m l (th'' cos th - th'^2 sin th) = f + F - c x'
    (4/3) m l^2 th'' + m l x'' cos th = m g l sin th + F l cos th - d th'

Positions advance by the old velocities (explicit Euler), as in gymnasium.
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

MAX_FORCE = 10.0
PARAMETERS = (
    Parameter("gravity", 9.8, 0.0, 100.0, "m/s^2"),
    Parameter("cart_mass", 1.0, 0.01, 100.0, "kg"),
    Parameter("pole_mass", 0.1, 0.001, 100.0, "kg"),
    Parameter("pole_half_length", 0.5, 0.01, 100.0, "m"),
    Parameter("friction", 0.0, 0.0, 100.0, "N s/m", "of the cart on its track"),
    Parameter("damping", 0.0, 0.0, 100.0, "N m s", "of the hinge"),
    Parameter("gain", 1.0, -10.0, 10.0, "", "force applied per force asked for"),
    Parameter("wind", 0.0, -100.0, 100.0, "N", "horizontal force at the centre of the pole"),
    Parameter("action_noise", 0.0, 0.0, 100.0, "N", "standard deviation of a force drawn at every step"),
)
GAPS: Mapping[str, Mapping[str, float]] = {
    "gravity2": {"gravity": 19.6},
    "friction0.3": {"friction": 0.3},
    "noise1": {"action_noise": 1.0},
    "wind": {"wind": 0.2},
}


def accelerations(velocity: Tensor, angle: Tensor, rate: Tensor, force: Tensor, parameters: Tensor) -> list[Tensor]:
    """[cart's (N,) m/s^2, pole's (N,) rad/s^2] under a (N,) force in N."""
    gravity, cart_mass, pole_mass, length, friction, damping, _, wind, _ = parameters.unbind(1)
    total, lever = cart_mass + pole_mass, pole_mass * length
    sine, cosine = torch.sin(angle), torch.cos(angle)
    push = (force + wind - friction * velocity + lever * rate**2 * sine) / total
    turn = (wind * length * cosine - damping * rate) / lever
    pole = (gravity * sine - cosine * push + turn) / (length * (4 / 3 - pole_mass * cosine**2 / total))
    return [push - lever * pole * cosine / total, pole]


@functools.cache
def lqr_gain() -> Array:
    """(4,) gain k of u = -k (x, x', th, th') about upright: the Riccati equation of the default cart, zero-order hold.

    Costs: 1 per m^2, 0.1 per (m/s)^2, 10 per rad^2, 0.1 per (rad/s)^2 and 0.01 per N^2.
    """
    import scipy.linalg  # slow to import, which training workers spare

    m, total, length, g, dt = 0.1, 1.1, 0.5, 9.8, 0.02
    inertia = length * (4 / 3 - m / total)
    a = np.zeros((5, 5))
    a[0, 1] = a[2, 3] = 1.0
    a[3, 2], a[3, 4] = g / inertia, -1 / (total * inertia)
    a[1, 2], a[1, 4] = -m * length * a[3, 2] / total, 1 / total - m * length * a[3, 4] / total
    held = scipy.linalg.expm(a * dt)
    transition, control = held[:4, :4], held[:4, 4:]
    r = np.array([[0.01]])
    p = scipy.linalg.solve_discrete_are(transition, control, np.diag([1.0, 0.1, 10.0, 0.1]), r)
    gain = np.linalg.solve(r + control.T @ p @ control, control.T @ p @ transition)
    return np.asarray(gain[0])


def random_force(observations: Array, generator: np.random.Generator) -> Array:
    """Drawn uniformly at every step."""
    return generator.uniform(-MAX_FORCE, MAX_FORCE, (len(observations), 1))


def balance(observations: Array, generator: np.random.Generator, noise: float) -> Array:
    """Linear-quadratic regulator plus Gaussian noise of `noise` N."""
    force = -observations @ lqr_gain() + noise * generator.standard_normal(len(observations))
    return np.clip(force, -MAX_FORCE, MAX_FORCE)[:, None]


class CartPoleBalance(System):
    """Keep a pole upright on a cart."""

    name = "cartpole_balance"
    gym_id = "surefoot/CartPoleBalance-v0"
    title = "Cart-pole balancing (gymnasium's CartPole-v1 with a continuous force)"
    source = "gymnasium/envs/classic_control/cartpole.py"
    states = ("position", "velocity", "angle", "angular velocity")
    observations = states
    actions = ("force",)
    action_low, action_high = (-MAX_FORCE,), (MAX_FORCE,)
    observation_low = (-4.8, -math.inf, -math.radians(24), -math.inf)
    observation_high = (4.8, math.inf, math.radians(24), math.inf)
    parameters = PARAMETERS
    uniforms, normals = 4, 1
    time_step, max_steps = 0.02, 500
    margin_of = "the smaller of 2.4 m less |position| and 0.2 rad less |angle|"
    state_units, action_units = ("m", "m/s", "rad", "rad/s"), ("N",)
    reward_bounds = (1.0, 1.0)
    reach_box = (Range(-2.8, 2.8, 21), Range(-6.0, 6.0, 31), Range(-0.28, 0.28, 21), Range(-3.0, 3.0, 31))
    control_affine = True
    gaps = GAPS
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_force,
        "medium": functools.partial(balance, noise=10.0),
        "expert": functools.partial(balance, noise=0.1),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {"mixed": {"random": 0.4, "medium": 0.4, "expert": 0.2}}

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """Each in +-0.05, as in gymnasium."""
        return 0.1 * uniforms - 0.05

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """The state."""
        return state

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """The equations of this file; 1 a step until the pole is 12 degrees or the cart 2.4 m off."""
        position, velocity, angle, rate = state.unbind(1)
        force = parameters[:, 6] * action[:, 0] + parameters[:, 8] * normals[:, 0]
        cart, pole = accelerations(velocity, angle, rate, force, parameters)
        dt = self.time_step
        new = torch.stack([position + dt * velocity, velocity + dt * cart, angle + dt * rate, rate + dt * pole], 1)
        away, tilt = new[:, 0].abs(), new[:, 2].abs()
        terminated = (away > 2.4) | (tilt > math.radians(12))
        return Step(new, torch.ones_like(away), self.margin(new, parameters), terminated)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """The smaller of the track left, m, and the angle left, rad."""
        return torch.minimum(2.4 - state[:, 0].abs(), 0.2 - state[:, 2].abs())
