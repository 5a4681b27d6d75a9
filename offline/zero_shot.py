"""What zero-shot algorithms share: options, the head that is given a task, how tasks are drawn and found."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.goal_actor import on_sphere
from surefoot.core.actors.histories import HistoryConfig, history_of
from surefoot.core.actors.task_actor import TaskActor, TaskReadingActor
from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch
from surefoot.core.engine.traits import Requires
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare


@dataclasses.dataclass(frozen=True)
class ZeroShotConfig(HistoryConfig):
    """Options of all zero-shot algorithms."""

    latent: int = option(50, "D, numbers of a task; 100 in mazes", range=">= 1")
    discount: float = option(0.98, "discount factor; .99 in mazes", range="[0, 1)")
    learning_rate: float = option(1e-4, "learning rate of the maps", range="> 0")
    actor_learning_rate: float = option(1e-4, "learning rate of the actor", range="> 0")
    target_rate: float = option(0.01, "rate of the targets' average, every step", range="(0, 1]")
    task_share: float = option(
        0.5, "share of rows whose task is that of reaching a state of the data; the others' is any", range="[0, 1]"
    )
    action_noise: float = option(0.2, "deviation of what is added to the policy's actions in training", range=">= 0")
    action_noise_clip: float = option(0.3, "bound of what is added to the policy's actions in training", range=">= 0")
    task_rate: float = option(0.01, "rate of the average that finds the task of the data's own rewards", range="(0, 1]")
    hidden: tuple[int, ...] = option((1024, 1024), "widths of the hidden layers")
    width: int = option(512, "width of prepared pairs of state and action, and of state and task", range=">= 1")
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)


class ZeroShotAgent(Agent):
    """Base of agents that learn, without a reward, a policy for each of many, and are given one later as a task.

    A task z is D numbers of length sqrt(D). The data's own rewards, where there are some, take no part in what networks
    learn: they only give the task that the policy has when training ends.
    """

    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    requires = Requires(rewards=False)
    config: ZeroShotConfig
    actor_normed: ClassVar[str] = "last"
    """Which of the actor's networks begin with layer norm and tanh (`TwoStreams`)."""
    max_gradient: ClassVar[float | None] = None
    """Largest size of each number of a gradient, of the maps and the actor; None: as it is."""
    actor: TaskActor

    def build(self) -> None:
        """The head of the policy; a subclass adds its maps."""
        c, spec = self.config, self.spec
        width = spec.observation_dim + c.latent
        inner = TaskReadingActor(width, spec.action_dim, c.latent, c.hidden, c.width, self.actor_normed)
        self.actor = TaskActor(inner, c.latent)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization)

    def task_noise(self) -> dict[str, Noise]:
        """What `mixed_tasks` and `noisy_action` read."""
        return {
            "task": Noise("normal", self.config.latent),
            "task_kind": Noise("uniform", 1),
            "action": Noise("normal", self.spec.action_dim),
        }

    def directions(self, batch: Batch) -> Tensor:
        """(B, D) towards a state of each row, of any length."""
        raise TypeError(f"{type(self).__name__} must define directions")

    def annotate(self, batch: Batch) -> Batch:
        """With directions as they are before the training step, so that all its updates have the same tasks."""
        return {**batch, "directions": self.directions(batch)}

    def mixed_tasks(self, noise: dict[str, Tensor], directions: Tensor) -> Tensor:
        """(B, D) tasks: of some rows any, uniform on the sphere, of others the direction of the row before.

        Rows are drawn independently, so that the row before is any of the data.
        """
        ways = on_sphere(directions.roll(1, 0))
        return torch.where(noise["task_kind"] < self.config.task_share, ways, on_sphere(noise["task"]))

    def noisy_action(self, observations: Tensor, tasks: Tensor, noise: Tensor) -> Tensor:
        """(B, A) the policy's actions for (B, D) tasks, with clipped noise and within [-1, 1].

        The gradient passes where the bound cuts, as in the authors' code: else an action near it would learn from half
        of its noise alone.
        """
        c = self.config
        limit = c.action_noise_clip
        action = self.actor(observations, tasks) + (c.action_noise * noise).clamp(-limit, limit)
        return action + (action.clamp(-1, 1) - action).detach()

    def following_action(self, batch: Batch, tasks: Tensor, noise: Tensor) -> Tensor:
        """(B, A) the policy's actions at the next states."""
        return self.noisy_action(batch["next_observations"], tasks, noise)

    def actor_adam(self) -> Adam:
        """The actor's optimiser."""
        return Adam(self.config.actor_learning_rate, max_gradient=self.max_gradient)

    def task_from(self, states: Tensor, rewards: Tensor) -> Tensor:
        """(D,) the task of (n,) rewards that are paid in (n, O) states, normalised as `prepare` leaves them."""
        raise TypeError(f"{type(self).__name__} must define task_from")

    def task_to(self, goal: object) -> Tensor:
        """(D,) the task of reaching a goal, of algorithms in which a goal is one.

        Raises:
            ConfigError: it is none in this one.
        """
        raise ConfigError(f"{self.name} has no task for a goal: give a reward, such as 1 near it; fb takes goals")

    @torch.no_grad()
    def task_of(self, states: object, rewards: object) -> Tensor:
        """The task of a reward that some labelled states show.

        Args:
            states: (n, O) in the environment's units, spread as the data's; with a history of L, (n, L O) windows,
                oldest first. 10,000 of them are usual.
            rewards: (n,) paid in these states.

        Returns:
            (D,) of length sqrt(D): for `Policy.set_task` or `reset(task=...)`.

        Raises:
            DataError: other shapes, or numbers that are not finite.
            ConfigError: the rewards don't tell any state from another.
        """
        length, width = history_of(self.config), self.environment_spec.observation_dim
        rows, paid = (np.asarray(torch.as_tensor(v).cpu(), np.float32) for v in (states, rewards))
        if rows.ndim != 2 or rows.shape[1] != length * width or paid.shape != (len(rows),) or not len(rows):
            raise DataError(
                f"states have shape {rows.shape} and rewards {paid.shape}; must be (n, {length * width}) and (n,), n "
                "at least 1"
            )
        for name, values in (("states", rows), ("rewards", paid)):
            if not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0, 0])
                raise DataError(f"{name}: row {row} is not finite")
        device = self.action_low.device
        seen = self.normalizer(torch.from_numpy(rows).to(device).unflatten(-1, (length, width))).flatten(-2)
        return self.unit_task(self.task_from(seen, torch.from_numpy(paid).to(device)))

    def unit_task(self, task: Tensor) -> Tensor:
        """(D,) a task at its length.

        Raises:
            ConfigError: it is 0, or not finite.
        """
        if not bool(task.isfinite().all()) or not bool(task.any()):
            raise ConfigError(
                f"{self.name}: these rewards give no task: they are 0 in all states, or the networks are not trained"
            )
        return on_sphere(task)
