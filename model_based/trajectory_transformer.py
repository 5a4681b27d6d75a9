"""TT: one transformer over the tokens of trajectories is model and policy at once, and beam search plans in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import FALLING
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare, returns_to_go
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import segment_ids
from surefoot.world_models.tokens.planner import NETWORKS, SEARCH, TrajectoryPlanner, networks
from surefoot.world_models.tokens.tokens import LAWS
from surefoot.world_models.tokens.transformer import log_likelihood

TO_GO = "to_go"


@dataclasses.dataclass(frozen=True)
class TTConfig:
    """Settings of the trajectory transformer; the defaults are a search for a core, `official` the paper's networks."""

    bins: int = 100  # K, of each number
    law: str = "quantile"  # of the bins: quantile (as full) or uniform (as wide)
    context: int = 10  # steps of a window
    width: int = 128
    layers: int = 4
    heads: int = 4
    reads_to_go: bool = False  # whether attention reads the tokens of returns-to-go; the published one does not
    dropout: float = 0.1
    action_weight: float = 5.0  # of the actions' tokens in the loss
    discount: float = 0.99  # of the returns-to-go, and of the search
    termination_penalty: float | None = None  # added to the reward of steps that terminate; -100 in locomotion
    past: int = 5  # steps before the present one that the search begins with
    horizon: int = 5  # H, steps looked ahead; past and horizon are at most the context
    beams: int = 32  # N
    expansion: int = 2  # E: ways in which each beam goes on
    action_tail: float = 0.6  # of the odds of an action's token, the least likely part that is never drawn
    learning_rate: float = 6e-4
    schedule: str = "cosine"  # of the rate: constant, cosine or linear
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values out of range; the planner checks its own."""
        name = "trajectory_transformer"
        require(self.bins >= 2, name, "bins", self.bins, ">= 2")
        require(self.law in LAWS, name, "law", self.law, " or ".join(LAWS))
        require(0 <= self.dropout < 1, name, "dropout", self.dropout, "in [0, 1)")
        require(self.schedule in FALLING, name, "schedule", self.schedule, " or ".join(FALLING))
        require(0 <= self.discount <= 1, name, "discount", self.discount, "in [0, 1]")
        require(self.action_weight >= 0, name, "action_weight", self.action_weight, ">= 0")
        longest = f"at least 1, and with past, {self.past}, at most context, {self.context}"
        require(1 <= self.horizon <= self.context - self.past, name, "horizon", self.horizon, longest)


class TrajectoryTransformer(Agent):
    r"""Janner, Li and Levine, "Offline Reinforcement Learning as One Big Sequence Modeling Problem" (NeurIPS 2021).

    A step is the tokens of state, action, reward and return-to-go, each one bin of its number, and

    .. math:: L = -E \textstyle\sum_i w_i \log p(x_i | x_{<i})

    over the tokens of a window, w being `action_weight` of actions and 1 of others. The return-to-go is the discounted
    sum of the rewards after the step's own. Its tokens are predicted and never attended to, as in the official code: a
    return-to-go follows from the one before and the reward, whatever is done, so a model that reads them values no
    action (`reads_to_go`). It acts by the beam search of `world_models.TrajectoryPlanner`, which says
    what differs there; of the training it is that dropout masks are the same for all tokens of a row, that weight decay
    is on all weights, and that no window crosses an episode's end.
    """

    name = "trajectory_transformer"
    Config: ClassVar[type] = TTConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "official": {"context": 20, "horizon": 15, "beams": 128, "termination_penalty": -100.0},
        "small": {"bins": 50, "context": 6, "past": 2, "horizon": 4, "width": 64, "layers": 2, "beams": 16},
    }
    reads: ClassVar[tuple[str, ...]] = ("observations", "actions", "rewards", TO_GO)
    config: TTConfig

    def build(self) -> None:
        """Transformer and bins."""
        c = self.config
        sizes = {name: getattr(c, name) for name in NETWORKS}
        self.transformer, self.bins = networks(self.spec.observation_dim, self.spec.action_dim, sizes)
        self.actor  # noqa: B018  # refuses a search that is none

    @property
    def actor(self) -> Actor:
        """What acts: a search from the last steps."""
        options = {name: getattr(self.config, name) for name in (*NETWORKS, *SEARCH)}
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        return TrajectoryPlanner(self.transformer, self.bins, *sizes, options)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Actions into [-1, 1], the penalty at terminations, returns-to-go, and the bins of the data's numbers."""
        c, ready = self.config, prepare(self, dataset)
        if c.termination_penalty is not None:
            ready = ready.replace(rewards=ready.rewards + np.float32(c.termination_penalty) * ready.terminations)
        behind = returns_to_go(ready, c.discount) - ready.rewards  # of the steps after each, discounted once too often
        behind = (behind / max(c.discount, 1e-6)).astype(np.float32)
        ready = ready.replace(extras={**ready.extras, TO_GO: behind})
        parts = [ready.observations, ready.actions, ready.rewards[:, None], behind[:, None]]
        self.bins.fit(np.concatenate(parts, -1)[np.flatnonzero(ready.valid)])
        return ready

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows that begin at a row drawn uniformly."""
        return {
            MAIN: WindowSource(
                stores.data, segment_ids(stores.dataset, stores.data.keys), Windows(self.config.context, "right")
            )
        }

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropy of each token of a window but the first, weighted; what is behind an end does not count."""
        ones = [batch[name].unsqueeze(-1) for name in ("rewards", TO_GO)]
        steps = self.bins.encode(torch.cat([batch["observations"], batch["actions"], *ones], -1))
        tokens, first = steps.flatten(1), self.spec.observation_dim
        logits, _ = self.transformer(tokens[:, :-1], masks=noise.get("dropout"))
        found = log_likelihood(logits, tokens[:, 1:])
        weight = torch.ones_like(self.bins.centres[:, 0])
        weight[first : first + self.spec.action_dim] = self.config.action_weight
        counted = batch["mask"].unsqueeze(-1).expand(steps.shape).flatten(1)[:, 1:]
        weighted = counted * weight.repeat(steps.shape[1])[1:]
        return -(weighted * found).sum() / counted.sum(), {"token_nll": -(counted * found).sum() / counted.sum()}

    def updates(self) -> list[Update]:
        """One step of the transformer."""
        c = self.config
        adam = Adam(
            c.learning_rate, weight_decay=c.weight_decay, schedule=c.schedule, max_gradient_norm=c.max_gradient_norm
        )
        masks = self.transformer.masks_dim
        drawn = {"dropout": Noise("keep", masks, 1 - c.dropout)} if c.dropout > 0 else {}
        return [Update(self.model_loss, ("transformer",), adam, noise=drawn)]
