"""MOORL: SAC meta-learned by Reptile over two tasks, to learn from the data and to learn from what is met."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.agent import require
from surefoot.core.errors import ConfigError
from surefoot.core.policy import Policy
from surefoot.core.random import STEPS_PER_BLOCK, generator
from surefoot.data.collect import TransitionBuffer
from surefoot.data.dataset import Dataset
from surefoot.data.store import Batch, Store, Workspace, store_from_dataset
from surefoot.online.off_policy import OffPolicyLoop
from surefoot.online.replay import ReplayRows
from surefoot.online.sac import SAC, SACConfig

SELECTORS = ("random", "alternate")


@dataclasses.dataclass(frozen=True)
class MOORLConfig(SACConfig):
    """Settings of MOORL; the paper's K, meta rate and probability are not known to us, and these are guesses."""

    initial_steps: int = 1_000  # environment steps before the first update
    updates_per_step: float = 5.0  # training steps per environment step: inner_steps, to act once an iteration
    inner_steps: int = 5  # K: training steps on one source, between two steps of the meta-parameters
    meta_rate: float = 0.5  # of the way to the inner parameters that the meta-parameters go
    selector: str = "random"  # which source an iteration learns from: random or alternate
    data_probability: float = 0.5  # that it is the data, where it is random

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        require(self.inner_steps >= 1, "moorl", "inner_steps", self.inner_steps, ">= 1")
        require(0 < self.meta_rate <= 1, "moorl", "meta_rate", self.meta_rate, "in (0, 1]")
        require(self.selector in SELECTORS, "moorl", "selector", self.selector, " or ".join(SELECTORS))
        require(0 <= self.data_probability <= 1, "moorl", "data_probability", self.data_probability, "in [0, 1]")
        whole = self.offline_fraction == 0
        require(whole, "moorl", "offline_fraction", self.offline_fraction, "0: a batch is of one source alone")


class MOORL(SAC):
    r"""MOORL, "A Framework for Integrating Offline-Online Reinforcement Learning" (TMLR 2025), after its description.

    An iteration takes one of two tasks, the data or the replay buffer; from the meta-parameters it takes K steps of
    SAC on that task's batches; then actor and critics move towards what came of it, and go on from there:

    .. math::
        \theta \leftarrow \theta + \epsilon\, (\theta_K - \theta)

    That is Reptile (Nichol, Achiam, Schulman, "On First-Order Meta-Learning Algorithms"). With K = 1 and a rate of 1 it
    is SAC on batches of one source at a time. The meta-policy acts. Targets and temperature follow the inner steps.
    """

    name = "moorl"
    Config = MOORLConfig
    PRESETS = {  # noqa: RUF012
        "k1": {"inner_steps": 1, "updates_per_step": 1.0},
        "k5": {},
        "k10": {"inner_steps": 10, "updates_per_step": 10.0},
    }
    data = "required"
    META = {"meta_actor": "actor", "meta_critic": "critic"}  # noqa: RUF012
    config: MOORLConfig

    def build(self) -> None:
        """SAC's networks, and the meta-parameters of actor and critics."""
        super().build()
        self.meta_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.meta_critic = copy.deepcopy(self.critic).requires_grad_(False)

    def copies(self) -> dict[str, str]:
        """SAC's targets, and the meta-parameters."""
        return {**super().copies(), **self.META}

    @classmethod
    def loop_class(cls) -> type[OffPolicyLoop]:
        """What trains it."""
        return ReptileLoop

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions of the meta-policy; mean ones without `noise`."""
        return self.meta_actor.act(observations, noise)

    def mean_action(self, observations: Tensor) -> Tensor:
        """(B, A) mean actions of the inner policy, which the losses train and the meta-policy follows."""
        return self.actor.act(observations)

    def policy(self) -> Policy:
        """A copy of the meta-policy that stands on its own."""
        return Policy.of(self.meta_actor, self.normalizer, self.action_low, self.action_high)


class ReptileLoop(OffPolicyLoop):
    """`OffPolicyLoop` whose batches are of one source each, and which steps the meta-parameters between iterations."""

    agent: MOORL

    def run(self, steps: int) -> dict[str, list[float]]:
        """As `OffPolicyLoop.run`; an iteration that has ended is taken into the meta-parameters."""
        result = super().run(steps)
        self._step_meta()
        return result

    def _act_until_due(self) -> None:
        self._step_meta()
        super()._act_until_due()

    def _act(self) -> None:
        self._step_meta()
        super()._act()

    @torch.no_grad()
    def _step_meta(self) -> None:
        """Reptile's step, between two iterations; whoever comes first does it, and a second time changes nothing."""
        if self.learner.step % self.agent.config.inner_steps:
            return
        for meta, inner in self.agent.META.items():
            theta, reached = self.learner.networks[meta].value, self.learner.networks[inner].value
            theta.lerp_(reached, self.agent.config.meta_rate)
            reached.copy_(theta)

    def _sources(self, rows: int, dataset: Dataset | None) -> tuple[Any, ReplayRows]:
        if dataset is None:
            raise ConfigError("moorl learns from data and from what it meets: give dataset=")
        store = store_from_dataset(dataset, self.agent.reads, self.device)
        buffer = self.experience.buffer
        return Tasks(store, buffer).gather, TaskRows(
            self.seeds, buffer, rows, self.device, len(store), self.agent.config
        )


class TaskRows(ReplayRows):
    """Rows of the data or of the replay buffer, all of a training step from one of them, as the iteration says.

    Row i of the data is i; row i of the buffer is i + the number of the data's rows.
    """

    def __init__(
        self,
        seeds: list[int],
        buffer: TransitionBuffer,
        rows: int,
        device: torch.device,
        dataset_rows: int,
        config: MOORLConfig,
    ) -> None:
        super().__init__(seeds, buffer, rows, device, dataset_rows)
        self.config = config
        self._tasks: tuple[Tensor, ...] = ()
        self._tasks_block = -1

    def from_data(self, iteration: int) -> Tensor:
        """(S,) bool: whether an iteration of each seed learns from the data."""
        block, offset = divmod(iteration, STEPS_PER_BLOCK)
        if block != self._tasks_block:
            if self.config.selector == "alternate":
                first = np.arange(block * STEPS_PER_BLOCK, (block + 1) * STEPS_PER_BLOCK) % 2 == 0
                chosen = np.stack([first] * len(self.seeds))
            else:
                drawn = [generator(seed, "task", block).random(STEPS_PER_BLOCK) for seed in self.seeds]
                chosen = np.stack(drawn) < self.config.data_probability
            self._tasks = torch.from_numpy(chosen).to(self.device).unbind(1)
            self._tasks_block = block
        return self._tasks[offset]

    def at(self, step: int) -> Tensor:
        """(S, rows) int64 indices of training step `step` >= 0."""
        self.from_dataset = self.from_data(step // self.config.inner_steps).unsqueeze(1)
        rows = super().at(step)
        return torch.where(self.from_dataset, rows, rows + self.dataset_rows)


class Tasks:
    """A dataset and a replay buffer end to end, as `TaskRows` numbers them."""

    def __init__(self, dataset: Store, buffer: TransitionBuffer) -> None:
        self.dataset, self.buffer = dataset, buffer

    def workspace(self, rows: int) -> Workspace:
        """Buffers for `gather` with indices of this shape, as `Store.workspace`."""
        return self.buffer.workspace(rows)

    def gather(self, indices: Tensor, out: Workspace | None = None) -> Batch:
        """The rows at `indices` (..., rows): looked up in both, without asking on the CPU in which they are."""
        count = len(self.dataset)
        ours = self.dataset.gather_groups(indices.clamp(max=count - 1))
        met = self.buffer.gather_groups((indices - count).clamp(min=0))
        groups = {}
        for key, rows in ours.items():
            of_data = (indices < count).view(*indices.shape, *[1] * (rows.dim() - indices.dim()))
            groups[key] = torch.where(of_data, rows, met[key])
        if out is None:
            return self.buffer.split(groups)
        for key, rows in groups.items():
            out.buffers[key].copy_(rows)
        return dict(out.batch)
