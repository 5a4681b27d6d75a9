"""Tasks in torch for MJX and MuJoCo Warp: some of gymnasium's, and any MJCF file with a reward function.

Observations, rewards and ends are those of `envs.mujoco`, which has gymnasium's. Physics are the engine's, and initial
states are drawn by other random numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.envs.adapters.physics import Fields, Outcome, PhysicsTask

Reward = Callable[[Fields, Fields, Tensor], Tensor]
"""(fields before, fields after, (N, A) controls) -> (N,) rewards, tensors on the engine's device."""


@dataclasses.dataclass(frozen=True)
class Healthy:
    """Where an episode continues: both bounds are outside."""

    height: tuple[float, float]
    angle: tuple[float, float]
    states: float = math.inf
    """Bound of all positions behind the height and all velocities."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What tells a locomotion task from another; names and values are those of gymnasium's v5 tasks."""

    xml_file: str
    frame_skip: int
    ctrl_cost_weight: float
    reset_noise_scale: float
    normal_velocities: bool = False
    """Initial velocities are normal, and not uniform."""
    hidden: int = 1
    """Positions that are not observed: where the root is."""
    velocity_bound: float = math.inf
    """Velocities are observed within it."""
    healthy: Healthy | None = None
    """None: episodes never terminate."""


LOCOMOTION: Mapping[str, Facts] = {
    "HalfCheetah": Facts("half_cheetah.xml", 5, 0.1, 0.1, normal_velocities=True),
    "Hopper": Facts("hopper.xml", 4, 1e-3, 5e-3, velocity_bound=10.0,
                    healthy=Healthy((0.7, math.inf), (-0.2, 0.2), 100.0)),
    "Walker2d": Facts("walker2d_v5.xml", 4, 1e-3, 5e-3, velocity_bound=10.0,
                      healthy=Healthy((0.8, 2.0), (-1.0, 1.0))),
    "Swimmer": Facts("swimmer.xml", 4, 1e-4, 0.1, hidden=2),
}  # fmt: skip
PENDULUM = "InvertedPendulum"
NAMES = (*LOCOMOTION, PENDULUM)
"""What `task_of` knows: names of gymnasium's tasks without "-v5"."""


class ModelTask(PhysicsTask):
    """Begins around a model's `qpos0` at rest, with noise."""

    def __init__(self, model: Any, substeps: int, noise: float, normal_velocities: bool = False) -> None:
        """Take a `mujoco.MjModel`."""
        self.nq, self.nv, self.substeps = int(model.nq), int(model.nv), substeps
        self.noise, self.normal_velocities = noise, normal_velocities
        self.dt = float(model.opt.timestep) * substeps
        self.uniforms = self.nq + self.nv * (2 if normal_velocities else 1)
        self.qpos0 = torch.tensor(model.qpos0, dtype=torch.float32)

    def begin(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions; uniform velocities, or normal ones (Box and Muller)."""
        first = uniform[:, self.nq : self.nq + self.nv]
        positions = self.qpos0.to(uniform.device) + self.noise * (2 * uniform[:, : self.nq] - 1)
        if not self.normal_velocities:
            return positions, self.noise * (2 * first - 1)
        radius = (-2 * torch.log1p(-first)).sqrt()
        return positions, self.noise * radius * torch.cos(2 * math.pi * uniform[:, self.nq + self.nv :])


class Locomotion(ModelTask):
    """Forward velocity, one more for being healthy, minus control cost."""

    def __init__(self, model: Any, facts: Facts) -> None:
        """Take a `mujoco.MjModel` of the task's file."""
        super().__init__(model, facts.frame_skip, facts.reset_noise_scale, facts.normal_velocities)
        self.facts = facts
        self.observation_dim = self.nq - facts.hidden + self.nv

    def observe(self, data: Fields) -> Tensor:
        """(N, O): positions without the root's place, and velocities."""
        bound = self.facts.velocity_bound
        return torch.cat([data["qpos"][:, self.facts.hidden :], data["qvel"].clamp(-bound, bound)], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        """As in gymnasium."""
        forward = (after["qpos"][:, 0] - before["qpos"][:, 0]) / self.dt
        rewards = forward - self.facts.ctrl_cost_weight * actions.square().sum(1)
        if self.facts.healthy is None:
            return Outcome(rewards, torch.zeros_like(rewards, dtype=torch.bool))
        healthy = self._is_healthy(after, self.facts.healthy)
        return Outcome(rewards + healthy.float(), ~healthy)

    def _is_healthy(self, data: Fields, bounds: Healthy) -> Tensor:
        place, velocities = data["qpos"], data["qvel"]
        upright = _inside(place[:, 1], bounds.height) & _inside(place[:, 2], bounds.angle)
        if math.isinf(bounds.states):
            return upright
        return upright & (torch.cat([place[:, 2:], velocities], 1).abs() < bounds.states).all(1)


class Pendulum(ModelTask):
    """gymnasium's InvertedPendulum-v5: a reward of 1 while the pole leans no more than 0.2 rad."""

    limit = 0.2

    def __init__(self, model: Any) -> None:
        """Take a `mujoco.MjModel` of the task's file."""
        super().__init__(model, 2, 0.01)
        self.observation_dim = self.nq + self.nv

    def observe(self, data: Fields) -> Tensor:
        """(N, 4): positions and velocities."""
        return torch.cat([data["qpos"], data["qvel"]], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        """As in gymnasium."""
        fell = after["qpos"][:, 1].abs() > self.limit
        return Outcome((~fell).float(), fell)


class RewardedModel(ModelTask):
    """Any MJCF: observes positions and velocities, is rewarded by a function, and ends by time alone."""

    def __init__(self, model: Any, reward: Reward, substeps: int, noise: float, max_steps: int) -> None:
        """Take a `mujoco.MjModel` and what `task_of` was given."""
        super().__init__(model, substeps, noise)
        self.observation_dim, self.max_steps, self.reward = self.nq + self.nv, max_steps, reward

    def observe(self, data: Fields) -> Tensor:
        """(N, nq + nv): positions and velocities."""
        return torch.cat([data["qpos"], data["qvel"]], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        """The function's reward.

        Raises:
            ConfigError: it gives something else than (N,).
        """
        rewards = self.reward(before, after, actions)
        if not isinstance(rewards, Tensor) or tuple(rewards.shape) != (len(actions),):
            found = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
            raise ConfigError(f"the reward function gives {found}, not a tensor ({len(actions)},), one a row")
        return Outcome(rewards.float(), torch.zeros_like(rewards, dtype=torch.bool))


def model_of(name: str) -> str:
    """The MJCF of gymnasium's task of that name.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    if name not in NAMES:
        raise ConfigError(f"{name!r} is neither an MJCF file nor a task here: {nearest(name, NAMES)}")
    return "inverted_pendulum.xml" if name == PENDULUM else LOCOMOTION[name].xml_file


def task_of(name: str, model: Any) -> ModelTask:
    """gymnasium's task of that name on its model (`model_of`)."""
    return Pendulum(model) if name == PENDULUM else Locomotion(model, LOCOMOTION[name])


def _inside(values: Tensor, limits: tuple[float, float]) -> Tensor:
    return (limits[0] < values) & (values < limits[1])
