r"""Cart-pole swing-up: the cart of cartpole_balance.py, its pole hanging at first; one Runge-Kutta step per action.

Reward, a product of four factors in [0, 1] as in the control suite (Tassa et al. 2018), b(v) = 0.1^(v^2):

    (1 + cos th) / 2  *  (1 + b(x / 2)) / 2  *  (4 + max(0, 1 - (u / 10)^2)) / 5  *  (1 + b(th' / 5)) / 2

The episode ends where the cart leaves its track, |x| > 2.4 m.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.cuda_ext.system import Behaviour, Range, Step, System
from surefoot.envs.systems.cartpole_balance import (
    GAPS,
    MAX_FORCE,
    PARAMETERS,
    Array,
    accelerations,
    lqr_gain,
    random_force,
)


def swing_up(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Energy shaping with a spring to the middle, then the linear-quadratic regulator near the top.

    The cart accelerates by gain (E - E_upright) th' cos th - 3 x - 2 x', E = (2/3) l th'^2 / g + cos th in units of
    m g l (Astrom and Furuta, "Swinging up a pendulum by energy control", 2000, equation 8), E_upright = 1.
    """
    position, velocity, cosine, sine, rate = observations.T
    angle = np.arctan2(sine, cosine)
    energy = (2.0 / 3.0) * 0.5 / 9.8 * rate**2 + cosine
    pump = gain * (energy - 1.0) * rate * cosine - 3.0 * position - 2.0 * velocity
    balance = -np.stack([position, velocity, angle, rate], 1) @ lqr_gain()
    near = (np.abs(angle) < 0.35) & (np.abs(rate) < 4.0)
    force = np.where(near, balance, pump) + noise * generator.standard_normal(len(observations))
    return np.clip(force, -MAX_FORCE, MAX_FORCE)[:, None]


class CartPoleSwingUp(System):
    """Swing a hanging pole up and keep it there, on a short track."""

    name = "cartpole_swingup"
    gym_id = "surefoot/CartPoleSwingUp-v0"
    title = "Cart-pole swing-up on a track of 4.8 m"
    source = "equations of cartpole_balance.py; reward as Tassa et al. 2018, DeepMind Control Suite"
    states = ("position", "velocity", "angle", "angular velocity")
    observations = ("position", "velocity", "cos(angle)", "sin(angle)", "angular velocity")
    actions = ("force",)
    action_low, action_high = (-MAX_FORCE,), (MAX_FORCE,)
    observation_low = (-4.8, -math.inf, -1.0, -1.0, -math.inf)
    observation_high = (4.8, math.inf, 1.0, 1.0, math.inf)
    parameters = PARAMETERS
    uniforms, normals = 4, 1
    time_step, max_steps = 0.02, 500
    margin_of = "2.0 m less |position|"
    state_units, action_units = ("m", "m/s", "rad", "rad/s"), ("N",)
    reward_bounds = (0.0, 1.0)
    reach_box = (
        Range(-2.4, 2.4, 25),
        Range(-8.0, 8.0, 33),
        Range(-math.pi, math.pi, 24, periodic=True),
        Range(-12.0, 12.0, 25),
    )
    control_affine = True
    gaps = GAPS
    behaviours: ClassVar[Mapping[str, Behaviour]] = {
        "random": random_force,
        "medium": functools.partial(swing_up, gain=1.0, noise=6.0),
        "expert": functools.partial(swing_up, gain=5.0, noise=0.1),
    }
    mixtures: ClassVar[Mapping[str, Mapping[str, float]]] = {"mixed": {"random": 0.4, "medium": 0.4, "expert": 0.2}}

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """Hanging within 0.1 rad, the cart within 0.1 m of the middle, velocities within 0.05."""
        width = torch.tensor([0.2, 0.1, 0.2, 0.1], dtype=torch.float64).to(uniforms)
        middle = torch.tensor([0.0, 0.0, math.pi, 0.0], dtype=torch.float64).to(uniforms)
        return middle + width * (uniforms - 0.5)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """The state with cosine and sine for the angle."""
        position, velocity, angle, rate = state.unbind(1)
        return torch.stack([position, velocity, torch.cos(angle), torch.sin(angle), rate], 1)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """The classical Runge-Kutta method over one control step; reward of this file."""
        force = parameters[:, 6] * action[:, 0] + parameters[:, 8] * normals[:, 0]

        def slope(at: Tensor) -> Tensor:
            _, velocity, angle, rate = at.unbind(1)
            cart, pole = accelerations(velocity, angle, rate, force, parameters)
            return torch.stack([velocity, cart, rate, pole], 1)

        dt = self.time_step
        k1 = slope(state)
        k2 = slope(state + dt / 2 * k1)
        k3 = slope(state + dt / 2 * k2)
        k4 = slope(state + dt * k3)
        new = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        away, angle, rate = new[:, 0].abs(), new[:, 2], new[:, 3]
        upright = (1 + torch.cos(angle)) / 2
        centred = (1 + 0.1 ** ((away / 2) ** 2)) / 2
        gentle = (4 + (1 - (action[:, 0] / MAX_FORCE) ** 2).clamp(min=0)) / 5
        slow = (1 + 0.1 ** ((rate / 5) ** 2)) / 2
        return Step(new, upright * centred * gentle * slow, self.margin(new, parameters), away > 2.4)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """Track left to 2 m from the middle, m."""
        return 2.0 - state[:, 0].abs()

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """The angle from its cosine and sine."""
        position, velocity, cosine, sine, rate = observations.unbind(1)
        return torch.stack([position, velocity, torch.atan2(sine, cosine), rate], 1)
