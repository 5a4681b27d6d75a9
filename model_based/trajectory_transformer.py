"""TT: one transformer over the tokens of trajectories is model and policy at once, and beam search plans in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.base.options import Options, option
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
class TTConfig(Options):
    """Settings of the trajectory transformer; the defaults are a search for a core, `official` the paper's networks."""

    bins: int = option(100, "bins, K, of each number", range=">= 2")
    law: str = option("quantile", "widths of the bins: quantile (as full) or uniform (as wide)", choices=LAWS)
    context: int = option(10, "steps of a window")
    width: int = option(128, "width of the transformer")
    layers: int = option(4, "layers of the transformer")
    heads: int = option(4, "attention heads")
    reads_to_go: bool = option(False, "whether attention reads the tokens of returns-to-go; the published one does not")
    dropout: float = option(0.1, "probability that a hidden unit is dropped", range="[0, 1)")
    action_weight: float = option(5.0, "weight of the actions' tokens in the loss", range=">= 0")
    discount: float = option(0.99, "discount factor of the returns-to-go, and of the search", range="[0, 1]")
    termination_penalty: float | None = option(
        None, "penalty added to the reward of steps that terminate; -100 in locomotion"
    )
    past: int = option(5, "steps before the present one that the search begins with")
    horizon: int = option(5, "steps looked ahead, H; past and horizon are at most the context")
    beams: int = option(32, "beams of the search, N")
    expansion: int = option(2, "E: ways in which each beam continues")
    action_tail: float = option(
        0.6, "share of the odds of an action's token, the least likely part that is never drawn"
    )
    learning_rate: float = option(6e-4, "learning rate", range=">= 0")
    schedule: str = option("cosine", "schedule of the learning rate: constant, cosine or linear", choices=FALLING)
    weight_decay: float = option(0.1, "weight decay", range=">= 0")
    max_gradient_norm: float = option(
        1.0, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = "trajectory_transformer"
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
    required_columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "rewards", TO_GO)
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
