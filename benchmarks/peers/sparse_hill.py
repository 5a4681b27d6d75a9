"""A car in a valley whose engine is too weak for the hill: it must swing, and the top alone pays.

Equations and constants of gymnasium's MountainCarContinuous-v0 (Moore, "Efficient Memory-based Learning for Robot
Control", 1990), in units of its steps, with two thirds of its force. The reward is 1 at the top, where an episode ends,
and 0 elsewhere; actions cost nothing, and an episode has 200 steps.
"""

from __future__ import annotations

import math

from surefoot.envs.python_system import PythonSystem

TOP, FORCE = 0.45, 0.001


def derivative(x: float, v: float, push: float) -> tuple[float, float]:
    """Changes in a step."""
    return v, FORCE * push - 0.0025 * math.cos(3 * x)


def reward(next_x: float) -> float:
    """1 at the top."""
    return 1.0 if next_x >= TOP else 0.0


def reset(uniforms: tuple[float, ...]) -> tuple[float, float]:
    """At rest near the bottom."""
    return -0.6 + 0.2 * uniforms[0], 0.0


def terminated(x: float) -> bool:
    """At the top."""
    return x >= TOP


hill = PythonSystem(
    "sparse_hill",
    states=("x", "v"),
    actions={"push": (-1.0, 1.0)},
    derivative=derivative,
    reward=reward,
    reset=reset,
    terminated=terminated,
    integrator="semi_implicit",
    limits={"x": (-1.2, 0.6), "v": (-0.07, 0.07)},
    time_step=1.0,
    max_steps=200,
)
hill.register()
