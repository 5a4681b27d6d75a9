"""FB: forward-backward representations, from which any reward has its policy without further training."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.goal_actor import on_sphere
from surefoot.core.base.errors import DataError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.losses.successor_measures import measure_loss, orthonormality_loss, reward_direction
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.two_streams import TwoStreams
from surefoot.offline.zero_shot import ZeroShotAgent, ZeroShotConfig


@dataclasses.dataclass(frozen=True)
class FBConfig(ZeroShotConfig):
    """Settings of FB; the defaults are those of VC-FB's authors."""

    orthonormality: float = option(1.0, "weight of what keeps B from shrinking to few directions", range=">= 0")
    backward_hidden: tuple[int, ...] = option((256, 256, 256), "of B")


class BackwardMap(nn.Module):
    """B(s): D numbers of length sqrt(D)."""

    def __init__(self, observation_dim: int, latent: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, latent, hidden)

    def forward(self, states: Tensor) -> Tensor:
        """(..., D) of (..., O) normalised states."""
        return on_sphere(self.mlp(states))


class FB(ZeroShotAgent):
    r"""FB of Touati and Ollivier, "Learning One Representation to Optimize All Rewards" (NeurIPS 2021), with the
    networks of Touati, Rapin and Ollivier, "Does Zero-Shot Reinforcement Learning Exist?" (ICLR 2023).

    With tasks z of length :math:`\sqrt D`, half of them any and half :math:`B` of a state of the data, and :math:`a'
    \sim \pi(s', z)`:

    .. math::
        M_i[j, k] &= F_i(s_j, a_j, z_j) \cdot B(s'_k), \quad
        \hat M[j, k] = \min_i \hat F_i(s'_j, a'_j, z_j) \cdot \hat B(s'_k) \\
        L &= \textstyle\sum_i \{ \frac12 E_{j \ne k} (M_i[j, k] - \gamma (1 - d_j) \hat M[j, k])^2 - E_j M_i[j, j] \}
            + E_{j \ne k} (B(s'_j) \cdot B(s'_k))^2 - 2 E_j |B(s'_j)|^2 \\
        L_\pi &= -E \min_i F_i(s, \pi(s, z), z) \cdot z

    A reward's task is :math:`z = E\, r(x) B(x)`, scaled to its length; a goal's is :math:`B(g)`. Then F z is the action
    value of the policy of z.
    """

    name = "fb"
    Config: ClassVar[type] = FBConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}, "maze": {"latent": 100, "discount": 0.99}}
    max_gradient: ClassVar[float | None] = 1.0
    config: FBConfig

    def build(self) -> None:
        """The policy, the two maps, and their averages."""
        super().build()
        c, spec = self.config, self.spec
        pair, with_task = spec.observation_dim + spec.action_dim, spec.observation_dim + c.latent
        self.forward_map = TwoStreams(pair, with_task, c.latent, c.hidden, c.width, members=2)
        self.backward_map = BackwardMap(spec.observation_dim, c.latent, c.backward_hidden)
        self.target_forward_map = copy.deepcopy(self.forward_map).requires_grad_(False)
        self.target_backward_map = copy.deepcopy(self.backward_map).requires_grad_(False)

    def successors(self, states: Tensor, actions: Tensor, tasks: Tensor, network: TwoStreams | None = None) -> Tensor:
        """(2, B, D) F of states (B, O), actions (B, A) and tasks (B, D)."""
        first, second = torch.cat([states, actions], -1), torch.cat([states, tasks], -1)
        found: Tensor = (network or self.forward_map)(first, second)
        return found

    def directions(self, batch: Batch) -> Tensor:
        """As of the base: B of the row's state."""
        found: Tensor = self.backward_map(batch["observations"])
        return found

    def representation_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both maps, towards where the averages say that the policies go."""
        return self._representation_loss(batch, noise)[:2]

    def _representation_loss(
        self, batch: Batch, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Metrics, tuple[Tensor, Tensor, Tensor]]:
        """Loss and metrics, and what they were made of: tasks (B, D), F (2, B, D) and B of the next states (B, D)."""
        following = batch["next_observations"]
        with torch.no_grad():
            tasks = self.mixed_tasks(noise, batch["directions"])
            action = self.following_action(batch, tasks, noise["action"])
            ahead = self.successors(following, action, tasks, self.target_forward_map)
            target = ensembles.minimum(ahead @ self.target_backward_map(following).transpose(-1, -2))
            target = self.config.discount * (1 - batch["terminations"]).unsqueeze(-1) * target
        forward = self.successors(batch["observations"], batch["actions"], tasks)
        embedded = self.backward_map(following)
        measures = forward @ embedded.transpose(-1, -2)
        fit, apart = measure_loss(measures, target), orthonormality_loss(embedded)
        metrics = {
            "measure_loss": fit,
            "orthonormality": apart,
            "value": (forward * tasks).sum(-1),
            "task": reward_direction(embedded, batch["rewards"]),
        }
        return fit + self.config.orthonormality * apart, metrics, (tasks, forward, embedded)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Ascend the smaller of the two values that F gives the policy's actions for its task."""
        tasks = self.mixed_tasks(noise, batch["directions"])
        action = self.noisy_action(batch["observations"], tasks, noise["action"])
        q = ensembles.minimum((self.successors(batch["observations"], action, tasks) * tasks).sum(-1))
        return -q.mean(), {"q_policy": q}

    def updates(self) -> list[Update]:
        """The maps, the actor at the new ones, then the averages."""
        c, adam = self.config, Adam(self.config.learning_rate, max_gradient=self.max_gradient)
        targets = {
            "target_forward_map": ("forward_map", c.target_rate),
            "target_backward_map": ("backward_map", c.target_rate),
        }
        own = {"actor.task": ("task", c.task_rate)}
        maps, noise = ("forward_map", "backward_map"), self.task_noise()
        return [
            Update(self.representation_loss, maps, adam, noise=noise, follows=own),
            Update(self.actor_loss, ("actor",), self.actor_adam(), noise=noise, target_updates=targets),
        ]

    def task_from(self, states: Tensor, rewards: Tensor) -> Tensor:
        """As of the base: the mean of rewards times B."""
        return reward_direction(self.backward_map(states), rewards)

    @torch.no_grad()
    def task_to(self, goal: Any) -> Tensor:
        """(D,) the task of reaching a goal, (O,) an observation in the environment's units: B of it.

        Raises:
            DataError: a goal of another width, or one that is not finite.
        """
        found, wanted = np.asarray(goal, np.float32), self.environment_spec.observation_dim
        if found.shape != (wanted,) or not np.isfinite(found).all():
            raise DataError(f"the goal is {found.tolist()}; must be {wanted} finite numbers, a whole observation")
        return self.task_of(np.tile(found, (1, self.spec.observation_dim // wanted)), np.ones(1))
