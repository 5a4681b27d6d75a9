"""RCSL: cloning what was done where so much was still to be earned, and asking for a lot."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.agent import Adam, Agent, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.histories import HistoryConfig
from surefoot.core.return_actor import ReturnActor
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import best_return, prepare, returns_to_go, short_notes


@dataclasses.dataclass(frozen=True)
class RCSLConfig(HistoryConfig):
    """Settings of return-conditioned supervised learning; the defaults are MBRCSL's for its output policy."""

    target_return: float | None = None  # asked for when acting, undiscounted; None: the best of the data's episodes
    hidden: tuple[int, ...] = (1024, 1024)
    learning_rate: float = 5e-5
    l2: float = 0.1  # of all weights and biases, in the loss, as Adam's coupled weight decay
    normalization: str = "none"  # none, observations or stacked

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        require(self.l2 >= 0, algorithm_of(self), "l2", self.l2, ">= 0")


class RCSL(Agent):
    r"""Return-conditioned supervised learning.

    .. math:: L = E \, \| \pi(s, g) - a \|^2 / A + \lambda \| \theta \|^2 / 2, \quad g_t = \sum_{k \ge t} r_k

    Acting, g begins at `target_return`, and what is earned is subtracted. It needs no Bellman backup, and so no
    Bellman completeness, but it can't join parts of two episodes to one that is better than both. Sources:
    Brandfonbrener et al., "When does return-conditioned supervised learning work for offline reinforcement learning?"
    (2022); Zhou et al., "Free from Bellman Completeness" (2024), whose output policy this is.
    """

    name = "rcsl"
    Config: ClassVar[type] = RCSLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"mbrcsl": {}, "small": {"hidden": (256, 256), "l2": 1e-3}}
    reads: ClassVar[tuple[str, ...]] = ("observations", "actions", "returns_to_go")
    config: Any
    actor: ReturnActor

    def build(self) -> None:
        """The policy."""
        self.actor = ReturnActor(self.spec.observation_dim, self.spec.action_dim, self.config.hidden)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, add the returns to go, set the return to ask for."""
        if not self.goals_fixed:
            target = self.config.target_return
            self.actor.target_return.fill_(best_return(dataset) if target is None else target)
        ready = prepare(self, dataset, normalization=self.config.normalization)
        return ready.replace(extras={**ready.extras, "returns_to_go": returns_to_go(ready, 1.0)})

    def notes(self, dataset: Dataset) -> list[str]:
        """The return that it will ask for."""
        asked = self.config.target_return
        own = f"{self.name}: asks for a return of {best_return(dataset) if asked is None else asked:.1f} when acting"
        return [own, *(short_notes(dataset, 0) if asked is None else [])]

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error over rows and action dimensions, and the squares of all parameters."""
        error = (self.actor(batch["observations"], batch["returns_to_go"]) - batch["actions"]).square().mean()
        size = torch.stack([p.square().sum() for p in self.actor.parameters()]).sum()
        return error + 0.5 * self.config.l2 * size, {"action_error": error}

    def updates(self) -> list[Update | Rule]:
        """One step of the policy."""
        return [Update(self.actor_loss, ("actor",), Adam(self.config.learning_rate))]
