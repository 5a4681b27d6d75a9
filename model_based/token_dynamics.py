"""A model of the dynamics alone, as tokens: a transformer that draws reward and next state number by number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from surefoot.core.base.options import Options, option
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import FALLING
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.sources import MAIN, Source, Stores, Uniform
from surefoot.core.engine.traits import Requires
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.world_models.calibration import token_calibration
from surefoot.world_models.ensemble.learning import READS
from surefoot.world_models.known import terminations
from surefoot.world_models.known.terminations import AUTO, named
from surefoot.world_models.tokens.dynamics import TokenDynamics
from surefoot.world_models.tokens.tokens import LAWS


@dataclasses.dataclass(frozen=True)
class TokenDynamicsConfig(Options):
    """Settings of the token model; the defaults are MBRCSL's for simulated robots, but for the rate's schedule."""

    bins: int = option(500, "bins of each number", range=">= 2")
    law: str = option("uniform", "widths of the bins: uniform (as wide) or quantile (as full)", choices=LAWS)
    width: int = option(128, "width of the transformer")
    layers: int = option(4, "layers of the transformer")
    heads: int = option(4, "attention heads")
    dropout: float = option(0.0, "probability that a hidden unit is dropped", range="[0, 1)")
    learning_rate: float = option(1e-3, "learning rate", range=">= 0")
    schedule: str = option("cosine", "schedule of the learning rate: constant, cosine or linear", choices=FALLING)
    weight_decay: float = option(1e-2, "weight decay", range=">= 0")
    max_gradient_norm: float = option(
        1.0, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    termination: str = option(
        AUTO, "where episodes end in the model: auto (by the environment's id), none or module:function"
    )


class LearnedTokenDynamics(Agent):
    """An autoregressive transformer of reward and next state, without a policy (`world_models.TokenDynamics`).

    Source: Zhou et al., "Free from Bellman Completeness" (ICLR 2024), whose dynamics of simulated robots it is.
    `surefoot plan` plans in it.
    """

    name = "token_dynamics"
    Config = TokenDynamicsConfig
    required_columns = READS
    requires = Requires(policy=False)
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
