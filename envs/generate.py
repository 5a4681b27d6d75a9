"""Datasets that the project makes by itself: scripted behaviours in a batched numpy simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surefoot.core.errors import ConfigError, nearest
from surefoot.envs.behaviours import MAX_TORQUE, TASKS, Task

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array], tuple[Array, Array]]


def pendulum_reset(episodes: int, generator: np.random.Generator) -> Array:
    """(N, 2) float64 initial states (angle, angular velocity) as in Pendulum-v1: uniform in +-(pi, 1)."""
    return generator.uniform([-np.pi, -1.0], [np.pi, 1.0], (episodes, 2))


def pendulum_step(states: Array, actions: Array) -> tuple[Array, Array]:
    """One step of N Pendulum-v1, 0.05 s, semi-implicit Euler, in gymnasium's own order and precision.

    Args:
        states: (N, 2) float64 angle in rad (0 upright, not wrapped) and angular velocity in rad/s.
        actions: (N, 1) float32 torque in N m, clipped to +-2.

    Returns:
        (N, 2) next states and (N,) float64 rewards, -(angle^2 + 0.1 w^2 + 0.001 u^2) before the step.
    """
    angle, velocity = states[:, 0], states[:, 1]
    torque = np.clip(actions[:, 0].astype(np.float32), -MAX_TORQUE, MAX_TORQUE)
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    rewards = -(wrapped**2 + 0.1 * velocity**2 + 0.001 * torque**2)
    next_velocity = np.clip(velocity + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    next_angle = angle + next_velocity * 0.05
    return np.stack([next_angle, next_velocity], axis=1), rewards


def pendulum_observe(states: Array) -> Array:
    """(N, 2) states -> (N, 3) float32 observations: cos and sin of the angle, angular velocity."""
    return np.stack([np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1]], axis=1).astype(np.float32)


SIMULATORS: dict[str, tuple[Callable[[int, np.random.Generator], Array], Step, Callable[[Array], Array]]] = {
    "Pendulum-v1": (pendulum_reset, pendulum_step, pendulum_observe),
}
"""Environment id -> (reset, step, observe) of its batched simulator."""


def generate(
    name: str = "pendulum-swingup", seed: int = 0, transitions: int = 50_000, behaviour: str = "mixed"
) -> dict[str, Any]:
    """A dataset recorded by scripted behaviours, one behaviour an episode, in shuffled order.

    Args:
        name: key of `TASKS`.
        seed: of initial states, noise and order; the same seed gives the same bits.
        transitions: rounded up to whole episodes.
        behaviour: a mixture ("mixed": visibly suboptimal) or one behaviour of the task.

    Returns:
        N rows in episode order: `observations`, `next_observations` (N, observation dim) float32, `actions`
        (N, action dim) float32 in the environment's units, `rewards` (N,) float32, `terminations`,
        `truncations` (N,) bool; `env_id`, a string; `behaviours`, the name of each episode's behaviour.

    Raises:
        ConfigError: unknown name or behaviour (nearest names given); transitions or seed out of range.
    """
    if name not in TASKS:
        raise ConfigError(f"no generated dataset is called {name!r}; {nearest(name, list(TASKS))}")
    if transitions < 1 or seed < 0:
        raise ConfigError(f"transitions is {transitions} and seed {seed}; they must be at least 1 and 0")
    task = TASKS[name]
    shares = task.shares(behaviour)
    episodes = -(-transitions // task.episode_steps)
    generator = np.random.default_rng([seed, episodes])
    names = generator.permutation(_names(shares, episodes))
    columns = _record(task, names, generator)
    # (steps, episodes, ...) -> (episodes * steps, ...): rows in episode order
    flat = {key: np.ascontiguousarray(np.swapaxes(value, 0, 1)) for key, value in columns.items()}
    rows = {key: value.reshape(-1, *value.shape[2:]) for key, value in flat.items()}
    return {**rows, "env_id": task.env_id, "behaviours": names.tolist()}


def _names(shares: Mapping[str, float], episodes: int) -> Array:
    """Each episode's behaviour: shares by largest remainder, so that they are met to within one episode."""
    exact = np.array(list(shares.values())) * episodes
    counts = np.floor(exact).astype(int)
    short = episodes - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return np.repeat(list(shares), counts)


def _record(task: Task, names: Array, generator: np.random.Generator) -> dict[str, Array]:
    """All episodes side by side: arrays of shape (steps, episodes, ...)."""
    reset, step, observe = SIMULATORS[task.env_id]
    states = reset(len(names), generator)
    observations = observe(states)
    rows_of = {behaviour: np.flatnonzero(names == behaviour) for behaviour in sorted(set(names.tolist()))}
    seen, done, earned = [observations], [], []
    for _ in range(task.episode_steps):
        actions = np.zeros((len(names), 1), dtype=np.float32)
        for behaviour, rows in rows_of.items():
            actions[rows] = task.behaviours[behaviour](observations[rows], generator)
        states, rewards = step(states, actions)
        observations = observe(states)
        seen.append(observations)
        done.append(actions)
        earned.append(rewards.astype(np.float32))
    truncations = np.zeros((task.episode_steps, len(names)), dtype=np.bool_)
    truncations[-1] = True
    return {
        "observations": np.stack(seen[:-1]),
        "actions": np.stack(done),
        "rewards": np.stack(earned),
        "next_observations": np.stack(seen[1:]),
        "terminations": np.zeros_like(truncations),
        "truncations": truncations,
    }
