"""Two native systems written again as plain python functions, with the equations of their files in `envs/systems`."""

from __future__ import annotations

import math

from surefoot.envs.python_system import PythonSystem
from surefoot.envs.systems import system


def wrap(angle: float) -> float:
    return angle - 2 * math.pi * math.floor((angle + math.pi) / (2 * math.pi))


def pendulum() -> PythonSystem:
    def derivative(angle, velocity, torque, gravity, mass, length, damping, gain, wind, action_noise, normals):  # type: ignore[no-untyped-def]
        applied = gain * torque + action_noise * normals[0] - damping * velocity
        weight = 1.5 * gravity / length * math.sin(angle) + 1.5 * wind / (mass * length) * math.cos(angle)
        return velocity, weight + 3 / (mass * length**2) * applied

    def reward(angle, velocity, torque):  # type: ignore[no-untyped-def]
        return -(wrap(angle) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2)

    def margin(angle):  # type: ignore[no-untyped-def]
        return abs(wrap(angle - math.radians(25))) - math.radians(5)

    def reset(uniforms):  # type: ignore[no-untyped-def]
        return math.pi * (2 * uniforms[0] - 1), 2 * uniforms[1] - 1

    def observe(angle, velocity):  # type: ignore[no-untyped-def]
        return math.cos(angle), math.sin(angle), velocity

    native = system("pendulum")
    return PythonSystem(
        "pendulum",
        states=("angle", "velocity"),
        actions={"torque": (-2, 2)},
        parameters=native.parameters,
        derivative=derivative,
        reward=reward,
        margin=margin,
        reset=reset,
        observe=observe,
        observations={"cos": (-1, 1), "sin": (-1, 1), "speed": (-8, 8)},
        integrator="semi_implicit",
        limits={"velocity": (-8, 8)},
        time_step=0.05,
        max_steps=200,
        normals=1,
        gaps=native.gaps,
    )


def cartpole_balance() -> PythonSystem:
    def derivative(  # type: ignore[no-untyped-def]
        velocity, angle, rate, force, gravity, cart_mass, pole_mass, pole_half_length, friction, damping, gain, wind,
        action_noise, normals,
    ):  # fmt: skip
        total, lever = cart_mass + pole_mass, pole_mass * pole_half_length
        sine, cosine = math.sin(angle), math.cos(angle)
        applied = gain * force + action_noise * normals[0] + wind - friction * velocity
        push = (applied + lever * rate**2 * sine) / total
        turn = (wind * pole_half_length * cosine - damping * rate) / lever
        inertia = pole_half_length * (4 / 3 - pole_mass * cosine**2 / total)
        pole = (gravity * sine - cosine * push + turn) / inertia
        return velocity, push - lever * pole * cosine / total, rate, pole

    def reward():  # type: ignore[no-untyped-def]
        return 1

    def margin(position, angle):  # type: ignore[no-untyped-def]
        return min(2.4 - abs(position), 0.2 - abs(angle))

    def terminated(position, angle):  # type: ignore[no-untyped-def]
        return abs(position) > 2.4 or abs(angle) > math.radians(12)

    def reset(uniforms):  # type: ignore[no-untyped-def]
        a, b, c, d = uniforms
        return 0.1 * a - 0.05, 0.1 * b - 0.05, 0.1 * c - 0.05, 0.1 * d - 0.05

    native = system("cartpole_balance")
    return PythonSystem(
        "cartpole_balance",
        states=("position", "velocity", "angle", "rate"),
        actions={"force": (-10, 10)},
        parameters=native.parameters,
        derivative=derivative,
        reward=reward,
        margin=margin,
        terminated=terminated,
        reset=reset,
        integrator="euler",
        time_step=0.02,
        max_steps=500,
        normals=1,
        gaps=native.gaps,
    )
