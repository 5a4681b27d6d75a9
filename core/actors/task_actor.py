"""Policy heads that are given a task: a vector that stands for a reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.goal_actor import on_sphere
from surefoot.core.actors.memory import TASK, Memory
from surefoot.core.actors.memory_actors import WrappingActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.two_streams import TwoStreams


class TaskReadingActor(Actor):
    """a = tanh of a network on the state, and on state and task, each prepared by a network of its own."""

    kind = "task_reading"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        task_dim: int,
        hidden: Sequence[int] = (1024, 1024),
        width: int = 512,
        normed: str = "none",
    ) -> None:
        """Read `observation_dim` numbers, of which the last `task_dim` are the task; `normed` is of `TwoStreams`."""
        super().__init__()
        self.task_dim, self.hidden, self.width, self.normed = task_dim, tuple(hidden), width, normed
        state_dim = observation_dim - task_dim
        self.network = TwoStreams(state_dim, observation_dim, action_dim, hidden, width, normed=normed)

    @property
    def noise_dim(self) -> int:
        """0: there is nothing to draw."""
        return 0

    def forward(self, observations: Tensor) -> Tensor:
        """(B, A) actions in [-1, 1] for (B, O + D) states and tasks side by side."""
        states = observations[..., : observations.shape[-1] - self.task_dim]
        return torch.tanh(self.network(states, observations))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions; `noise` has no effect."""
        return self(observations)


class TaskActor(WrappingActor):
    """A head that reads the normalised observation and, beside it, a task z of length sqrt(D).

    The task is in the memory: `Policy.reset(task=...)` writes it there. Where none is given, `task` is taken; while
    that is 0 there is none, the memory holds NaN, and acting is refused.
    """

    kind = "task"
    order = ("task_dim", "inner")
    task_dim: int
    task: Tensor
    """(D,) the direction of the task of episodes that are given none; 0: there is none."""

    def __init__(self, inner: Actor, task_dim: int) -> None:
        """Wrap a head of O + D inputs, tasks behind observations."""
        if task_dim < 1:
            raise ConfigError(f"task_dim is {task_dim}; a task has at least one number")
        super().__init__(inner, task_dim=task_dim)
        self.register_buffer("task", torch.zeros(task_dim))

    def _begin(self, rows: int) -> Memory:
        if "task" not in self._buffers:  # while it is made
            return {TASK: self._zeros(rows, self.task_dim)}
        none = torch.full_like(self.task, math.nan)
        task = torch.where((self.task == 0).all(), none, on_sphere(self.task))
        return {TASK: task.expand(rows, -1).clone()}

    def fix(self, task: Tensor) -> None:
        """Take one (D,) task wherever none is given."""
        self.task.copy_(task)

    def forward(self, observations: Tensor, tasks: Tensor) -> Tensor:
        """What the inner head gives for normalised observations (B, O) and tasks (B, D)."""
        return self.inner(torch.cat([observations, tasks], -1))

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`; the task stays."""
        return self.inner.step(torch.cat([observations, memory[TASK]], -1), memory, noise)

    @classmethod
    def sizes_of(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[int, int]:
        """As `Described.sizes_of`: the inner head reads the task too."""
        return observation_dim + options["task_dim"], action_dim
