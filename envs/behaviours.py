"""Scripted behaviours: plain functions from observations to actions, good and bad, to record data with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surefoot.core.errors import ConfigError, nearest

Array = np.ndarray[Any, Any]
Behaviour = Callable[[Array, np.random.Generator], Array]
"""(N, observation dim) observations and a generator -> (N, action dim) actions in the environment's units."""

MAX_TORQUE = 2.0  # Pendulum-v1's, N m
UPRIGHT_ENERGY = 15.0  # of the pendulum standing still, in its own units: see `pendulum_energy`


def pendulum_energy(observations: Array) -> Array:
    """(N,) energy of Pendulum-v1 per unit of inertia, w^2 / 2 + (3 g / 2 l) cos(angle), g = 10, l = 1."""
    return np.asarray(0.5 * observations[:, 2] ** 2 + UPRIGHT_ENERGY * observations[:, 0])


def uniform(observations: Array, generator: np.random.Generator) -> Array:
    """Torque drawn uniformly at every step."""
    return generator.uniform(-MAX_TORQUE, MAX_TORQUE, (len(observations), 1))


def braking(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Swing-up in the wrong phase: torque against the rotation, so the pendulum stays hanging."""
    return _torque(-gain * observations[:, 2], noise, generator)


def pumping(observations: Array, generator: np.random.Generator, torque: float, noise: float) -> Array:
    """Constant torque along the rotation: gains energy without end and never catches the pendulum."""
    return _torque(torque * np.sign(observations[:, 2]), noise, generator)


def swing_up(observations: Array, generator: np.random.Generator, gain: float, noise: float) -> Array:
    """Energy shaping, then a PD controller near the top.

    u = gain (E_upright - E) sign(w); within 0.6 rad of the top u = -(10 angle + 2 w).
    Astrom and Furuta, "Swinging up a pendulum by energy control", 2000, equation (8).
    """
    velocity = observations[:, 2]
    angle = np.arctan2(observations[:, 1], observations[:, 0])
    shaping = gain * (UPRIGHT_ENERGY - pendulum_energy(observations)) * np.where(velocity < 0, -1.0, 1.0)
    balance = -(10.0 * angle + 2.0 * velocity)
    return _torque(np.where(np.abs(angle) < 0.6, balance, shaping), noise, generator)


def _torque(torque: Array, noise: float, generator: np.random.Generator) -> Array:
    """(N, 1) clipped torque with Gaussian noise of standard deviation `noise`, N m."""
    return np.clip(torque + noise * generator.standard_normal(len(torque)), -MAX_TORQUE, MAX_TORQUE)[:, None]


PENDULUM_BEHAVIOURS: Mapping[str, Behaviour] = {
    "random": uniform,
    "braking": functools.partial(braking, gain=0.5, noise=0.8),
    "pumping": functools.partial(pumping, torque=1.0, noise=0.8),
    "medium": functools.partial(swing_up, gain=0.1, noise=1.5),
    "decent": functools.partial(swing_up, gain=0.5, noise=0.5),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """A dataset that can be generated: where, by which behaviours, and in which mixtures of them."""

    env_id: str
    behaviours: Mapping[str, Behaviour]
    mixtures: Mapping[str, Mapping[str, float]]
    """Mixture name -> {behaviour: share of the episodes}; shares add up to 1."""
    episode_steps: int

    def shares(self, behaviour: str) -> Mapping[str, float]:
        """The mixture of that name, or a behaviour by itself; raises ConfigError for another name."""
        if behaviour in self.mixtures:
            return self.mixtures[behaviour]
        if behaviour in self.behaviours:
            return {behaviour: 1.0}
        known = [*self.mixtures, *self.behaviours]
        raise ConfigError(f"unknown behaviour {behaviour!r}; {nearest(behaviour, known)}")


TASKS: dict[str, Task] = {
    "pendulum-swingup": Task(
        env_id="Pendulum-v1",
        behaviours=PENDULUM_BEHAVIOURS,
        mixtures={
            "mixed": {"braking": 0.35, "random": 0.1, "pumping": 0.15, "medium": 0.3, "decent": 0.1},
        },
        episode_steps=200,
    ),
}
"""Name of a generated dataset -> its task. To add one, add a key here and its simulator in `generate`."""
