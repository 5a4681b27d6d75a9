"""A model of the dynamics alone, as tokens: a transformer that draws reward and next state number by number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.core.base.rates import FALLING
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.world_models.calibration import token_calibration
from surefoot.world_models.ensemble.learning import READS
from surefoot.world_models.known import terminations
from surefoot.world_models.known.terminations import AUTO, named
from surefoot.world_models.tokens.dynamics import TokenDynamics
from surefoot.world_models.tokens.tokens import LAWS


@dataclasses.dataclass(frozen=True)
class TokenDynamicsConfig:
    """Settings of the token model; the defaults are MBRCSL's for simulated robots, but for the rate's schedule."""

    bins: int = 500  # of each number
    law: str = "uniform"  # of the bins: uniform (as wide) or quantile (as full)
    width: int = 128  # of the transformer
    layers: int = 4
    heads: int = 4
    dropout: float = 0.0
    learning_rate: float = 1e-3
    schedule: str = "cosine"  # of the rate: constant, cosine or linear
    weight_decay: float = 1e-2
    max_gradient_norm: float = 1.0
    termination: str = AUTO  # where episodes end in the model: auto (by the environment's id), none or module:function

    def __post_init__(self) -> None:
        """Refuse values out of range; the transformer checks its own."""
        require(self.bins >= 2, "token_dynamics", "bins", self.bins, ">= 2")
        require(self.law in LAWS, "token_dynamics", "law", self.law, " or ".join(LAWS))
        require(0 <= self.dropout < 1, "token_dynamics", "dropout", self.dropout, "in [0, 1)")
        known = self.schedule in FALLING
        require(known, "token_dynamics", "schedule", self.schedule, " or ".join(FALLING))


class LearnedTokenDynamics(Agent):
    """An autoregressive transformer of reward and next state, without a policy (`world_models.TokenDynamics`).

    Source: Zhou et al., "Free from Bellman Completeness" (ICLR 2024), whose dynamics of simulated robots it is.
    `surefoot plan` plans in it.
    """

    name = "token_dynamics"
    Config = TokenDynamicsConfig
    reads = READS
    has_policy = False
    config: TokenDynamicsConfig

    def build(self) -> None:
        """The transformer."""
        c = self.config
        self.model = TokenDynamics(
            self.spec.observation_dim,
            self.spec.action_dim,
            bins=c.bins,
            law=c.law,
            width=c.width,
            layers=c.layers,
            heads=c.heads,
            terminates=named(c.termination, self.spec.environment),
        )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Actions into [-1, 1]; the bins of the data's numbers."""
        ready = prepare(self, dataset)
        rows = np.flatnonzero(ready.transitions)
        self.model.fit({name: getattr(ready, name)[rows] for name in READS})
        return ready

    def notes(self, dataset: Dataset) -> list[str]:
        """Where no termination function is known."""
        return terminations.notes(self.config.termination, self.spec.environment)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The data's rows."""
        return {MAIN: Uniform(stores.data)}

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropy of what is not given."""
        return self.model.loss(batch, noise.get("dropout"))

    def judged_on(self, held_out: Dataset, seed: int) -> dict[str, Any]:
        """Likelihood, coverage and errors of many steps ahead on episodes that it never saw."""
        return {"model": token_calibration(self.model, prepare(self, held_out))}

    def updates(self) -> list[Update]:
        """One step of the transformer."""
        c = self.config
        adam = Adam(
            c.learning_rate, weight_decay=c.weight_decay, schedule=c.schedule, max_gradient_norm=c.max_gradient_norm
        )
        masks = self.model.transformer.masks_dim
        drawn = {"dropout": Noise("keep", masks, 1 - c.dropout)} if c.dropout > 0 else {}
        return [Update(self.model_loss, ("model",), adam, noise=drawn)]
