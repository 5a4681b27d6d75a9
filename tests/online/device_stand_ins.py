"""Simulators of tensors without any simulator: a point on a line, as an engine and as Isaac's libraries step it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from surefoot.envs.adapters import PhysicsTask, from_isaac_gym, from_isaac_lab
from surefoot.envs.adapters.physics import Fields, Outcome, PhysicsVectorEnv

ROWS = 8


class Glide(PhysicsTask):
    """A point on a line, pushed; terminates beyond 1, truncated after 12 steps; rewarded at 0."""

    observation_dim, max_steps, uniforms = 2, 12, 1

    def begin(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return uniform - 0.5, torch.zeros_like(uniform)

    def observe(self, data: Fields) -> Tensor:
        return torch.cat([data["qpos"], data["qvel"]], 1)

    def outcome(self, before: Fields, after: Fields, actions: Tensor) -> Outcome:
        place = after["qpos"][:, 0]
        return Outcome(1 - place.abs(), place.abs() > 1)


class Line:
    """The engine of it."""

    name, device = "line", torch.device("cpu")

    def __init__(self) -> None:
        self.position, self.velocity = torch.zeros(ROWS, 1), torch.zeros(ROWS, 1)

    def data(self) -> Fields:
        return {"qpos": self.position, "qvel": self.velocity}

    def advance(self, actions: Tensor, substeps: int) -> None:
        self.velocity.mul_(0.8).add_(0.1 * actions)
        self.position.add_(self.velocity)

    def place(self, rows: Tensor, positions: Tensor, velocities: Tensor) -> None:
        self.position[rows], self.velocity[rows] = positions, velocities


class LabTask:
    """The same as `DirectRLEnv` steps it, without its final observations."""

    num_envs, device, max_episode_length = ROWS, "cpu", 12
    single_observation_space = Box(-10.0, 10.0, (2,), np.float32)
    single_action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.state, self.steps = torch.zeros(ROWS, 2), torch.zeros(ROWS, dtype=torch.int64)

    def reset(self, seed: int | None = None) -> Any:
        self.state.zero_()
        self.steps.zero_()
        return {"policy": self.state}, {}

    def step(self, action: Tensor) -> Any:
        velocity = 0.8 * self.state[:, 1:] + 0.1 * action
        self.state = torch.cat([self.state[:, :1] + velocity, velocity], 1)
        self.steps += 1
        fell, late = self.state[:, 0].abs() > 1, self.steps >= 12
        reward = 1 - self.state[:, 0].abs()
        self.state = torch.where((fell | late)[:, None], 0.0, self.state)
        self.steps[fell | late] = 0
        return {"policy": self.state}, reward, fell, late & ~fell, {}

    def close(self) -> None: ...


class GymTask(LabTask):
    """The same as `VecTask` steps it."""

    observation_space, action_space, rl_device = LabTask.single_observation_space, LabTask.single_action_space, "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.reset_buf = torch.ones(ROWS, dtype=torch.int64)

    def reset(self, seed: int | None = None) -> Any:
        return {"obs": self.state}

    def step(self, action: Tensor) -> Any:
        begun = self.reset_buf > 0
        velocity = 0.8 * self.state[:, 1:] + 0.1 * action
        moved = torch.cat([self.state[:, :1] + velocity, velocity], 1)
        self.state = torch.where(begun[:, None], 0.0, moved)
        self.steps = torch.where(begun, 0, self.steps + 1)
        late = self.steps >= 12
        self.reset_buf = (late | (self.state[:, 0].abs() > 1)).long()
        return {"obs": self.state}, 1 - self.state[:, 0].abs(), self.reset_buf, {"time_outs": late}


ENVIRONMENTS: dict[str, Any] = {
    "physics": lambda: PhysicsVectorEnv(Line(), Glide(), ROWS, np.array([[-1.0, 1.0]]), "torch"),
    "isaac_lab": lambda: from_isaac_lab(LabTask()),
    "isaac_gym": lambda: from_isaac_gym(GymTask()),
}
