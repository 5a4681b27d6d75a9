"""RCSL: cloning what was done where so much was still to be earned, and asking for a lot."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.actors.return_actor import ReturnActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, best_return, prepare, returns_to_go, short_notes


@dataclasses.dataclass(frozen=True)
class RCSLConfig(HistoryConfig):
    """Settings of return-conditioned supervised learning; the preset `mbrcsl` has those of MBRCSL's output policy."""

    target_return: float | None = option(
        None, "return asked for when acting, undiscounted; null: the best of the data's episodes"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    learning_rate: float = option(5e-5, "learning rate", range=">= 0")
    l2: float = option(
        1e-3,
        "weight of the squared size of all weights and biases, in the loss, as Adam's coupled weight decay",
        range=">= 0",
    )
    returns: str = option(
        "standardised",
        "returns as the network reads them: standardised by the data's, or none (as they are)",
        choices=("none", "standardised"),
    )
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


class RCSL(Agent):
    r"""Return-conditioned supervised learning.

    .. math:: L = E \, \| \pi(s, g) - a \|^2 / A + \lambda \| \theta \|^2 / 2, \quad g_t = \sum_{k \ge t} r_k

    Acting, g begins at `target_return`, and what is earned is subtracted. It needs no Bellman backup, and so no
    Bellman completeness, but it can't join parts of two episodes to one that is better than both. Sources:
    Brandfonbrener et al., "When does return-conditioned supervised learning work for offline reinforcement learning?"
    (2022); Zhou et al., "Free from Bellman Completeness" (2024), whose output policy this is with the preset `mbrcsl`.
    Its decay of 0.1 and its returns as they are were published for a maze; returns in the thousands want the defaults.
    """

    name = "rcsl"
    Config: ClassVar[type] = RCSLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "mbrcsl": {"hidden": (1024, 1024), "l2": 0.1, "returns": "none", "normalization": "none"},
    }
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "returns_to_go")
    config: Any
    actor: ReturnActor
    return_mean: Tensor
    return_deviation: Tensor

    def build(self) -> None:
        """The policy, and the mean and deviation of the returns that it reads."""
        self.actor = ReturnActor(self.spec.observation_dim, self.spec.action_dim, self.config.hidden)
        if self.config.returns == "standardised":
            self.register_buffer("return_mean", torch.zeros(()))
            self.register_buffer("return_deviation", torch.ones(()))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions, add the returns to go, set the return to ask for."""
        if not self.goals_fixed:
            target = self.config.target_return
            self.actor.target_return.fill_(best_return(dataset) if target is None else target)
        ready = prepare(self, dataset, normalization=self.config.normalization)
        wanted = returns_to_go(ready, 1.0)
        if self.config.returns == "standardised" and not self.rewards_fixed:
            mean, deviation = (float(x) for x in (wanted.mean(dtype=np.float64), wanted.std(dtype=np.float64)))
            self.return_mean.fill_(mean)
            self.return_deviation.fill_(deviation if deviation > 0 else 1.0)
        return ready.replace(extras={**ready.extras, "returns_to_go": wanted})

    def notes(self, dataset: Dataset) -> list[str]:
        """The return that it will ask for."""
        asked = self.config.target_return
        own = f"{self.name}: asks for a return of {best_return(dataset) if asked is None else asked:.1f} when acting"
        return [own, *(short_notes(dataset, 0) if asked is None else [])]

    def load_from(self, source: Agent) -> None:
        """Nothing of another kind; refuse a policy that reads returns on another scale."""
        if isinstance(source, RCSL) and source.config.returns != (mine := self.config.returns):
            raise ConfigError(f"{self.name}.returns is {mine}, and {source.config.returns} in the run of init=: set it")

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean squared error over rows and action dimensions, and the squares of all parameters."""
        wanted = batch["returns_to_go"]
        if self.config.returns == "standardised":
            wanted = (wanted - self.return_mean) / self.return_deviation
        error = (self.actor(batch["observations"], wanted) - batch["actions"]).square().mean()
        size = torch.stack([p.square().sum() for p in self.actor.parameters()]).sum()
        return error + 0.5 * self.config.l2 * size, {"action_error": error}

    def updates(self) -> list[Update | Rule]:
        """One step of the policy."""
        return [Update(self.actor_loss, ("actor",), Adam(self.config.learning_rate))]

    def policy(self) -> Policy:
        """As `Agent.policy`; it reads returns as they are, so the first layer takes over their scaling."""
        if self.config.returns == "none":
            return super().policy()
        head = copy.deepcopy(self.actor)
        with torch.no_grad():
            weight, bias = head.mlp.weights[0], head.mlp.biases[0]
            weight[..., -1] /= self.return_deviation
            bias -= weight[..., -1] * self.return_mean
        return self.policy_of(head)
